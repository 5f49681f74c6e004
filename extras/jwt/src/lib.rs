//! Access for clients with signed tokens (JWT, RFC 7519) of `OpenID` Connect issuers. A valid token acts like
//! an API key of a tenant in the key file.
//!
//! ```text
//! request ─► verified tokens ─► token ─► issuer: keys ─► signature ─► claims ─► tenant, tier, models, limits
//!                                           ▲
//!              file, URL or discovery ──────┘ read in the background, never by a request
//! ```
//!
//! `ring` checks the signatures, because TLS already uses it. A JWT library would add a second cryptography
//! library, read the clock itself, and convert claims of wrong types.

mod claims;
mod issuer;
mod refusal;
pub mod rows;
mod section;
mod signature;
mod token;
mod verified;

#[cfg(test)]
mod tests;

pub use claims::GrantContext;
pub use issuer::TASK;
pub use issuer::{IssuerStatus, JwksFileError};
pub use refusal::Refusal;
pub use section::{JwtConfig, JwtIssuerConfig};

use arc_swap::ArcSwap;
use claims::GrantRules;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use issuer::{Issuer, OutboundClient};
use refusal::RefusalCounts;
use rows::JwtStatus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use token::Token;
use tokenweir_net::supervise::SupervisedTask;
use tokenweir_option::prelude::*;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::access::{
    ApiKey, ApiKeys, KeyDigest, TokenRefusal, TokenSource, presented_key,
};
use verified::{VerifiedToken, VerifiedTokens};

/// Checks the tokens of the configured issuers.
pub struct TokenVerifier {
    issuers: Vec<TrustedIssuer>,
    context: ArcSwap<GrantContext>,
    /// Number of changes of `context`.
    context_version: AtomicU64,
    verified: Mutex<VerifiedTokens>,
    refusals: RefusalCounts,
    /// The tasks that read the keys of the issuers.
    _tasks: Vec<SupervisedTask>,
}

/// An issuer, and the rules for its tokens.
struct TrustedIssuer {
    issuer: Arc<Issuer>,
    rules: GrantRules,
}

/// Maximum length of a token in bytes. A longer one is refused before it is hashed.
const MAX_TOKEN_BYTES: usize = 16 << 10;

impl TokenVerifier {
    /// Reads key files and starts the background tasks that read keys. `None`: no issuer is configured. Must be
    /// called inside a Tokio runtime.
    pub fn start(
        config: &JwtConfig,
        context: GrantContext,
    ) -> Result<Option<Arc<Self>>, JwksFileError> {
        Self::start_with(config, context, &issuer::client())
    }

    fn start_with(
        config: &JwtConfig,
        context: GrantContext,
        client: &OutboundClient,
    ) -> Result<Option<Arc<Self>>, JwksFileError> {
        if config.issuers.is_empty() {
            return Ok(None);
        }
        let mut issuers = Vec::new();
        let mut tasks = Vec::new();
        for settings in &config.issuers {
            // The checks of the configuration have already verified the URLs.
            let Ok(source) = settings.key_source() else {
                continue;
            };
            let issuer = Issuer::open(&settings.issuer, source)?;
            tasks.push(issuer.spawn(client.clone(), config.refresh_interval));
            issuers.push(TrustedIssuer {
                issuer,
                rules: GrantRules::new(settings),
            });
        }
        Ok(Some(Arc::new(Self {
            issuers,
            context: ArcSwap::from_pointee(context),
            context_version: AtomicU64::new(0),
            verified: Mutex::default(),
            refusals: RefusalCounts::default(),
            _tasks: tasks,
        })))
    }

    /// Replaces the settings of other sections that decide about the rights of tokens. Each token is verified again.
    fn set_context(&self, context: GrantContext) {
        self.context.store(Arc::new(context));
        self.context_version.fetch_add(1, Ordering::SeqCst);
    }

    fn issuer_statuses(&self, now: Instant) -> Vec<IssuerStatus> {
        self.issuers
            .iter()
            .map(|trusted| trusted.issuer.status(now))
            .collect()
    }

    /// Sum of the versions of all keys and of the context. It changes whenever one of them changes.
    fn version(&self) -> u64 {
        let issuers = self.issuers.iter();
        let keys: u64 = issuers.map(|trusted| trusted.issuer.version()).sum();
        keys + self.context_version.load(Ordering::SeqCst)
    }

