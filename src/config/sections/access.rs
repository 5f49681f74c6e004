//! The configuration of access control. Tenants and keys are in a separate file so that it can be a
//! Kubernetes Secret and can change without the configuration.

use super::secret::Secret;
use crate::config::violation::{RuleViolation, require, violation_at, violation_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::access::cors;

/// Authentication and permissions of clients and operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
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

/// Checks the rules of `access` and returns the first violation.
pub(crate) fn check(access: &AccessConfig) -> Result<(), RuleViolation> {
    if access.cache_salt_secret.is_some() && access.keys_file.is_none() {
        let problem = "salts are derived from tenants, which need access.keys_file: set it";
        return Err(violation_of(["access.cache_salt_secret", "access.keys_file"], problem));
    }
    let is_name = |name: &String| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    for (index, name) in access.admin_hosts.iter().enumerate() {
        let problem = "write a host name without a scheme and port, such as gateway.example.com";
        require(is_name(name), &format!("access.admin_hosts.{index}"), problem)?;
    }
    match access.cors.stray() {
        Some(index) => {
            let problem = "write `*` or an origin as browsers send it, such as https://example.com";
            Err(violation_at(&format!("access.cors.origins.{index}"), problem))
        }
        None => Ok(()),
    }
}
