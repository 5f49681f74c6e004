//! The section `admission`: the queue in which requests wait while every backend of a model is full.

use crate::config::sections::clients::tiers::TiersConfig;
use std::time::Duration;
use tokenweir_gateway::proxy::admission::AdmissionSettings;
use tokenweir_protocol::{settings, units};
use tokenweir_request::slo::Objective;
use tokenweir_routing::admission::{DEFAULT_CLASS, PriorityClasses};
use tokenweir_routing::saturation::{LatencyLimits, SaturationThresholds};
use tokenweir_settings::{
    CheckResult, ConfigSection, at_least_1ms, header_name, require, violation_at, violation_of,
};

settings! {
    /// The admission queue, in which requests wait while every backend of a model is full.
    pub struct AdmissionConfig {
        /// Whether requests wait for a backend with capacity.
        pub enabled: bool,
        /// Number of requests in the engine's queue at which a backend is full. A sixteenth of the running
        /// requests counts instead if that is more. `None`: the queue is not considered.
        pub max_waiting: Option<u32>,
        /// KV cache usage at which a backend is full, 0.01 to 0.99. `None`: the usage is not
        /// considered.
        pub max_kv_usage: Option<f64>,
        /// Greatest number of requests of this gateway at a backend, whatever load it reports. `None`: no
        /// limit.
        pub max_in_flight: Option<u32>,
        /// Maximum number of requests in the queue. 0: no queue.
        pub queue_capacity: usize,
        /// Maximum time of a request in the queue. Then the gateway responds with 429.
        #[serde(with = "units::Duration")]
        pub max_wait: Duration,
        /// Maximum time of a request in the queue while no backend can serve its model, then 503. `None`:
        /// `max_wait`. 0: 503 at once.
        #[serde(with = "units::OptionalDuration")]
        pub max_backend_wait: Option<Duration>,
        /// Tiers, the highest priority first. `default` stands for all others.
        pub classes: Vec<String>,
        /// Header that contains the tenant of a request without a key, for fair queueing. Use only a header that your
        /// own proxy sets. `None`, or without the header: the client's address.
        pub tenant_header: Option<String>,
    }
}

/// Maximum of `max_kv_usage`. A higher usage cannot be distinguished from a full cache.
const MAX_KV_USAGE: f64 = 0.99;

impl AdmissionConfig {
    /// The priority classes, including the default class.
    pub fn classes(&self) -> PriorityClasses {
        PriorityClasses::new(self.classes.iter().map(|name| name.as_str().into()))
    }

    /// The thresholds at which a backend is full, without the limits of objectives.
    pub const fn marks(&self) -> SaturationThresholds {
        SaturationThresholds {
            waiting: self.max_waiting,
            kv_usage: self.max_kv_usage,
            in_flight: self.max_in_flight,
            limits: LatencyLimits {
                ttft: None,
                tpot: None,
            },
        }
    }

    /// The settings of the admission queue. `None`: admission control is disabled.
    pub(crate) fn settings(&self, objectives: &[Objective]) -> Option<AdmissionSettings> {
        if !self.enabled {
            return None;
        }
        Some(AdmissionSettings {
            thresholds: self.marks(),
            queue_capacity: self.queue_capacity,
            max_wait: self.max_wait,
            max_backend_wait: self.max_backend_wait.unwrap_or(self.max_wait),
            objectives: objectives.to_vec(),
            classes: self.classes(),
            // The rules have ensured that the name parses.
            tenant_header: self
                .tenant_header
                .as_ref()
                .and_then(|name| name.parse().ok()),
        })
    }

    /// Checks that each class is a tier and is listed once.
    fn check_classes(&self, tiers: &[String]) -> CheckResult {
        for (index, class) in self.classes.iter().enumerate() {
            let path = format!("admission.classes.{index}");
            if self.classes[..index].contains(class) {
                return Err(violation_at(
                    &path,
                    format!("`{class}` is listed twice: remove one"),
                ));
            }
            if !tiers.contains(class) && class != DEFAULT_CLASS {
                let problem =
                    format!("`{class}` is neither a tier of `tiers` nor `{DEFAULT_CLASS}`");
                return Err(violation_of([&path, "tiers", "tiers.names"], problem));
            }
        }
        Ok(())
    }
}

impl Default for AdmissionConfig {
    /// A backend is full at 4 waiting requests or 97 % KV usage. 1,024 requests wait up to 30 s.
    fn default() -> Self {
        let thresholds = SaturationThresholds::default();
        Self {
            enabled: true,
            max_waiting: thresholds.waiting,
            max_kv_usage: thresholds.kv_usage,
            max_in_flight: thresholds.in_flight,
            queue_capacity: 1_024,
            max_wait: Duration::from_secs(30),
            max_backend_wait: None,
            classes: Vec::new(),
            tenant_header: None,
        }
    }
}

/// Values, rules and reload class of the section `admission`.
pub struct Section;

impl<C: AsRef<TiersConfig>> ConfigSection<C> for Section {
    type Values = AdmissionConfig;

    fn check(admission: &AdmissionConfig, config: &C) -> CheckResult {
        at_least_1ms("admission.max_wait", admission.max_wait)?;
        header_name("admission.tenant_header", admission.tenant_header.as_ref())?;
        let problem = "this must be 1 or more, or null for no threshold";
        require(
            admission.max_waiting != Some(0),
            "admission.max_waiting",
            problem,
        )?;
        require(
            admission.max_in_flight != Some(0),
            "admission.max_in_flight",
            problem,
        )?;
        let is_usage = |usage: f64| (0.01..=MAX_KV_USAGE).contains(&usage);
        let problem = "this must be between 0.01 and 0.99, or null for no threshold";
        require(
            admission.max_kv_usage.is_none_or(is_usage),
            "admission.max_kv_usage",
            problem,
        )?;
        admission.check_classes(&config.as_ref().names)
    }
}
