//! The section `discovery`: sources that discover backends while the gateway runs.

use crate::config::backends::section::{BackendConfig, check_weight};
use crate::config::backends::usage::UsageMode;
use http::uri::PathAndQuery;
use std::path::PathBuf;
#[cfg(feature = "options")]
use tokenweir_discovery::kubernetes_settings::KubernetesConfig;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_engine::role::Role;
use tokenweir_protocol::settings_entry;
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Secret, SecretList, require,
};

settings_entry! {
    /// A discovery source. It has exactly one of `file`, `dns`, `srv` and `kubernetes`.
    pub struct DiscoveryConfig {
        /// File with a list like `backends`, in YAML or JSON. The gateway polls it every second.
        pub file: Option<PathBuf>,
        /// DNS name whose A or else AAAA records are backends, and their port: `NAME:PORT`. Needs the feature
        /// `dns`.
        pub dns: Option<String>,
        /// DNS name whose SRV records are the hosts and ports of backends. Needs the feature `dns`.
        pub srv: Option<String>,
        /// Kubernetes Service or `InferencePool` whose pods are backends. Needs the feature `kubernetes`.
        #[cfg(feature = "options")]
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
}

impl DiscoveryConfig {
    /// Applies the settings of the source to a discovered backend. Values in a file entry take precedence.
    pub fn apply_defaults(&self, backend: BackendConfig) -> BackendConfig {
        BackendConfig {
            metrics_url: backend
                .metrics_url
                .clone()
                .or_else(|| self.metrics_url(&backend.url)),
            api_key: backend.api_key.or_else(|| self.api_key.clone()),
            usage: backend.usage.or(self.usage),
            role: backend.role.or(self.role),
            weight: self.weight.unwrap_or(backend.weight),
            ..backend
        }
    }

    /// The URL of the metrics page of a discovered backend. `None`: the source sets no `metrics_url`, so the
    /// backend's default applies.
    fn metrics_url(&self, backend: &BackendAddress) -> Option<MetricsUrl> {
        let (port, path) = port_and_path(self.metrics_url.as_deref()?)?;
        Some(MetricsUrl::beside(backend, port, path))
    }

    /// The name and the port of `dns`. `None`: `dns` is not set, or has no valid port.
    pub fn dns_host(&self) -> Option<(&str, u16)> {
        let (name, port) = self.dns.as_ref()?.rsplit_once(':')?;
        Some((
            name,
            port.parse()
                .ok()
                .filter(|port| *port > 0 && !name.is_empty())?,
        ))
    }
}

impl DiscoveryConfig {
    fn check(&self, path: &str) -> CheckResult {
        let mut targets = 0;
        targets += usize::from(self.file.is_some());
        targets += usize::from(self.dns.is_some());
        targets += usize::from(self.srv.is_some());
        #[cfg(feature = "options")]
        {
            targets += usize::from(self.kubernetes.is_some());
        }
        require(
            targets > 0,
            path,
            "a source needs one of `file`, `dns`, `srv` and `kubernetes`",
        )?;
        let problem = "a source has only one of `file`, `dns`, `srv` and `kubernetes`";
        require(targets < 2, path, problem)?;
        #[cfg(feature = "options")]
        if let Some((key, problem)) = self.kubernetes.as_ref().and_then(KubernetesConfig::problem) {
            let path = format!("{path}.kubernetes{key}");
            return Err(tokenweir_settings::violation_at(&path, problem));
        }
        let is_host = self.dns.is_none() || self.dns_host().is_some();
        let problem = "write NAME:PORT: DNS addresses have no port";
        require(is_host, &format!("{path}.dns"), problem)?;
        if let Some(url) = &self.metrics_url {
            let path = format!("{path}.metrics_url");
            let problem = "not with `file`: write `metrics_url` into the file's entries";
            require(self.file.is_none(), &path, problem)?;
            let is_valid = port_and_path(url).is_some();
            require(is_valid, &path, "write :PORT, /PATH or :PORT/PATH")?;
        }
        if let Some(weight) = self.weight {
            let path = format!("{path}.weight");
            check_weight(&path, weight)?;
            let problem = "not with `file`: write the weights into the file's entries";
            require(self.file.is_none(), &path, problem)?;
        }
        Ok(())
    }
}

impl DiscoveryConfig {
    /// Checks that this program was built with support for the source, which is at `path`.
    pub(crate) fn check_support(&self, path: &str) -> CheckResult {
        #[cfg(all(feature = "options", not(feature = "kubernetes")))]
        require(
            self.kubernetes.is_none(),
            &format!("{path}.kubernetes"),
            "this program was built without Kubernetes: use the container image, or build with \
             `cargo build --features kubernetes`",
        )?;
        let problem = "this program was built without DNS discovery: use a package, or build with \
                       `cargo build --features dns`";
        let is_supported = self.dns.is_none() || cfg!(feature = "dns");
        require(is_supported, &format!("{path}.dns"), problem)?;
        let is_supported = self.srv.is_none() || cfg!(feature = "dns");
        require(is_supported, &format!("{path}.srv"), problem)
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
    let path = if path.is_empty() {
        None
    } else {
        Some(path.parse().ok()?)
    };
    (port.is_some() || path.is_some()).then_some((port, path))
}

/// Values, rules and reload class of the section `discovery`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = Vec<DiscoveryConfig>;

    fn check(sources: &Vec<DiscoveryConfig>, _: &C) -> CheckResult {
        for (index, source) in sources.iter().enumerate() {
            source.check(&format!("discovery.{index}"))?;
        }
        Ok(())
    }

    fn list_secrets<'a>(sources: &'a Vec<DiscoveryConfig>, list: &mut SecretList<'a>) {
        for (index, source) in sources.iter().enumerate() {
            let purpose = format!("the api_key of discovery[{index}]");
            let secret = ConfiguredSecret::new(purpose, source.api_key.as_ref());
            list.add_reloaded(format!("discovery.{index}.api_key"), secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, problem};

    fn problem_of(source: &str) -> String {
        problem(&format!("discovery: [{{ {source} }}]\n")).unwrap_or_default()
    }

    #[test]
    fn a_source_has_exactly_one_target() {
        for (source, expected) in [
            ("dns: 'vllm.example:8000', weight: 2, usage: passive", ""),
            ("srv: _http._tcp.vllm.example", ""),
            ("file: backends.yaml, api_key: { env: KEY }", ""),
            (
                "weight: 5",
                "a source needs one of `file`, `dns`, `srv` and `kubernetes`",
            ),
            (
                "dns: a, srv: b",
                "a source has only one of `file`, `dns`, `srv` and `kubernetes`",
            ),
            ("dns: a", "write NAME:PORT: DNS addresses have no port"),
            ("dns: 'a:0'", "write NAME:PORT: DNS addresses have no port"),
            ("dns: a, port: 1", "unknown key `port`"),
            ("srv: a, metrics_url: ':8080/m'", ""),
            ("srv: a, metrics_url: /m", ""),
            ("srv: a, metrics_url: ':8080'", ""),
            (
                "srv: a, metrics_url: ':0'",
                "write :PORT, /PATH or :PORT/PATH",
            ),
            ("srv: a, metrics_url: m", "write :PORT, /PATH or :PORT/PATH"),
            (
                "srv: a, metrics_url: ''",
                "write :PORT, /PATH or :PORT/PATH",
            ),
            (
                "file: a, metrics_url: /m",
                "not with `file`: write `metrics_url` into the file's entries",
            ),
            (
                "file: a, weight: 2",
                "not with `file`: write the weights into the file's entries",
            ),
        ] {
            assert_eq!(problem_of(source), expected, "{source}");
        }
    }

    #[test]
    fn a_target_needs_its_feature() {
        for (target, is_supported) in [
            (
                "kubernetes: { service: vllm }",
                cfg!(feature = "kubernetes"),
            ),
            ("srv: _http._tcp.vllm.example", cfg!(feature = "dns")),
            ("dns: 'vllm.example:8000'", cfg!(feature = "dns")),
            ("file: backends.yaml", true),
        ] {
            let parsed = parse(&format!("discovery: [{{ {target} }}]"));
            assert_eq!(
                parsed.unwrap().require_support().is_ok(),
                is_supported,
                "{target}"
            );
        }
    }

    #[test]
    fn names_and_ports_of_kubernetes_discovery_are_validated() {
        const NAME: &str = "a name has 1 to 63 characters: lowercase letters, digits and `-`";
        for (source, expected) in [
            ("service: vllm", ""),
            (
                "service: vllm, namespace: ai, port: http, url: 'http://127.0.0.1:8001'",
                "",
            ),
            ("service: vllm, port: 8000", ""),
            ("pool: vllm, namespace: ai", ""),
            ("namespace: ai", "write one of `service` and `pool`"),
            ("service: a, pool: b", "write one of `service` and `pool`"),
            (
                "pool: vllm, port: 8000",
                "not with `pool`: it has its own target port",
            ),
            ("service: vLLM", NAME),
            ("service: vllm, namespace: 'a/b'", NAME),
            ("service: vllm, port: ''", NAME),
            ("service: vllm, port: 0", "a port is 1 to 65535"),
            (
                "service: vllm, url: 'http://me:key@a'",
                "write http://HOST:PORT or https://HOST:PORT",
            ),
            (
                "service: vllm, url: 'http://a:80010'",
                "write http://HOST:PORT or https://HOST:PORT",
            ),
            (
                "service: vllm, url: '127.0.0.1:8001'",
                "write http://HOST:PORT or https://HOST:PORT",
            ),
        ] {
            assert_eq!(
                problem_of(&format!("kubernetes: {{ {source} }}")),
                expected,
                "{source}"
            );
        }
        let problem = problem_of("kubernetes: { service: vllm, port: 70000 }");
        assert!(
            problem.contains("a port is a number from 1 to 65535"),
            "{problem}"
        );
    }
}
