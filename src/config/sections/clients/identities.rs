//! The section `identities`: user, session and conversation of requests.

use http::HeaderName;
use ring::rand::{SecureRandom, SystemRandom};
use std::sync::OnceLock;
use tokenweir_gateway::proxy::{IdentityMode, IdentityReader};
use tokenweir_protocol::settings;
use tokenweir_request::access::{KeyDigest, PseudonymKey};
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Environment, Secret, SecretList, SecretValue,
    UnreadableSecret, violation_at,
};

settings! {
    /// User, session and conversation of a request on spans and access log lines. They are never label
    /// values of metrics.
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
    fn hash_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(
            "the secret of identities (identities.secret)",
            self.secret.as_ref(),
        )
    }

    /// The hash of a user as in the access log and spans. `None`: without a secret, each process has its own
    /// hashes.
    pub fn user_hash(
        &self,
        user: &str,
        env: impl Environment,
    ) -> Result<Option<String>, UnreadableSecret> {
        let secret = ConfiguredSecret::resolve_any(self.hash_secret(), env)?;
        let key = secret.map(|secret| PseudonymKey::new(secret.digest()));
        Ok(key.map(|key| key.pseudonym(IdentityReader::USER, user)))
    }

    /// Builds the reader of the user, session and conversation of requests. `env` returns the value of an
    /// environment variable.
    pub fn reader(&self, env: impl Environment) -> Result<IdentityReader, UnreadableSecret> {
        let secret = ConfiguredSecret::resolve_any(self.hash_secret(), env)?;
        let secret = secret
            .as_ref()
            .map_or_else(process_secret, SecretValue::digest);
        Ok(IdentityReader {
            mode: self.mode,
            key: PseudonymKey::new(secret),
            user_headers: header_names(&self.user_headers),
            session_headers: header_names(&self.session_headers),
            conversation_headers: header_names(&self.conversation_headers),
        })
    }

    /// The headers that name the session or the conversation.
    pub fn session_names(&self) -> Vec<HeaderName> {
        let mut names = header_names(&self.session_headers);
        names.extend(header_names(&self.conversation_headers));
        names
    }
}

fn header_names(names: &[String]) -> Vec<HeaderName> {
    // The rules have ensured that the names parse.
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// A random secret, drawn once per process so that a reload does not change the hashes.
fn process_secret() -> KeyDigest {
    static SECRET: OnceLock<KeyDigest> = OnceLock::new();
    let draw = || {
        let mut random = [0; 32];
        // Without random numbers, the process has no TLS either, and the hashes can be guessed.
        let _ = SystemRandom::new().fill(&mut random);
        KeyDigest::from_key(&random)
    };
    *SECRET.get_or_init(draw)
}

/// Values, rules and reload class of the section `identities`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = IdentitiesConfig;

    fn check(identities: &IdentitiesConfig, _: &C) -> CheckResult {
        check_names("identities.user_headers", &identities.user_headers)?;
        check_names("identities.session_headers", &identities.session_headers)?;
        check_names(
            "identities.conversation_headers",
            &identities.conversation_headers,
        )
    }

    fn list_secrets<'a>(identities: &'a IdentitiesConfig, list: &mut SecretList<'a>) {
        list.add("identities.secret", identities.hash_secret());
    }
}

/// Checks that the names of headers are valid.
fn check_names(path: &str, names: &[String]) -> CheckResult {
    match names
        .iter()
        .find(|name| name.parse::<HeaderName>().is_err())
    {
        Some(name) => Err(violation_at(
            path,
            format!("`{name}` is not a valid header name"),
        )),
        None => Ok(()),
    }
}
