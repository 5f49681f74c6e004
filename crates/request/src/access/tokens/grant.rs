//! The rights that a valid token grants, and the reasons for refusing a token.

use crate::access::digest::KeyDigest;
use crate::access::usage::UsageLimits;
use crate::record::{LogPlace, NoteAttribute, NoteValue, RecordNote, Tier};
use std::sync::Arc;

/// Why a token is refused, and whether a retry can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRefusal {
    /// The reason in the log, from a closed set. The client does not get it.
    pub reason: &'static str,
    /// Whether the gateway cannot check the token yet. A later retry can succeed.
    pub is_temporary: bool,
}

/// The rights that a valid token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGrant {
    /// SHA-256 of the token, under which a verified token is cached.
    pub digest: KeyDigest,
    /// A tenant of the key file.
    pub tenant: Arc<str>,
    /// Name of the key that stands for the subject of the token. The name begins with
    /// [`ClientIdentity::TOKEN_KEY_PREFIX`](crate::record::ClientIdentity::TOKEN_KEY_PREFIX).
    pub key: Arc<str>,
    /// The digest of issuer and subject, under which limits are counted. All gateways compute the same digest,
    /// also after a restart, although the names of keys can differ.
    pub subject: KeyDigest,
    /// Tier of the requests. `None`: the tier of the tenant.
    pub tier: Option<Tier>,
    /// Models that the token names. A request may use the models that both the token and the tenant allow.
    /// `None`: all models of the tenant.
    pub models: Option<Vec<String>>,
    /// Limits of all tokens of the subject together. The limits of the tenant also apply.
    pub limits: UsageLimits,
}

/// For the record: the class of the reason for which the token of a request was refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct RefusedToken(pub &'static str);

impl RecordNote for RefusedToken {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(*self)
    }

    fn log_field(&self, after: LogPlace) -> Option<NoteAttribute> {
        let field = NoteAttribute {
            name: "token_refused",
            value: NoteValue::Text(self.0),
        };
        (after == LogPlace::Attempts).then_some(field)
    }
}
