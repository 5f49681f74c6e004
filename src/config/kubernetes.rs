//! A Service of Kubernetes as a source of replicas, in the configuration.

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which pods are replicas, and who knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kubernetes {
    /// The name of the Service of the pods.
    pub service: String,
    /// Its namespace. `None`: that of the gateway.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The port of the pods: a number, or its name in the Service. `None`: the only one of the Service.
    #[serde(default)]
    pub port: Option<PodPort>,
    /// The API server, without credentials. `None`: the
    /// cluster's own, or that of `KUBECONFIG`.
    #[serde(default)]
    pub url: Option<String>,
}

/// A port of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a port is a number from 1 to 65535, or its name in the Service")]
pub enum PodPort {
    /// Its number.
    Number(u16),
    /// Its name in the Service.
    Name(String),
}

/// Longest name of a Service, a namespace or a port.
const MAX_NAME: usize = 63;

// === impl Kubernetes ===

impl Kubernetes {
    /// The key that is wrong, and why, if this program can ask Kubernetes at all.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        const NAME: &str = "a name has 1 to 63 lowercase letters, digits and `-`";
        if !cfg!(feature = "kubernetes") {
            return Some((
                "",
                "this program was built without Kubernetes; the container image has it, \
                 and so has `cargo build --features kubernetes`",
            ));
        }
        let is_bad = |name: Option<&str>| name.is_some_and(|name| !is_label(name));
        if is_bad(Some(&self.service)) {
            return Some((".service", NAME));
        }
        if is_bad(self.namespace.as_deref()) {
            return Some((".namespace", NAME));
        }
        match &self.port {
            Some(PodPort::Number(0)) => return Some((".port", "a port is 1 to 65535")),
            Some(PodPort::Name(name)) if !is_label(name) => return Some((".port", NAME)),
            _ => {}
        }
        let is_url = self.server().is_some() == self.url.is_some();
        (!is_url).then_some((".url", "write http://HOST:PORT or https://HOST:PORT"))
    }

    /// The API server, if another than the usual one is asked.
    pub fn server(&self) -> Option<Uri> {
        let url: Uri = self.url.as_deref()?.parse().ok()?;
        let is_known = matches!(url.scheme_str(), Some("http" | "https"));
        // A password would be shown with the configuration.
        let has_password = url.authority().is_none_or(|it| it.as_str().contains('@'));
        Some(url).filter(|_| is_known && !has_password)
    }
}

fn is_label(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain)
}
