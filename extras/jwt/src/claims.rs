//! Checks the claims of a token, and determines the rights that they grant.

use crate::refusal::Refusal;
use crate::section::{ClaimNames, JwtIssuerConfig};
use crate::signature::Algorithm;
use crate::token::{Claims, Token};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;
use tokenweir_gateway::proxy::RequestSettings;
use tokenweir_request::access::{ApiKeys, KeyDigest, PseudonymKey, TokenGrant, UsageLimits};
use tokenweir_request::record::{ClientIdentity, Tier};

/// The rules of the tokens of one issuer.
pub(super) struct GrantRules {
    pub(super) algorithms: Vec<Algorithm>,
    audiences: Vec<String>,
    clients: Vec<String>,
    default_tenant: Option<Arc<str>>,
    names: ClaimNames,
}

/// The data from other sections of the configuration that the rules of tokens need.
pub struct GrantContext {
    /// The key for pseudonyms of the subjects of tokens.
    pub pseudonyms: PseudonymKey,
    /// The tiers that a token may name.
    pub tiers: Vec<Arc<str>>,
}

/// Tolerated difference between the clocks of issuer and gateway, in seconds.
const LEEWAY: u64 = 60;
/// The end of the year 9999, in seconds since 1970. Later dates are refused.
const LAST_SECOND: u64 = 253_402_300_799;
/// Maximum number of models that a token may list.
const MAX_MODELS: usize = 100;

/// Whether a time is past. The clock of this machine may be fast by [`LEEWAY`].
pub(super) fn is_past(seconds: u64, now: u64) -> bool {
    seconds.saturating_add(LEEWAY) <= now
}

fn is_future(seconds: Option<u64>, now: u64) -> bool {
    seconds.is_some_and(|seconds| seconds > now.saturating_add(LEEWAY))
}

impl GrantRules {
    pub(super) fn new(settings: &JwtIssuerConfig) -> Self {
        Self {
            algorithms: settings.algorithms.clone(),
            audiences: settings.audiences.clone(),
            clients: settings.clients.clone(),
            default_tenant: settings.default_tenant.as_deref().map(Into::into),
            names: settings.claims.clone(),
        }
    }

    /// Checks the claims with a fixed meaning. The caller must check the signature first.
    pub(super) fn check_claims(&self, claims: &Claims, now: u64) -> Result<(), Refusal> {
        if !claims.aud.is_in(&self.audiences) {
            return Err(Refusal::Audience);
        }
        if is_past(claims.exp, now) || claims.exp > LAST_SECOND {
            return Err(Refusal::Expired);
        }
        if is_future(claims.nbf, now) || is_future(claims.iat, now) {
            return Err(Refusal::NotYetValid);
        }
        if self.clients.is_empty() {
            return Ok(());
        }
        let mut clients = claims.azp.iter().chain(&claims.client_id).peekable();
        if clients.peek().is_some() && clients.all(|client| self.clients.contains(client)) {
            Ok(())
        } else {
            Err(Refusal::Client)
        }
    }

    /// The rights that the token grants.
    pub(super) fn grant(
        &self,
        token: &Token<'_>,
        digest: KeyDigest,
        keys: &ApiKeys,
        context: &GrantContext,
    ) -> Result<TokenGrant, Refusal> {
        let all: Value =
            serde_json::from_slice(&token.claims_json).map_err(|_| Refusal::Malformed)?;
        let names = &self.names;
        let tier: Option<String> = read(&all, names.tier.as_deref())?;
        let models: Option<ModelList> = read(&all, names.models.as_deref())?;
        let limits: Option<UsageLimits> = read(&all, names.limits.as_deref())?;
        let limits = limits.unwrap_or_default();
        limits.check().map_err(|_| Refusal::Claims)?;
        let subject = subject(&token.claims);
        Ok(TokenGrant {
            digest,
            tenant: self.tenant(&all, keys)?,
            key: context.key_name(&subject),
            subject: KeyDigest::from_key(subject.as_bytes()),
            tier: tier.map(|name| context.tier(&name)).transpose()?,
            models: models.map(ModelList::into_names).transpose()?,
            limits,
        })
    }

    fn tenant(&self, all: &Value, keys: &ApiKeys) -> Result<Arc<str>, Refusal> {
        let named: Option<String> = read(all, self.names.tenant.as_deref())?;
        match named.filter(|name| keys.has_tenant(name)) {
            Some(name) => Ok(name.into()),
            None => self.default_tenant.clone().ok_or(Refusal::Tenant),
        }
    }
}

impl GrantContext {
    /// The present settings of requests.
    pub(super) fn new(settings: &RequestSettings) -> Self {
        Self {
            pseudonyms: settings.identities.key.clone(),
            tiers: settings.tiers.names.clone(),
        }
    }

    fn tier(&self, name: &str) -> Result<Tier, Refusal> {
        let known = self.tiers.iter().find(|tier| ***tier == *name);
        known.cloned().map(Tier::Known).ok_or(Refusal::Claims)
    }

    /// The name of the key that stands for the subject. It is a pseudonym, because logs contain it.
    fn key_name(&self, subject: &str) -> Arc<str> {
        let pseudonym = self.pseudonyms.pseudonym("subject", subject);
        format!("{}{pseudonym}", ClientIdentity::TOKEN_KEY_PREFIX).into()
    }
}

/// A text of issuer and subject. The length of the issuer makes it unambiguous.
fn subject(claims: &Claims) -> String {
    let of_client = claims.client_id.as_ref().or(claims.azp.as_ref());
    let subject = claims.sub.as_ref().or(of_client);
    let subject = subject.map_or("", String::as_str);
    format!("{} {} {subject}", claims.iss.len(), claims.iss)
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum ModelList {
    Names(Vec<String>),
    SpaceSeparated(String),
}

impl ModelList {
    fn into_names(self) -> Result<Vec<String>, Refusal> {
        let names = match self {
            Self::Names(names) => names,
            Self::SpaceSeparated(text) => text.split_whitespace().map(str::to_owned).collect(),
        };
        if names.len() > MAX_MODELS {
            return Err(Refusal::Claims);
        }
        Ok(names)
    }
}

/// A claim by its configured name or JSON pointer. `None`: the token does not have the claim.
fn find<'a>(all: &'a Value, name: Option<&str>) -> Option<&'a Value> {
    let name = name?;
    let found = if name.starts_with('/') {
        all.pointer(name)
    } else {
        all.get(name)
    };
    found.filter(|value| !value.is_null())
}

/// Reads a claim. A claim of a wrong type makes the token invalid, because ignoring it could grant more rights.
fn read<T: DeserializeOwned>(all: &Value, name: Option<&str>) -> Result<Option<T>, Refusal> {
    match find(all, name) {
        Some(value) => T::deserialize(value).map(Some).map_err(|_| Refusal::Claims),
        None => Ok(None),
    }
}
