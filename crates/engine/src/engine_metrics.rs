//! The engine metrics that the gateway uses. For each metric, a table states the effect on the gateway if a
//! page lacks the metric, and how to make an engine export it.

use crate::dialect::{EngineKind, EngineLoad};
use std::fmt::Write;
use tokenweir_protocol::named_enum;

/// A metric, or a group of metrics, that a backend's metrics page can contain.
pub struct EngineMetric {
    /// Name that the gateway gives the metric, for example as a label value. Engines use other names.
    pub name: &'static str,
    /// Whether the metrics page from which this load was read contains the metric.
    pub is_available: fn(&EngineLoad) -> bool,
    /// Effect on the gateway if the page lacks the metric. `None`: the pages of healthy backends can lack it,
    /// so the gateway does not warn.
    pub missing_impact: Option<&'static str>,
    /// How to make an engine of this kind export the metric. `None`: no way is known.
    pub remedy: fn(EngineKind) -> Option<&'static str>,
}

/// The metrics that one page contains, as bits in the order of [`ENGINE_METRICS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineMetricSet(u16);

/// All engine metrics that the gateway uses.
pub const ENGINE_METRICS: [EngineMetric; 11] = [
    EngineMetric {
        name: "queue",
        is_available: |load| load.waiting.is_some() && load.running.is_some(),
        missing_impact: Some("requests are routed only by the in-flight count of this gateway"),
        remedy: metrics_flag_hint,
    },
    EngineMetric {
        name: "kv_usage",
        is_available: |load| load.kv_usage.is_some(),
        missing_impact: Some("a full KV cache is detected only by the queue that it causes"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "kv_capacity",
        is_available: |load| load.capacity().is_some(),
        missing_impact: Some(
            "KV cache usage is estimated without the requests sent since the last scrape",
        ),
        remedy: |engine| match engine {
            EngineKind::Vllm => Some("use the Python front end of vLLM, which exports it"),
            _ => None,
        },
    },
    EngineMetric {
        name: "waiting_reason",
        is_available: |load| load.waiting_capacity.is_some(),
        missing_impact: Some("a wait for a LoRA adapter or KV transfer looks like a full KV cache"),
        remedy: |engine| match engine {
            EngineKind::Vllm => Some("upgrade to vLLM 0.20 or later"),
            _ => None,
        },
    },
    EngineMetric {
        name: "preemptions",
        is_available: |load| load.preemptions.is_some(),
        missing_impact: Some("no slow request is attributed to preemption"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "prefix_cache",
        is_available: |load| load.prefix_queries.is_some() && load.prefix_hits.is_some(),
        missing_impact: Some("the hit rate of the prefix cache is unknown"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "tokens",
        is_available: |load| load.prompt_tokens.is_some() && load.generation_tokens.is_some(),
        missing_impact: Some("token rates are known only from the traffic of this gateway"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "queue_time",
        is_available: |load| load.queue_seconds.is_some() && load.queued.is_some(),
        missing_impact: Some("time in the engine's queue is not distinguished from prefill"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "prefill_time",
        is_available: |load| load.prefill_seconds.is_some() && load.prefilled.is_some(),
        missing_impact: Some("prefill is not distinguished from network time"),
        remedy: |_| None,
    },
    EngineMetric {
        name: "sleep_state",
        is_available: |load| load.awake.is_some(),
        missing_impact: None,
        remedy: |_| None,
    },
    EngineMetric {
        name: "lora",
        is_available: |load| load.adapters.is_some(),
        missing_impact: None,
        remedy: |_| None,
    },
];

impl EngineMetricSet {
    /// The metrics that a page with this load contained.
    pub fn from_load(load: &EngineLoad) -> Self {
        let bit = |(index, metric): (usize, &EngineMetric)| {
            u16::from((metric.is_available)(load)) << index
        };
        Self(ENGINE_METRICS.iter().enumerate().map(bit).sum())
    }

    /// All metrics, and whether the page contained each of them.
    pub fn each(self) -> impl Iterator<Item = (&'static EngineMetric, bool)> {
        ENGINE_METRICS
            .iter()
            .enumerate()
            .map(move |(index, metric)| (metric, self.0 >> index & 1 == 1))
    }

    /// The missing metrics with their effects on the gateway, for logs: `no name: effect (remedy); …`. `None`:
    /// the page lacks no metric with such an effect.
    pub fn losses(self, engine: Option<EngineKind>) -> Option<String> {
        let mut losses = String::new();
        for (metric, is_available) in self.each() {
            if let (Some(impact), false) = (metric.missing_impact, is_available) {
                let separator = if losses.is_empty() { "" } else { "; " };
                // Writing to a string cannot fail.
                let _ = write!(losses, "{separator}no {}: {impact}", metric.name);
                if let Some(remedy) = engine.and_then(metric.remedy) {
                    let _ = write!(losses, " ({remedy})");
                }
            }
        }
        (!losses.is_empty()).then_some(losses)
    }
}

/// How to make an engine of this kind export any metrics. `None`: no way is known.
pub fn metrics_flag_hint(engine: EngineKind) -> Option<&'static str> {
    match engine {
        EngineKind::Vllm => Some("start the engine without --disable-log-stats"),
        EngineKind::Sglang => Some("start the engine with --enable-metrics"),
        EngineKind::LlamaCpp => Some("start the engine with --metrics"),
        EngineKind::TensorRtLlm | EngineKind::Tgi | EngineKind::Gateway => None,
    }
}

/// The remedy for a failed scrape, as a text for operators. `None`: no remedy is known.
pub fn scrape_error_hint(error: ScrapeError, engine: Option<EngineKind>) -> Option<&'static str> {
    match error {
        ScrapeError::Connect => Some("check that the gateway can reach the address of the backend"),
        ScrapeError::Timeout => Some("raise scrape.timeout, or find out why the page is slow"),
        ScrapeError::Truncated => {
            Some("find the proxy or backend restart that closes connections within the page")
        }
        ScrapeError::Encoded => {
            Some("disable compression of /metrics in the proxy in front of the backend")
        }
        ScrapeError::Exhausted => {
            Some("raise the gateway's limit of open files (LimitNOFILE, ulimit -n)")
        }
        ScrapeError::TooLarge => Some("raise scrape.max_page, or export fewer series"),
        ScrapeError::Status | ScrapeError::NotUnderstood => engine.and_then(metrics_flag_hint),
    }
}

named_enum! {
    /// Why a scrape failed.
    #[derive(Hash)]
    pub enum ScrapeError {
        /// No connection to the backend could be opened, or the connection broke before a response.
        Connect = "connect",
        /// The page was not complete before the timeout.
        Timeout = "timeout",
        /// The backend answered with a status other than 200.
        Status = "status",
        /// The connection broke in the middle of the page.
        Truncated = "truncated",
        /// The page was compressed, although the gateway did not request compression.
        Encoded = "encoded",
        /// The page was longer than `scrape.max_page`.
        TooLarge = "too_large",
        /// The page lacks the number of running or of waiting requests, which routing needs.
        NotUnderstood = "not_understood",
        /// The gateway had no file descriptor or local port left for a connection. The backend is
        /// not at fault.
        Exhausted = "gateway_exhausted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_metric_has_a_unique_name_and_bit() {
        let names: BTreeSet<&str> = ENGINE_METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ENGINE_METRICS.len());
        assert!(ENGINE_METRICS.len() <= 16, "the bits of EngineMetricSet");
        let load = EngineLoad {
            kv_usage: Some(0.5),
            awake: Some(1.0),
            ..EngineLoad::default()
        };
        let available: Vec<&str> = EngineMetricSet::from_load(&load)
            .each()
            .filter_map(|(metric, is_available)| is_available.then_some(metric.name))
            .collect();
        assert_eq!(available, ["kv_usage", "sleep_state"]);
    }

    #[test]
    fn the_hint_depends_on_the_cause() {
        let hint = |error| scrape_error_hint(error, Some(EngineKind::Vllm)).unwrap();
        for (error, expected) in [
            (ScrapeError::Connect, "address"),
            (ScrapeError::Timeout, "scrape.timeout"),
            (ScrapeError::Truncated, "proxy"),
            (ScrapeError::Encoded, "compression"),
            (ScrapeError::TooLarge, "scrape.max_page"),
            (ScrapeError::Status, "--disable-log-stats"),
            (ScrapeError::NotUnderstood, "--disable-log-stats"),
        ] {
            assert!(hint(error).contains(expected), "{error:?}: {}", hint(error));
            let depends_on_engine =
                matches!(error, ScrapeError::Status | ScrapeError::NotUnderstood);
            assert_eq!(
                hint(error).contains("--disable-log-stats"),
                depends_on_engine,
                "{error:?}"
            );
            assert_eq!(
                scrape_error_hint(error, None).is_none(),
                depends_on_engine,
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_backend_with_all_metrics_causes_no_warning() {
        let page = include_bytes!("../../../tests/wire/metrics/python-metrics-idle.http");
        let load = EngineLoad::read(page);
        assert_eq!(
            EngineMetricSet::from_load(&load).losses(Some(EngineKind::Vllm)),
            None
        );
        let without_capacity = EngineLoad {
            kv_tokens: None,
            blocks: None,
            ..load
        };
        let losses = EngineMetricSet::from_load(&without_capacity)
            .losses(Some(EngineKind::Vllm))
            .unwrap();
        assert_eq!(
            losses,
            "no kv_capacity: KV cache usage is estimated without the requests sent since the last \
             scrape (use the Python front end of vLLM, which exports it)"
        );
    }
}
