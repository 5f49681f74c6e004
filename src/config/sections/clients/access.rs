//! The section `access`: access control. Tenants and keys are in a separate file so that it can be a
//! Kubernetes Secret and can change without the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::{Permission, Permissions};
use tokenweir_protocol::settings;
use tokenweir_request::access::{Cors, KeyDigest, KeyFile, QuotaRegistry, SaltKey, cors};
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Environment, ReloadClass, Secret, SecretList,
    UnreadableSecret, file_path, require, violation_at, violation_of,
};

settings! {
    /// Authentication and permissions of clients and operators.
    #[derive(Default, Eq)]
    pub struct AccessConfig {
        /// File of tenants and keys. `None`: clients need no key.
        pub keys_file: Option<PathBuf>,
        /// CORS: the origins of web pages that may read responses.
        pub cors: cors::CorsSettings,
        /// Host names, besides `localhost` and addresses, for which the admin listener answers without
        /// a token.
        pub admin_hosts: Vec<String>,
        /// Token that requests to the admin listener need. `None`: no token.
        pub admin_token: Option<Secret>,
        /// Whether `/metrics` and the scaler of KEDA need no token although `admin_token` is set.
        pub unauthenticated_metrics: bool,
        /// Engine-control fields that every client may use; tenants and models have their own lists.
        /// See docs/operate/security.md.
        pub allow: Vec<Permission>,
        /// Secret, the same at all gateways. The gateway derives the `cache_salt` of a request from it,
        /// the tenant and the client's own salt, so that tenants do not share cached prefixes. `None`: the
        /// client's own salt.
        pub cache_salt_secret: Option<Secret>,
    }
}

/// Values, rules and reload class of the section `access`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = AccessConfig;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(access: &AccessConfig, _: &C) -> CheckResult {
        access.check()
    }

    fn list_secrets<'a>(access: &'a AccessConfig, list: &mut SecretList<'a>) {
        list.add("access.admin_token", access.admin_token_secret());
        list.add("access.cache_salt_secret", access.salt_secret());
    }
}

impl AccessConfig {
    fn check(&self) -> CheckResult {
        file_path("access.keys_file", self.keys_file.as_deref())?;
        if self.cache_salt_secret.is_some() && self.keys_file.is_none() {
            let problem = "salts are derived from tenants, which need access.keys_file: set it";
            return Err(violation_of(
                ["access.cache_salt_secret", "access.keys_file"],
                problem,
            ));
        }
        for (index, name) in self.admin_hosts.iter().enumerate() {
            let problem =
                "write a host name without a scheme and port, such as gateway.example.com";
            require(
                is_host_name(name),
                &format!("access.admin_hosts.{index}"),
                problem,
            )?;
        }
        if let Some(index) = self.cors.stray() {
            let problem = "write `*` or an origin as browsers send it, such as https://example.com";
            return Err(violation_at(
                &format!("access.cors.origins.{index}"),
                problem,
            ));
        }
        Ok(())
    }

    fn admin_token_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(
            "the admin token (access.admin_token)",
            self.admin_token.as_ref(),
        )
    }

    fn salt_secret(&self) -> Option<ConfiguredSecret<'_>> {
        let secret = self.cache_salt_secret.as_ref();
        ConfiguredSecret::new("the secret of salts (access.cache_salt_secret)", secret)
    }

    /// Builds the access control of clients. `keys`: the content of the keys file. `None`: clients need no key.
    /// `quotas`: the registry for the quotas of tenants and keys.
    pub fn access_control(
        &self,
        keys: Option<&KeyFile>,
        quotas: Arc<QuotaRegistry>,
        env: impl Environment,
    ) -> Result<AccessControl, UnreadableSecret> {
        let mut access = AccessControl::with_quotas(keys, Cors::new(&self.cors), quotas);
        access.permissions = Permissions::new(&self.allow);
        let salt = ConfiguredSecret::resolve_any(self.salt_secret(), env)?;
        access.salt_key = salt.map(|secret| SaltKey::new(secret.digest()));
        Ok(access)
    }

    /// The digest of the token of the admin listener. `None`: no token is required.
    pub fn admin_token_digest(
        &self,
        env: impl Environment,
    ) -> Result<Option<KeyDigest>, UnreadableSecret> {
        let token = ConfiguredSecret::resolve_any(self.admin_token_secret(), env)?;
        Ok(token.map(|token| token.digest()))
    }
}

fn is_host_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.is_empty() && name.bytes().all(is_plain)
}
