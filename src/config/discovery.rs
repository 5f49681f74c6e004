//! Where replicas are found, in the configuration; and the list of them in a file of their own.

use super::kubernetes::Kubernetes;
use super::rules::{self, Broken, broken};
use super::secret::Secret;
use super::settings::UsageMode;
use super::{BackendConfig, ConfigError, backends, file, yaml};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenweir_core::units;

/// A source of replicas. Has exactly one of `file`, `dns`, `srv` and `kubernetes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Discovery {
    /// A file with a list like that of `backends`, in YAML or JSON. It is looked at every second.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// A name: each of its addresses is a replica. Needs `port`.
    #[serde(default)]
    pub dns: Option<String>,
    /// A name whose SRV records are hosts and ports of replicas.
    #[serde(default)]
    pub srv: Option<String>,
    /// A Service whose pods are replicas. Only in programs that are built with Kubernetes.
    #[serde(default)]
    pub kubernetes: Option<Kubernetes>,
    /// The port of those of `dns`.
    #[serde(default)]
    pub port: Option<u16>,
    /// The time from one question of DNS to the next, at least 1s.
    #[serde(default = "usual_interval", with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub every: Duration,
    /// As of a backend: for those that do not have their own.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// As of a backend: for those that do not have their own.
    #[serde(default)]
    pub usage: Option<UsageMode>,
    /// As of a backend: for those that do not have their own.
    #[serde(default, deserialize_with = "backends::read_share")]
    pub continuous_usage: Option<f64>,
    /// As of a backend; those of a file have their own.
    #[serde(default)]
    pub weight: Option<u32>,
}

fn usual_interval() -> Duration {
    Duration::from_secs(5)
}

// === impl Discovery ===

impl Discovery {
    /// What is not said of a replica that was found here is as of all of them.
    pub fn complete(&self, found: BackendConfig) -> BackendConfig {
        BackendConfig {
            api_key: found.api_key.or_else(|| self.api_key.clone()),
            usage: found.usage.or(self.usage),
            continuous_usage: found.continuous_usage.or(self.continuous_usage),
            weight: self.weight.unwrap_or(found.weight),
            ..found
        }
    }
}

/// The list of replicas in a file.
pub fn backends_in(path: &Path) -> Result<Vec<BackendConfig>, ConfigError> {
    let text = file::read(path)?;
    let (backends, _) = yaml::parse::<Vec<BackendConfig>>(&text, path)?;
    match rules::backends_are_usable(&backends) {
        Ok(()) => Ok(backends),
        Err(Broken { problem, .. }) => Err(ConfigError::new(&problem).in_file(path)),
    }
}

/// The first rule that is broken.
pub(super) fn check(sources: &[Discovery]) -> Result<(), Broken> {
    for (index, source) in sources.iter().enumerate() {
        let wrong = |key: &str, problem: &str| {
            Err(broken(&format!("discovery.{index}{key}"), problem.to_owned()))
        };
        let by_name = [&source.dns, &source.srv].into_iter().flatten().count();
        let others = [source.file.is_some(), source.kubernetes.is_some()];
        match by_name + others.into_iter().filter(|is_given| *is_given).count() {
            0 => return wrong("", "say where: write one of `file`, `dns`, `srv` and `kubernetes`"),
            1 => {}
            _ => return wrong("", "one source is one of `file`, `dns`, `srv` and `kubernetes`"),
        }
        if let Some((key, problem)) = source.kubernetes.as_ref().and_then(Kubernetes::problem) {
            return wrong(&format!(".kubernetes{key}"), problem);
        }
        match (&source.dns, source.port) {
            (Some(_), None) => return wrong("", "addresses have no port; write `port`"),
            (None, Some(_)) => return wrong(".port", "only `dns` wants a port"),
            _ => {}
        }
        if source.every < Duration::from_secs(1) {
            return wrong(".every", "this must be 1s or more");
        }
        if source.weight.is_some_and(rules::is_too_heavy) {
            return wrong(".weight", "a weight is at most 1000000");
        }
        if source.weight.is_some() && source.file.is_some() {
            return wrong(".weight", "those of a file have weights of their own");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Overrides};
    use super::*;

    fn problem(source: &str) -> String {
        let text = format!("discovery: [{{ {source} }}]\n");
        let read = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        read.err().map(|error| error.problem().to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_source_is_one_place_and_says_all_that_it_needs() {
        for (source, expected) in [
            ("dns: vllm.example, port: 8000, every: 1s, weight: 2, usage: passive", ""),
            ("srv: _http._tcp.vllm.example", ""),
            ("file: replicas.yaml, api_key: { env: KEY }", ""),
            ("every: 5s", "say where: write one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a, srv: b", "one source is one of `file`, `dns`, `srv` and `kubernetes`"),
            ("dns: a", "addresses have no port; write `port`"),
            ("srv: a, port: 1", "only `dns` wants a port"),
            ("srv: a, every: 10ms", "this must be 1s or more"),
            ("file: a, weight: 2", "those of a file have weights of their own"),
        ] {
            assert_eq!(problem(source), expected, "{source}");
        }
    }

    #[cfg(not(feature = "kubernetes"))]
    #[test]
    fn a_program_that_cannot_ask_kubernetes_says_which_one_can() {
        let problem = problem("kubernetes: { service: vllm }");
        assert!(problem.contains("`cargo build --features kubernetes`"), "{problem}");
    }

    #[cfg(feature = "kubernetes")]
    #[test]
    fn kubernetes_is_asked_by_names_that_it_may_have() {
        const NAME: &str = "a name has 1 to 63 lowercase letters, digits and `-`";
        for (source, expected) in [
            ("service: vllm", ""),
            ("service: vllm, namespace: ai, port: http, url: 'http://127.0.0.1:8001'", ""),
            ("service: vllm, port: 8000", ""),
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

    #[test]
    fn a_list_in_a_file_is_one_of_backends_and_what_it_does_not_say_is_as_of_its_source() {
        let file = std::env::temp_dir().join(format!("tokenweir-list-{}", std::process::id()));
        std::fs::write(
            &file,
            r#"[{"url":"http://a:1","weight":3},{"url":"b:1","usage":"inject"}]"#,
        )
        .unwrap();
        let source = r#"{ "file": "x", "usage": "passive", "api_key": { "env": "KEY" } }"#;
        let source: Discovery = serde_json::from_str(source).unwrap();
        let found: Vec<BackendConfig> =
            backends_in(&file).unwrap().into_iter().map(|it| source.complete(it)).collect();
        assert_eq!((found[0].weight, found[0].usage), (3, Some(UsageMode::Passive)));
        assert_eq!((found[1].weight, found[1].usage), (1, Some(UsageMode::Inject)));
        assert_eq!(found[1].api_key, Some(Secret::Env("KEY".into())));
        std::fs::write(&file, "- url: a:1\n- url: http://A:1\n").unwrap();
        let error = backends_in(&file).unwrap_err().to_string();
        assert!(error.contains("already the url of backends[0]"), "{error}");
        std::fs::remove_file(&file).unwrap();
    }
}