    /// Checks a token that is not among the verified tokens, and returns its key.
    fn verify(
        &self,
        text: &[u8],
        digest: KeyDigest,
        keys: &Arc<ApiKeys>,
        now: u64,
    ) -> Result<VerifiedToken, Refusal> {
        let token = Token::parse(text)?;
        let named = |trusted: &&TrustedIssuer| *trusted.issuer.name == *token.claims.iss;
        let trusted = self.issuers.iter().find(named).ok_or(Refusal::Issuer)?;
        let TrustedIssuer { issuer, rules } = trusted;
        let checked = issuer.check_signature(&token, &rules.algorithms);
        // Some issuers replace a key without changing its id, so a wrong signature also triggers a refresh.
        if matches!(checked, Err(Refusal::UnknownKey | Refusal::Signature)) {
            issuer.request_refresh(clock::now());
        }
        checked?;
        rules.check_claims(&token.claims, now)?;
        let grant = rules.grant(&token, digest, keys, &self.context.load())?;
        let key = keys.key_of_token(&grant).ok_or(Refusal::Tenant)?;
        Ok(VerifiedToken {
            key,
            expires: token.claims.exp,
        })
    }

    fn check(
        &self,
        text: &[u8],
        keys: &Arc<ApiKeys>,
        now: SystemTime,
    ) -> Option<Result<Arc<ApiKey>, Refusal>> {
        if memchr::memchr_iter(b'.', text).count() != 2 {
            return None;
        }
        if text.len() > MAX_TOKEN_BYTES {
            return token::begins_as_header(text).then_some(Err(Refusal::Malformed));
        }
        let digest = KeyDigest::from_key(text);
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The version is read before the keys and the context, so that a token that older ones verified is not
        // stored under a newer version.
        let version = self.version();
        let found = lock(&self.verified).find(&digest, keys, version, now);
        if found.is_some() {
            return found.map(Ok);
        }
        if !token::begins_as_header(text) {
            return None;
        }
        let verified = match self.verify(text, digest, keys, now) {
            Ok(verified) => verified,
            Err(refusal) => return Some(Err(refusal)),
        };
        let key = verified.key.clone();
        lock(&self.verified).insert(&digest, keys, version, verified);
        Some(Ok(key))
    }
}

impl TokenSource for TokenVerifier {
    fn authenticate(
        &self,
        headers: &HeaderMap,
        keys: &Arc<ApiKeys>,
        now: SystemTime,
    ) -> Option<Result<Arc<ApiKey>, TokenRefusal>> {
        let mut result = self.check(presented_key(headers)?, keys, now)?;
        if headers.get_all(AUTHORIZATION).iter().count() > 1 {
            result = Err(Refusal::Malformed);
        }
        Some(result.map_err(|refusal| self.refusals.count(refusal)))
    }
}

/// Access with tokens as an option.
#[derive(Default)]
pub struct JwtOption(OnceLock<Arc<TokenVerifier>>);

impl GatewayOption for JwtOption {
    type Settings = JwtConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn join(
        self: &Arc<Self>,
        settings: JwtConfig,
        gateway: &ProxyContext,
        _: &mut GatewayParts,
    ) -> Result<(), StartError> {
        let started = TokenVerifier::start(&settings, GrantContext::new(&gateway.settings));
        let tokens = started.map_err(in_part("cannot start the check of tokens (jwt)"))?;
        if let Some(tokens) = tokens {
            gateway.state.access.accept_tokens(tokens.clone());
            let _ = self.0.set(tokens);
        }
        Ok(())
    }

    fn reload(self: Arc<Self>, _: JwtConfig, _: &StartContext<'_>) -> Result<Change, StartError> {
        Ok(Box::new(move |reloaded| {
            if let Some(tokens) = self.0.get() {
                tokens.set_context(GrantContext::new(reloaded.requests));
            }
        }))
    }

    fn obstacles(settings: &JwtConfig, _: &StartContext<'_>) -> Vec<Obstacle> {
        let issuers = settings.issuers.iter().enumerate();
        let unusable = issuers.filter_map(|(index, issuer)| {
            let error = issuer::check_file(&issuer.key_source().ok()?).err()?;
            Some(Obstacle {
                path: format!("jwt.issuers.{index}.jwks_file"),
                error: error.into(),
            })
        });
        unusable.collect()
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        if let Some(tokens) = self.0.get() {
            status.blocks.add(JwtStatus {
                issuers: tokens.issuer_statuses(now),
                refused: tokens.refusals.list(),
            });
        }
    }
}
