//! The configuration of discovery sources.

use super::backends::{self, BackendConfig};
use super::secret::Secret;
use super::settings::UsageMode;
use crate::config::violation::{RuleViolation, require, violation_at};
use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_engine::prefill_leg::Role;
use tokenweir_gateway::discovery::kubernetes_settings::KubernetesConfig;

/// A discovery source. It has exactly one of `file`, `dns`, `srv` and `kubernetes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoveryConfig {
    /// File with a list like `backends`, in YAML or JSON. The gateway polls it every second.
    pub file: Option<PathBuf>,
    /// DNS name whose A or else AAAA records are backends, and their port: `NAME:PORT`. Needs the feature
    /// `dns`.
    pub dns: Option<String>,
    /// DNS name whose SRV records are the hosts and ports of backends. Needs the feature `dns`.
    pub srv: Option<String>,
    /// Kubernetes Service or `InferencePool` whose pods are backends. Needs the feature `kubernetes`.
    pub kubernetes: Option<KubernetesConfig>,
    /// Port and path of the metrics pages: `:PORT`, `/PATH` or `:PORT/PATH`. `None`: the default of
    /// `backends[].metrics_url`. Not for `file`.
    pub metrics_url: Option<String>,
    /// Default `api_key` of the discovered backends.
    pub api_key: Option<Secret>,
    /// Default `usage` of the discovered backends.
    pub usage: Option<UsageMode>,
    /// `weight` of the discovered backends. Not for `file`.
    pub weight: Option<u32>,
    /// Default `role` of the discovered backends.
    pub role: Option<Role>,
}

// === impl DiscoveryConfig ===

impl DiscoveryConfig {
    /// Applies the settings of the source to a discovered backend. The values of an entry of a file
    /// take precedence.
    pub fn apply_defaults(&self, backend: BackendConfig) -> BackendConfig {
        BackendConfig {
            metrics_url: backend.metrics_url.clone().or_else(|| self.metrics_url(&backend.url)),
            api_key: backend.api_key.or_else(|| self.api_key.clone()),
            usage: backend.usage.or(self.usage),
            role: backend.role.or(self.role),
            weight: self.weight.unwrap_or(backend.weight),
            ..backend
        }
    }

    /// The URL of the metrics page of a discovered backend. `None`: the source sets no
    /// `metrics_url`, so the default of the backend holds.
    fn metrics_url(&self, backend: &BackendAddress) -> Option<MetricsUrl> {
        let (port, path) = port_and_path(self.metrics_url.as_deref()?)?;
        Some(MetricsUrl::beside(backend, port, path))
    }

    /// The name and the port of `dns`. `None`: `dns` is not set, or has no valid port.
    pub fn dns_host(&self) -> Option<(&str, u16)> {
        let (name, port) = self.dns.as_ref()?.rsplit_once(':')?;
        Some((name, port.parse().ok().filter(|port| *port > 0 && !name.is_empty())?))
    }
}

