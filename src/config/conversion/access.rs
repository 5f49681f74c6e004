//! Access control of clients, and the authorization of the admin listener.

use crate::config::sections::access::AccessConfig;
use crate::config::sections::secret::UnreadableSecret;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::Permissions;
use tokenweir_request::access::{Cors, KeyDigest, KeyFile, SaltKey};

impl AccessConfig {
    /// Builds the access control of clients. `keys`: the content of the keys file. `None`: clients
    /// need no key.
    pub fn access_control(
        &self,
        keys: Option<&KeyFile>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<AccessControl, UnreadableSecret> {
        let mut access = AccessControl::new(keys, Cors::new(&self.cors));
        access.permissions = Permissions::new(&self.allow);
        let salt = self.salt_secret().map(|secret| secret.resolve(env)).transpose()?;
        access.salt_key = salt.map(|secret| SaltKey::new(secret.digest()));
        Ok(access)
    }

    /// The digest of the token of the admin listener. `None`: no token is required.
    pub fn admin_token_digest(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<KeyDigest>, UnreadableSecret> {
        let token = self.admin_token_secret().map(|secret| secret.resolve(env));
        Ok(token.transpose()?.map(|token| token.digest()))
    }
}
