//! The section `jwt`: access of clients by signed tokens.

use crate::issuer::{KeySource, KeysUrl};
use crate::signature::Algorithm;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_protocol::{settings, settings_entry, units};
use tokenweir_settings::{
    CheckResult, ConfigSection, KnownTenants, ReloadClass, file_path, require, violation_at,
    violation_of,
};

settings! {
    /// Access of clients by signed tokens (JWT) of issuers, in addition to keys. Needs `access.keys_file`, which has
    /// the tenants.
    #[derive(Eq)]
    pub struct JwtConfig {
        /// The issuers, up to 20. Empty: no tokens.
        pub issuers: Vec<JwtIssuerConfig>,
        /// Time between two reads of the keys of an issuer by URL. An unknown key id or a wrong signature causes one
        /// more, at most every 10 s.
        #[serde(with = "units::Duration")]
        pub refresh_interval: Duration,
    }
}

settings_entry! {
    /// An issuer of tokens.
    #[derive(Eq)]
    pub struct JwtIssuerConfig {
        /// The claim `iss` of its tokens. Without `jwks_url` and `jwks_file`, the URL of its discovery
        /// (`/.well-known/openid-configuration` is appended).
        pub issuer: String,
        /// Tokens must have one of these in their claim `aud`.
        pub audiences: Vec<String>,
        /// URL of its keys (JWKS). `None`: discovery.
        #[serde(default)]
        pub jwks_url: Option<String>,
        /// File of its keys (JWKS), read again when it changes. `None`: discovery.
        #[serde(default)]
        pub jwks_file: Option<PathBuf>,
        /// Accepted algorithms of signatures.
        #[serde(default = "all_algorithms")]
        pub algorithms: Vec<Algorithm>,
        /// Clients to which tokens may be issued: all of the claims `azp` and `client_id` of a token must be in the
        /// list, and one must be there. Empty: all clients.
        #[serde(default)]
        pub clients: Vec<String>,
        /// Tenant of tokens that name no tenant of the keys file. `None`: they are refused.
        #[serde(default)]
        pub default_tenant: Option<String>,
        /// The names of claims.
        #[serde(default)]
        pub claims: ClaimNames,
    }
}

settings! {
    /// The names of the claims that state what a token grants: a name, or a JSON pointer such as
    /// `/realm_access/tenant`. `None`: no claim states it.
    #[derive(Eq)]
    pub struct ClaimNames {
        /// Name of the tenant.
        pub tenant: Option<String>,
        /// Tier of the requests, one of `tiers`. It takes precedence over that of the tenant.
        pub tier: Option<String>,
        /// Models, as a list or separated by spaces. Only those that the tenant may use are allowed.
        pub models: Option<String>,
        /// Limits of the subject, with the names of `limits` in the keys file. Those of the tenant also apply.
        pub limits: Option<String>,
    }
}

/// Maximum number of issuers, because each has its own task.
const MAX_ISSUERS: usize = 20;
/// Minimum of `jwt.refresh_interval`.
const MIN_REFRESH: Duration = Duration::from_secs(10);

fn all_algorithms() -> Vec<Algorithm> {
    Algorithm::ALL.to_vec()
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            issuers: Vec::new(),
            refresh_interval: Duration::from_mins(5),
        }
    }
}

impl Default for ClaimNames {
    fn default() -> Self {
        Self {
            tenant: Some("tenant".to_owned()),
            tier: None,
            models: None,
            limits: None,
        }
    }
}

impl<C: KnownTenants> ConfigSection<C> for JwtConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(jwt: &JwtConfig, config: &C) -> CheckResult {
        if !jwt.issuers.is_empty() && !config.has_tenants() {
            let problem = "tokens belong to tenants, which are in access.keys_file: set it";
            return Err(violation_of(["jwt.issuers", "access.keys_file"], problem));
        }
        let problem = "at most 20 issuers";
        require(jwt.issuers.len() <= MAX_ISSUERS, "jwt.issuers", problem)?;
        let is_long = jwt.refresh_interval >= MIN_REFRESH;
        let problem = "this must be 10s or more";
        require(is_long, "jwt.refresh_interval", problem)?;
        for (index, issuer) in jwt.issuers.iter().enumerate() {
            let path = format!("jwt.issuers.{index}");
            issuer.check(&path)?;
            let mut earlier = jwt.issuers.iter().take(index);
            let is_first = earlier.all(|other| other.issuer != issuer.issuer);
            let problem = "duplicate issuer: another entry has it";
            require(is_first, &format!("{path}.issuer"), problem)?;
        }
        Ok(())
    }
}

impl JwtIssuerConfig {
    fn check(&self, path: &str) -> CheckResult {
        let problem = "write the claim `iss` of the tokens";
        require(!self.issuer.is_empty(), &format!("{path}.issuer"), problem)?;
        let problem =
            "write at least one audience: without one, tokens for other services would be accepted";
        let audiences = format!("{path}.audiences");
        let is_named = |audience: &String| !audience.is_empty();
        let has_audience = !self.audiences.is_empty() && self.audiences.iter().all(is_named);
        require(has_audience, &audiences, problem)?;
        let problem = "write at least one algorithm, or leave it out for all";
        let algorithms = format!("{path}.algorithms");
        require(!self.algorithms.is_empty(), &algorithms, problem)?;
        let file = format!("{path}.jwks_file");
        file_path(&file, self.jwks_file.as_deref())?;
        if self.jwks_url.is_some() && self.jwks_file.is_some() {
            return Err(violation_at(
                &file,
                "write `jwks_url` or `jwks_file`, not both",
            ));
        }
        let url = match self.jwks_url {
            Some(_) => format!("{path}.jwks_url"),
            None => format!("{path}.issuer"),
        };
        self.key_source()
            .map_err(|problem| violation_at(&url, problem))?;
        Ok(())
    }

    /// Where the keys of the issuer come from.
    pub(super) fn key_source(&self) -> Result<KeySource, &'static str> {
        match (&self.jwks_file, &self.jwks_url) {
            (Some(file), _) => Ok(KeySource::File(file.clone())),
            (None, Some(url)) => KeysUrl::parse(url).map(KeySource::Url),
            (None, None) => KeysUrl::of_discovery(&self.issuer).map(KeySource::Discovery),
        }
    }
}
