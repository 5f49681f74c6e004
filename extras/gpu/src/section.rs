//! The sections `gpu` and `cost`: GPUs of the backends, from DCGM exporters, and their price.

use crate::settings::{GpuExporter, GpuSettings};
use tokenweir_protocol::settings;
use tokenweir_settings::{
    CheckResult, ConfigSection, KnownBackends, ReloadClass, require, violation_at, violation_of,
};

/// Maximum number of exporters, because the metrics of each exporter are compared with each backend.
const MAX_EXPORTERS: usize = 100;
/// Maximum length of host and port of an exporter, which are a label value, in bytes.
const MAX_EXPORTER_NAME_BYTES: usize = 128;

impl<C: KnownBackends> ConfigSection<C> for GpuSettings {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(gpu: &GpuSettings, config: &C) -> CheckResult {
        if gpu.exporters.len() > MAX_EXPORTERS {
            let problem = format!("at most {MAX_EXPORTERS} exporters");
            return Err(violation_at("gpu.exporters", problem));
        }
        for (index, exporter) in gpu.exporters.iter().enumerate() {
            check_host(&gpu.exporters, index, exporter)?;
            for (number, rule) in exporter.rules.iter().enumerate() {
                if let Some(problem) = config.unknown_backend(&rule.backend) {
                    let path = format!("gpu.exporters.{index}.backends.{number}.name");
                    return Err(violation_of([&path, "backends"], problem));
                }
            }
        }
        Ok(())
    }
}

fn check_host(exporters: &[GpuExporter], index: usize, exporter: &GpuExporter) -> CheckResult {
    let path = format!("gpu.exporters.{index}.url");
    let name = exporter.url.address.authority();
    let problem = "host and port have at most 128 bytes, because they are a label value";
    require(name.len() <= MAX_EXPORTER_NAME_BYTES, &path, problem)?;
    let is_same = |other: &GpuExporter| other.url.address.authority().eq_ignore_ascii_case(name);
    match exporters.iter().take(index).position(is_same) {
        Some(earlier) => {
            let problem = format!("{name} is already the host of gpu.exporters[{earlier}]");
            Err(violation_at(&path, problem))
        }
        None => Ok(()),
    }
}

settings! {
    /// Cost of the GPUs, for the metrics of cost. The gateway does not act on it.
    #[derive(Copy, Default)]
    pub struct CostConfig {
        /// Number of GPUs of each backend without its own number. `None`: not known.
        pub gpus: Option<u32>,
        /// Price of one GPU for one hour, in any currency. `None`: not known.
        pub gpu_hour_price: Option<f64>,
    }
}

impl CostConfig {
    /// The values of one backend: its own, or else these.
    #[must_use]
    pub fn of_backend(self, gpus: Option<u32>, gpu_hour_price: Option<f64>) -> Self {
        Self {
            gpus: gpus.or(self.gpus),
            gpu_hour_price: gpu_hour_price.or(self.gpu_hour_price),
        }
    }
}

impl<C> ConfigSection<C> for CostConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(cost: &CostConfig, _: &C) -> CheckResult {
        check_price("cost.gpu_hour_price", cost.gpu_hour_price)
    }
}

/// Checks that the number at `path` is a price.
pub fn check_price(path: &str, price: Option<f64>) -> CheckResult {
    match price {
        Some(price) if !price.is_finite() || price < 0.0 => Err(violation_at(
            path,
            format!("{price} is not a price: write 0 or more"),
        )),
        _ => Ok(()),
    }
}
