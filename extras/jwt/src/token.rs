//! The parts of a token: header, claims and signature (RFC 7515, compact serialization). Nothing in a parsed
//! token is trusted yet.

use crate::refusal::Refusal;
use crate::signature::Algorithm;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// A parsed token whose signature is not checked yet.
pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    /// The key id that the token names. `None`: the token names no key.
    pub(super) key_id: Option<String>,
    pub(super) claims: Claims,
    pub(super) claims_json: Vec<u8>,
    /// The bytes that the signature covers.
    pub(super) message: &'a [u8],
    pub(super) signature: Vec<u8>,
}

/// The claims with a fixed meaning. A claim of another type, or a repeated claim, makes the token malformed.
/// Times are whole seconds since 1970.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    pub(super) aud: Audience,
    pub(super) exp: u64,
    pub(super) nbf: Option<u64>,
    pub(super) iat: Option<u64>,
    pub(super) sub: Option<String>,
    pub(super) azp: Option<String>,
    pub(super) client_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

/// The header. Members that contain or name a key (`jwk`, `jku`, `x5c`, `x5u`) are ignored, because keys come
/// only from the issuer.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// Extensions that a reader must understand. The gateway understands none.
    crit: Option<IgnoredAny>,
    /// The member for a payload without base64 encoding (RFC 7797).
    b64: Option<IgnoredAny>,
}

/// The types of access tokens and identity tokens. Others, such as logout tokens, authenticate nobody.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

impl<'a> Token<'a> {
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, Refusal> {
        let end = memchr::memrchr(b'.', text).ok_or(Refusal::Malformed)?;
        let message = &text[..end];
        let header_end = memchr::memchr(b'.', message).ok_or(Refusal::Malformed)?;
        let header: Header = parse_json(&decode(&message[..header_end])?)?;
        let claims_json = decode(&message[header_end + 1..])?;
        let is_known_type = header
            .typ
            .is_none_or(|typ| TYPES.contains(&&*typ.to_ascii_lowercase()));
        if !is_known_type || header.crit.is_some() || header.b64.is_some() {
            return Err(Refusal::Malformed);
        }
        Ok(Self {
            algorithm: Algorithm::parse(&header.alg).ok_or(Refusal::Algorithm)?,
            key_id: header.kid,
            claims: parse_json(&claims_json)?,
            claims_json,
            message,
            signature: decode(&text[end + 1..])?,
        })
    }
}

impl Audience {
    pub(super) fn is_in(&self, list: &[String]) -> bool {
        match self {
            Self::One(audience) => list.contains(audience),
            Self::Several(audiences) => audiences.iter().any(|audience| list.contains(audience)),
        }
    }
}

/// Whether the part before the first dot is a token header, which is an encoded JSON object.
pub(super) fn begins_as_header(text: &[u8]) -> bool {
    let end = memchr::memchr(b'.', text).unwrap_or(text.len());
    let header = decode(&text[..end]).unwrap_or_default();
    header.trim_ascii_start().starts_with(b"{")
}

fn decode(part: &[u8]) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Refusal::Malformed)
}

fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(json).map_err(|_| Refusal::Malformed)
}
