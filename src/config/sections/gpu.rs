//! The configuration of the GPUs of backends.

use super::backends::{self, BackendConfig};
use crate::config::violation::{RuleViolation, violation_at, violation_of};
use crate::gpu::{GpuExporter, GpuScrapeSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_engine::address::MetricsUrl;
use tokenweir_engine::gpu::{GpuIndex, GpuRule};
use tokenweir_request::error::listed;

/// GPUs of the backends, from DCGM exporters, for metrics, verdicts and slow causes. Routing does
/// not use them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// The exporters, at most 100.
    pub exporters: Vec<GpuExporterConfig>,
}

/// A DCGM exporter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuExporterConfig {
    /// URL of the page of the exporter. The path is `/metrics` by default. Host and port are a label value.
    #[serde(
        serialize_with = "backends::write_url",
        deserialize_with = "backends::read_required_metrics_url"
    )]
    #[schemars(with = "String")]
    pub url: MetricsUrl,
    /// The backends to which the GPUs of the exporter belong. Empty: the backend whose name or host
    /// is the pod of the GPU, or else the only one on the host of the exporter.
    #[serde(default)]
    pub backends: Vec<GpuRuleConfig>,
}

/// The GPUs of one backend: those for which all conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuRuleConfig {
    /// Name of the backend.
    pub name: String,
    /// Indexes of the GPUs, as in `CUDA_VISIBLE_DEVICES`; `0.2` is MIG instance 2 of GPU 0. `None`:
    /// all GPUs.
    #[serde(default)]
    pub gpus: Option<Vec<ListedGpu>>,
    /// Kubernetes pod that uses the GPU. `None`: any.
    #[serde(default)]
    pub pod: Option<String>,
    /// Value of the label `Hostname` of the page. `None`: any.
    #[serde(default)]
    pub hostname: Option<String>,
}

/// A GPU as it is listed in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ListedGpu {
    /// An index.
    Index(u16),
    /// An index as text, with a MIG instance.
    Text(String),
}

/// Time between two scrapes of an exporter.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of one scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a page. A longer page is a failure.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Maximum number of exporters, because each page is compared with each backend.
const MAX_EXPORTERS: usize = 100;
/// Maximum length of host and port of an exporter, which are a label value, in bytes.
const MAX_EXPORTER_NAME_BYTES: usize = 128;

impl GpuConfig {
    /// The settings of the scrapes.
    pub fn scrape_settings(&self) -> GpuScrapeSettings {
        let exporter = |exporter: &GpuExporterConfig| GpuExporter {
            url: exporter.url.clone(),
            rules: exporter.backends.iter().map(GpuRuleConfig::rule).collect(),
        };
        GpuScrapeSettings {
            exporters: self.exporters.iter().map(exporter).collect(),
            interval: SCRAPE_INTERVAL,
            timeout: SCRAPE_TIMEOUT,
            max_page: MAX_PAGE_BYTES,
        }
    }
}

impl GpuRuleConfig {
    fn rule(&self) -> GpuRule {
        GpuRule {
            backend: self.name.clone(),
            gpus: self.gpus.as_ref().map(|gpus| gpus.iter().filter_map(ListedGpu::index).collect()),
            pod: self.pod.clone(),
            host_name: self.hostname.clone(),
        }
    }
}

impl ListedGpu {
    /// The index. `None`: the text is no index.
    fn index(&self) -> Option<GpuIndex> {
        match self {
            Self::Index(gpu) => Some(GpuIndex { gpu: *gpu, instance: None }),
            Self::Text(text) => GpuIndex::parse(text),
        }
    }
}

/// Checks the exporters, and that the named backends are configured. Returns the first violation.
/// `are_backends_complete`: whether no further backends can be discovered.
pub(crate) fn check(
    config: &GpuConfig,
    backends: &[BackendConfig],
    are_backends_complete: bool,
) -> Result<(), RuleViolation> {
    if config.exporters.len() > MAX_EXPORTERS {
        return Err(violation_at("gpu.exporters", format!("at most {MAX_EXPORTERS} exporters")));
    }
    for (index, exporter) in config.exporters.iter().enumerate() {
        let path = |key: &str| format!("gpu.exporters.{index}.{key}");
        let name = exporter.url.address.authority();
        if name.len() > MAX_EXPORTER_NAME_BYTES {
            let problem = "host and port have at most 128 bytes, because they are a label value";
            return Err(violation_at(&path("url"), problem.to_owned()));
        }
        let is_same =
            |other: &GpuExporterConfig| other.url.address.authority().eq_ignore_ascii_case(name);
        if let Some(earlier) = config.exporters.iter().take(index).position(is_same) {
            let problem = format!("{name} is already the host of gpu.exporters[{earlier}]");
            return Err(violation_at(&path("url"), problem));
        }
        for (number, rule) in exporter.backends.iter().enumerate() {
            let path = |key: &str| path(&format!("backends.{number}.{key}"));
            let is_named = |backend: &BackendConfig| backend.id().as_str() == rule.name;
            if are_backends_complete && !backends.iter().any(is_named) {
                let known = listed(backends.iter().map(BackendConfig::id));
                let problem = format!("unknown backend `{}`; `backends` has {known}", rule.name);
                return Err(violation_of([&path("name"), "backends"], problem));
            }
            let invalid = |gpus: &Vec<ListedGpu>| gpus.iter().position(|gpu| gpu.index().is_none());
            if let Some(gpu) = rule.gpus.as_ref().and_then(invalid) {
                let problem = "write the index of a GPU, or index.instance such as \"0.2\"";
                return Err(violation_at(&path(&format!("gpus.{gpu}")), problem.to_owned()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};
    use std::path::Path;
    use tokenweir_engine::gpu::GpuIndex;

    fn parse(gpu: &str) -> Result<Config, String> {
        let text = format!("backends: [{{ url: a:1, name: a }}]\ngpu: {gpu}\n");
        let loaded = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    #[test]
    fn exporters_have_rules_with_indexes_and_mig_instances() {
        let gpu = "{ exporters: [{ url: h:9400, backends: [{ name: a, gpus: [0, \"1.2\"] }] }] }";
        let settings = parse(gpu).unwrap().gpu.scrape_settings();
        assert_eq!(settings.exporters[0].url.to_string(), "http://h:9400/metrics");
        let indexes = settings.exporters[0].rules[0].gpus.clone().unwrap();
        assert_eq!(indexes, ["0", "1.2"].map(|index| GpuIndex::parse(index).unwrap()));
    }

    #[test]
    fn mistakes_are_named() {
        for (gpu, problem) in [
            ("{ exporters: [{ url: h:1, backends: [{ name: b }] }] }", "unknown backend `b`"),
            ("{ exporters: [{ url: h:1, backends: [{ name: a, gpus: [x] }] }] }", "index of a GPU"),
            ("{ exporters: [{ url: h:1 }, { url: \"http://H:1/x\" }] }", "already the host"),
            ("{ exporters: [{ url: \"http://u:p@h:1\" }] }", "user name or password"),
            ("{ interval: 10ms }", "its default is fixed now"),
        ] {
            let error = parse(gpu).unwrap_err();
            assert!(error.contains(problem), "{gpu}: {error}");
        }
    }
}
