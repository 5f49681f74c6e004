//! The rules of the GPUs of backends.

use super::values::unknown_backend;
use crate::config::root::Config;
use crate::config::violation::{RuleViolation, require, violation_at, violation_of};
use tokenweir_gpu::GpuExporter;

/// Maximum number of exporters, because the metrics of each exporter are compared with each backend.
const MAX_EXPORTERS: usize = 100;
/// Maximum length of host and port of an exporter, which are a label value, in bytes.
const MAX_EXPORTER_NAME_BYTES: usize = 128;

/// Checks the exporters, and that the named backends are configured. Returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let exporters = &config.gpu.exporters;
    let problem = format!("at most {MAX_EXPORTERS} exporters");
    require(exporters.len() <= MAX_EXPORTERS, "gpu.exporters", problem)?;
    for (index, exporter) in exporters.iter().enumerate() {
        let path = |key: &str| format!("gpu.exporters.{index}.{key}");
        let name = exporter.url.address.authority();
        let problem = "host and port have at most 128 bytes, because they are a label value";
        require(name.len() <= MAX_EXPORTER_NAME_BYTES, &path("url"), problem)?;
        let is_same =
            |other: &GpuExporter| other.url.address.authority().eq_ignore_ascii_case(name);
        if let Some(earlier) = exporters.iter().take(index).position(is_same) {
            let problem = format!("{name} is already the host of gpu.exporters[{earlier}]");
            return Err(violation_at(&path("url"), problem));
        }
        for (number, rule) in exporter.rules.iter().enumerate() {
            let path = |key: &str| path(&format!("backends.{number}.{key}"));
            if let Some(problem) = unknown_backend(config, &rule.backend) {
                return Err(violation_of([&path("name"), "backends"], problem));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;
    use tokenweir_engine::gpu::GpuIndex;

    #[test]
    fn a_gpu_exporter_assigns_gpu_indexes_and_mig_instances_to_backends() {
        let text = "backends: [{ url: a:1, name: a }]\n\
                    gpu: { exporters: [{ url: h:9400, backends: [{ name: a, gpus: [0, '1.2'] }] }] }";
        let settings = parse(text).unwrap().config.gpu;
        assert_eq!(settings.exporters[0].url.to_string(), "http://h:9400/metrics");
        let indexes = settings.exporters[0].rules[0].gpus.clone().unwrap();
        assert_eq!(indexes, ["0", "1.2"].map(|index| GpuIndex::parse(index).unwrap()));
    }
}
