//! The configuration of the identities of requests: user, session and conversation.

use super::secret::{Secret, SecretValue};
use crate::config::violation::{RuleViolation, violation_at};
use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use tokenweir_gateway::proxy::{IdentityMode, IdentityReader};
use tokenweir_request::access::{KeyDigest, PseudonymKey};

/// User, session and conversation of a request on spans and access log lines. They are never label
/// values of metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IdentitiesConfig {
    /// How spans and log lines report user, session and conversation.
    pub mode: IdentityMode,
    /// Secret of the hashes. Gateways with the same secret report the same hashes. `None`: a random
    /// secret of this process.
    pub secret: Option<Secret>,
    /// Headers that name the user, in order of preference, before `safety_identifier` and `user`.
    pub user_headers: Vec<String>,
    /// Headers that name the session, in order of preference, before `metadata` and
    /// `prompt_cache_key`.
    pub session_headers: Vec<String>,
    /// Headers that name the conversation, in order of preference, before `conversation` and
    /// `metadata`.
    pub conversation_headers: Vec<String>,
}

impl Default for IdentitiesConfig {
    /// The default: values are reported hashed, and are read from the headers of common agents and
    /// chat clients.
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            mode: IdentityMode::default(),
            secret: None,
            user_headers: names(&["x-openwebui-user-id"]),
            session_headers: names(&[
                "x-session-id",
                "x-claude-code-session-id",
                "x-opencode-session",
                "x-session-affinity",
                "session-id",
                "session_id",
            ]),
            conversation_headers: names(&[
                "x-conversation-id",
                "x-openwebui-chat-id",
                "conversation_id",
            ]),
        }
    }
}

impl IdentitiesConfig {
    /// Builds the reader of the user, session and conversation of requests. `secret`: the value of
    /// [`Self::secret`].
    pub fn reader(&self, secret: Option<&SecretValue>) -> IdentityReader {
        // The rules have checked that the names parse.
        let names = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect();
        IdentityReader {
            mode: self.mode,
            key: PseudonymKey::new(secret.map_or_else(process_secret, SecretValue::digest)),
            user_headers: names(&self.user_headers),
            session_headers: names(&self.session_headers),
            conversation_headers: names(&self.conversation_headers),
        }
    }
}

/// A secret that is drawn once for the process, so that a reload does not change the hashes.
fn process_secret() -> KeyDigest {
    static SECRET: OnceLock<KeyDigest> = OnceLock::new();
    let draw = || {
        let mut random = [0; 32];
        // Without random numbers, the process has no TLS either. The hashes are then guessable.
        let _ = SystemRandom::new().fill(&mut random);
        KeyDigest::from_key(&random)
    };
    *SECRET.get_or_init(draw)
}

/// Checks that the names of headers are valid. Returns the first violation.
pub(crate) fn check(identities: &IdentitiesConfig) -> Result<(), RuleViolation> {
    for (key, names) in [
        ("user_headers", &identities.user_headers),
        ("session_headers", &identities.session_headers),
        ("conversation_headers", &identities.conversation_headers),
    ] {
        if let Some(name) = names.iter().find(|name| name.parse::<HeaderName>().is_err()) {
            let problem = format!("`{name}` is not a valid header name");
            return Err(violation_at(&format!("identities.{key}"), problem));
        }
    }
    Ok(())
}