/// The port and the path in a `metrics_url` of the form `:PORT`, `/PATH` or `:PORT/PATH`. `None`:
/// the text has another form.
fn port_and_path(text: &str) -> Option<(Option<u16>, Option<PathAndQuery>)> {
    let (port, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    let port = match port.strip_prefix(':') {
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
        None if port.is_empty() => None,
        None => return None,
    };
    let path = if path.is_empty() { None } else { Some(path.parse().ok()?) };
    (port.is_some() || path.is_some()).then_some((port, path))
}

/// Checks the rules of `discovery` and returns the first violation.
pub(crate) fn check(sources: &[DiscoveryConfig]) -> Result<(), RuleViolation> {
    for (index, source) in sources.iter().enumerate() {
        let path = |key: &str| format!("discovery.{index}{key}");
        let is_file = source.file.is_some();
        let targets =
            [is_file, source.dns.is_some(), source.srv.is_some(), source.kubernetes.is_some()];
        let targets = targets.into_iter().filter(|is_set| *is_set).count();
        let problem = "a source needs one of `file`, `dns`, `srv` and `kubernetes`";
        require(targets > 0, &path(""), problem)?;
        let problem = "a source has only one of `file`, `dns`, `srv` and `kubernetes`";
        require(targets < 2, &path(""), problem)?;
        if let Some((key, problem)) = source.kubernetes.as_ref().and_then(KubernetesConfig::problem)
        {
            return Err(violation_at(&path(&format!(".kubernetes{key}")), problem));
        }
        let is_host = source.dns.is_none() || source.dns_host().is_some();
        require(is_host, &path(".dns"), "write NAME:PORT: DNS addresses have no port")?;
        if let Some(url) = &source.metrics_url {
            let problem = "not with `file`: write `metrics_url` into the file's entries";
            require(!is_file, &path(".metrics_url"), problem)?;
            let is_valid = port_and_path(url).is_some();
            require(is_valid, &path(".metrics_url"), "write :PORT, /PATH or :PORT/PATH")?;
        }
        if let Some(weight) = source.weight {
            backends::check_weight(&path(".weight"), weight)?;
            let problem = "not with `file`: write the weights into the file's entries";
            require(!is_file, &path(".weight"), problem)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, problem};

    fn problem_of(source: &str) -> String {
        problem(&format!("discovery: [{{ {source} }}]\n")).unwrap_or_default()
    }

    #[test]
    fn a_discovery_source_has_exactly_one_target_and_all_required_keys() {
        for (source, expected) in [
            ("dns: 'vllm.example:8000', weight: 2, usage: passive", ""),
            ("srv: _http._tcp.vllm.example", ""),
            ("file: backends.yaml, api_key: { env: KEY }", ""),
            ("weight: 5", "a source needs one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a, srv: b", "a source has only one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a", "write NAME:PORT: DNS addresses have no port"),
            ("dns: 'a:0'", "write NAME:PORT: DNS addresses have no port"),
            ("dns: a, port: 1", "unknown key `port`"),
            ("srv: a, metrics_url: ':8080/m'", ""),
            ("srv: a, metrics_url: /m", ""),
            ("srv: a, metrics_url: ':8080'", ""),
            ("srv: a, metrics_url: ':0'", "write :PORT, /PATH or :PORT/PATH"),
            ("srv: a, metrics_url: m", "write :PORT, /PATH or :PORT/PATH"),
            ("srv: a, metrics_url: ''", "write :PORT, /PATH or :PORT/PATH"),
            (
                "file: a, metrics_url: /m",
                "not with `file`: write `metrics_url` into the file's entries",
            ),
            ("file: a, weight: 2", "not with `file`: write the weights into the file's entries"),
        ] {
            assert_eq!(problem_of(source), expected, "{source}");
        }
    }

    #[test]
    fn a_discovery_target_is_supported_only_in_builds_with_its_feature() {
        for (target, is_supported) in [
            ("kubernetes: { service: vllm }", cfg!(feature = "kubernetes")),
            ("srv: _http._tcp.vllm.example", cfg!(feature = "dns")),
            ("dns: 'vllm.example:8000'", cfg!(feature = "dns")),
            ("file: backends.yaml", true),
        ] {
            let parsed = parse(&format!("discovery: [{{ {target} }}]"));
            assert_eq!(parsed.unwrap().require_support().is_ok(), is_supported, "{target}");
        }
    }

    #[test]
    fn names_and_ports_of_kubernetes_discovery_are_validated() {
        const NAME: &str = "a name has 1 to 63 characters: lowercase letters, digits and `-`";
        for (source, expected) in [
            ("service: vllm", ""),
            ("service: vllm, namespace: ai, port: http, url: 'http://127.0.0.1:8001'", ""),
            ("service: vllm, port: 8000", ""),
            ("pool: vllm, namespace: ai", ""),
            ("namespace: ai", "write one of `service` and `pool`"),
            ("service: a, pool: b", "write one of `service` and `pool`"),
            ("pool: vllm, port: 8000", "not with `pool`: it has its own target port"),
            ("service: vLLM", NAME),
            ("service: vllm, namespace: 'a/b'", NAME),
            ("service: vllm, port: ''", NAME),
            ("service: vllm, port: 0", "a port is 1 to 65535"),
            (
                "service: vllm, url: 'http://me:key@a'",
                "write http://HOST:PORT or https://HOST:PORT",
            ),
            ("service: vllm, url: '127.0.0.1:8001'", "write http://HOST:PORT or https://HOST:PORT"),
        ] {
            assert_eq!(problem_of(&format!("kubernetes: {{ {source} }}")), expected, "{source}");
        }
        let problem = problem_of("kubernetes: { service: vllm, port: 70000 }");
        assert!(problem.contains("a port is a number from 1 to 65535"), "{problem}");
    }
}
