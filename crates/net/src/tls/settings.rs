//! What is configured of TLS: only the names of files, never what is in them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// TLS towards clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// The certificate, and those that lead from it to an authority. `None`: no TLS.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The authorities of clients, which then must have a certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether the operators' port has the same certificate. No client certificate is asked for
    /// there.
    pub admin: bool,
}

/// TLS towards servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSettings {
    /// The authorities that are believed. `None`: those of this machine.
    pub ca: Option<PathBuf>,
    /// The gateway's own certificate, and those that lead from it to an authority.
    pub client_cert: Option<PathBuf>,
    /// Its private key.
    pub client_key: Option<PathBuf>,
    /// The name that the certificate of a server must have. `None`: that of its URL.
    pub server_name: Option<String>,
}
