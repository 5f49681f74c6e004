//! The settings of a Kubernetes Service, or of an `InferencePool`, as a discovery source.

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_engine::address::has_valid_port;
use tokenweir_protocol::settings_entry;

settings_entry! {
    /// A Kubernetes Service or an `InferencePool` whose pods are backends. It has one of `service` and `pool`.
    #[derive(Eq)]
    pub struct KubernetesConfig {
        /// Name of the Service.
        pub service: Option<String>,
        /// Name of the `InferencePool` of the Gateway API (`inference.networking.k8s.io/v1`). Its first target
        /// port is that of the backends.
        pub pool: Option<String>,
        /// Namespace of the Service or pool. `None`: the namespace of the gateway.
        pub namespace: Option<String>,
        /// Port of the pods: a number, or its name in the Service. `None`: the only port of the
        /// Service. Not for `pool`.
        pub port: Option<PodPort>,
        /// URL of the API server, without credentials. `None`: the API server of the cluster, or of
        /// `KUBECONFIG`.
        pub url: Option<String>,
    }
}

/// The port of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a port is a number from 1 to 65535, or its name in the Service"
)]
pub enum PodPort {
    // The doc comment is the description in the JSON Schema. The Service need not list this port.
    /// The port number.
    Number(u16),
    /// The name of the port in the Service.
    Name(String),
}

/// Maximum length of the name of a Service, a namespace or a port, in bytes.
const MAX_LABEL_BYTES: usize = 63;

impl KubernetesConfig {
    /// The first invalid key of this section, and its problem. `None`: all keys are valid. The key
    /// is a suffix of the path of the section, such as `.port`.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        const NAME: &str = "a name has 1 to 63 characters: lowercase letters, digits and `-`";
        let is_invalid = |name: Option<&str>| name.is_some_and(|name| !is_dns_label(name));
        if self.service.is_some() == self.pool.is_some() {
            return Some(("", "write one of `service` and `pool`"));
        }
        if is_invalid(self.service.as_deref()) {
            return Some((".service", NAME));
        }
        if is_invalid(self.pool.as_deref()) {
            return Some((".pool", NAME));
        }
        if self.pool.is_some() && self.port.is_some() {
            return Some((".port", "not with `pool`: it has its own target port"));
        }
        if is_invalid(self.namespace.as_deref()) {
            return Some((".namespace", NAME));
        }
        match &self.port {
            Some(PodPort::Number(0)) => return Some((".port", "a port is 1 to 65535")),
            Some(PodPort::Name(name)) if !is_dns_label(name) => return Some((".port", NAME)),
            _ => {}
        }
        let is_url = self.server().is_some() == self.url.is_some();
        (!is_url).then_some((".url", "write http://HOST:PORT or https://HOST:PORT"))
    }

    /// The name of the Service or of the pool.
    #[cfg(feature = "kubernetes")]
    pub(super) fn name(&self) -> &str {
        self.service
            .as_deref()
            .or(self.pool.as_deref())
            .unwrap_or_default()
    }

    /// The configured API server. `None`: `url` is not set or is invalid.
    pub fn server(&self) -> Option<Uri> {
        let url: Uri = self.url.as_deref()?.parse().ok()?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        // Credentials are invalid here, because `/config` would show them.
        let has_user = url
            .authority()
            .is_none_or(|authority| authority.as_str().contains('@'));
        (is_http && !has_user && has_valid_port(&url)).then_some(url)
    }
}

fn is_dns_label(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_LABEL_BYTES).contains(&name.len()) && name.chars().all(is_plain)
}
