//! The configuration of discovery sources.

pub(in crate::config) mod kubernetes;

use super::backends::{self, BackendConfig};
use super::secret::Secret;
use super::settings::UsageMode;
use crate::config::violation::{RuleViolation, violation_at, violation_of};
use http::uri::PathAndQuery;
use kubernetes::KubernetesConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::{BackendAddress, MetricsUrl};
use tokenweir_core::prefill_leg::Role;
use tokenweir_core::units;

/// A discovery source. It has exactly one of `file`, `dns`, `srv` and `kubernetes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscoveryConfig {
    /// File with a list like `backends`, in YAML or JSON. The gateway polls it every second.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// DNS name whose A or else AAAA records are backends. Needs `port`, and the feature `dns`.
    #[serde(default)]
    pub dns: Option<String>,
    /// DNS name whose SRV records are the hosts and ports of backends. Needs the feature `dns`.
    #[serde(default)]
    pub srv: Option<String>,
    /// Kubernetes Service or `InferencePool` whose pods are backends. Needs the feature `kubernetes`.
    #[serde(default)]
    pub kubernetes: Option<KubernetesConfig>,
    /// Port of the backends of `dns`.
    #[serde(default)]
    pub port: Option<u16>,
    /// Port of the metrics pages. `None`: the port of the backend. Not for `file`.
    #[serde(default)]
    pub metrics_port: Option<u16>,
    /// Path of the metrics pages. `None`: `/metrics`, and with the port of the backend also
    /// `/prometheus/metrics`. Not for `file`.
    #[serde(default)]
    pub metrics_path: Option<String>,
    /// Interval of DNS queries, at least 1s.
    #[serde(default = "default_interval", with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub interval: Duration,
    /// Default `api_key` of the discovered backends.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// Default `usage` of the discovered backends.
    #[serde(default)]
    pub usage: Option<UsageMode>,
    /// `weight` of the discovered backends. Not for `file`.
    #[serde(default)]
    pub weight: Option<u32>,
    /// Default `role` of the discovered backends.
    #[serde(default)]
    pub role: Option<Role>,
}

fn default_interval() -> Duration {
    Duration::from_secs(5)
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

    /// The metrics page of a discovered backend. `None`: a known path of the backend.
    fn metrics_url(&self, backend: &BackendAddress) -> Option<MetricsUrl> {
        let path = self.metrics_path.as_deref().and_then(|path| path.parse().ok());
        let is_set = self.metrics_port.is_some() || path.is_some();
        is_set.then(|| MetricsUrl::beside(backend, self.metrics_port, path))
    }
}

/// Checks the rules of `discovery` and returns the first violation.
pub(crate) fn check(sources: &[DiscoveryConfig]) -> Result<(), RuleViolation> {
    for (index, source) in sources.iter().enumerate() {
        let path = |key: &str| format!("discovery.{index}{key}");
        let fail = |key: &str, problem: &str| Err(violation_at(&path(key), problem.to_owned()));
        let dns_targets = [&source.dns, &source.srv].into_iter().flatten().count();
        let other_targets = [source.file.is_some(), source.kubernetes.is_some()];
        match dns_targets + other_targets.into_iter().filter(|is_set| *is_set).count() {
            0 => return fail("", "a source needs one of `file`, `dns`, `srv` and `kubernetes`"),
            1 => {}
            _ => {
                return fail("", "a source has only one of `file`, `dns`, `srv` and `kubernetes`");
            }
        }
        if let Some((key, problem)) = source.kubernetes.as_ref().and_then(KubernetesConfig::problem)
        {
            return fail(&format!(".kubernetes{key}"), problem);
        }
        match (&source.dns, source.port) {
            (Some(_), None) => return fail("", "`dns` needs `port`: DNS addresses have none"),
            (None, Some(_)) => {
                let problem = "only `dns` has a port: remove this key";
                return Err(violation_of([&path(".port"), &path(".dns")], problem));
            }
            _ => {}
        }
        let is_path = |path: &str| path.starts_with('/') && path.parse::<PathAndQuery>().is_ok();
        if source.metrics_path.as_deref().is_some_and(|path| !is_path(path)) {
            return fail(".metrics_path", "a path begins with `/` and has no spaces");
        }
        if source.metrics_port == Some(0) {
            return fail(".metrics_port", "a port is 1 to 65535");
        }
        for (key, is_set) in [
            (".metrics_port", source.metrics_port.is_some()),
            (".metrics_path", source.metrics_path.is_some()),
        ] {
            if is_set && source.file.is_some() {
                return fail(key, "not with `file`: write `metrics_url` into the file's entries");
            }
        }
        if source.interval < Duration::from_secs(1) {
            return fail(".interval", "this must be 1s or more");
        }
        if source.weight.is_some_and(backends::is_weight_too_large) {
            return fail(".weight", "a weight is at most 1000000");
        }
        if source.weight.is_some() && source.file.is_some() {
            return fail(".weight", "not with `file`: write the weights into the file's entries");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};
    use std::path::Path;

    fn problem(source: &str) -> String {
        let text = format!("discovery: [{{ {source} }}]\n");
        let parsed = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        parsed.err().map(|error| error.problem().to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_source_has_exactly_one_target_and_all_required_keys() {
        for (source, expected) in [
            ("dns: vllm.example, port: 8000, interval: 1s, weight: 2, usage: passive", ""),
            ("srv: _http._tcp.vllm.example", ""),
            ("file: backends.yaml, api_key: { env: KEY }", ""),
            ("interval: 5s", "a source needs one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a, srv: b", "a source has only one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a", "`dns` needs `port`: DNS addresses have none"),
            ("srv: a, port: 1", "only `dns` has a port: remove this key"),
            ("srv: a, interval: 10ms", "this must be 1s or more"),
            ("srv: a, metrics_port: 8080, metrics_path: /m", ""),
            ("srv: a, metrics_port: 0", "a port is 1 to 65535"),
            ("srv: a, metrics_path: m", "a path begins with `/` and has no spaces"),
            (
                "file: a, metrics_port: 1",
                "not with `file`: write `metrics_url` into the file's entries",
            ),
            ("file: a, weight: 2", "not with `file`: write the weights into the file's entries"),
        ] {
            assert_eq!(problem(source), expected, "{source}");
        }
    }

    #[test]
    fn a_target_needs_a_build_with_its_feature() {
        for (target, is_supported) in [
            ("kubernetes: { service: vllm }", cfg!(feature = "kubernetes")),
            ("srv: _http._tcp.vllm.example", cfg!(feature = "dns")),
            ("dns: vllm.example, port: 8000", cfg!(feature = "dns")),
            ("file: backends.yaml", true),
        ] {
            let text = format!("discovery: [{{ {target} }}]");
            let parsed = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
            assert_eq!(parsed.unwrap().require_support().is_ok(), is_supported, "{target}");
        }
    }

    #[test]
    fn kubernetes_names_are_validated() {
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
            assert_eq!(problem(&format!("kubernetes: {{ {source} }}")), expected, "{source}");
        }
        let problem = problem("kubernetes: { service: vllm, port: 70000 }");
        assert!(problem.contains("a port is a number from 1 to 65535"), "{problem}");
    }
}
