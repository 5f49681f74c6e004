//! Checks of the metrics page of a backend.

use crate::configuration::GatewaySettings;
use crate::facts::{BackendFacts, DoctorFacts, GatherError};
use crate::finding::{FindingSeverity, Remark};
use tokenweir_engine::engine_metrics::{ENGINE_METRICS, EngineMetric, metrics_flag_hint};

/// The signals that the gateway needs for routing by load.
const REQUIRED_ENGINE_METRICS: [&str; 2] = ["queue", "kv_usage"];

pub(super) fn metrics(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let server = backend.server()?;
    if backend.load().is_some() {
        return None;
    }
    let observation = match &backend.metrics {
        Err(error) => format!("/metrics: {error}"),
        Ok(answer) if !answer.is_ok() => format!("/metrics answers {}", answer.status),
        Ok(_) => "/metrics has no page with the load of an engine".to_owned(),
    };
    let reason = "The gateway routes by its own requests in flight there. It sees neither the \
                  queue nor the KV cache.";
    let remark = Remark::error(observation).because(reason);
    Some(match metrics_flag_hint(server) {
        Some(flag) => remark.remedy(flag),
        None => remark,
    })
}

pub(super) fn engine_metrics(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    let (Some(load), Some(server)) = (backend.load(), backend.server()) else {
        return Vec::new();
    };
    let missing = ENGINE_METRICS
        .iter()
        .filter(|signal| !(signal.is_available)(&load));
    let remark = |signal: &EngineMetric| {
        let severity = if REQUIRED_ENGINE_METRICS.contains(&signal.name) {
            FindingSeverity::Warning
        } else {
            FindingSeverity::Note
        };
        let observation = format!("its metrics page lacks the engine metric {}", signal.name);
        let remark =
            Remark::new(severity, observation).because(to_sentence(signal.missing_impact?));
        Some(match (signal.remedy)(server) {
            Some(unlock) => remark.remedy(unlock),
            None if backend.is_rust_front_end() => remark.remedy(
                "check again after a request: the Rust front end omits unused \
                               metrics",
            ),
            None => remark,
        })
    };
    missing.filter_map(remark).collect()
}

pub(super) fn scrape_time(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let GatewaySettings {
        max_page,
        scrape_timeout,
        ..
    } = facts.config;
    match &backend.metrics {
        Ok(answer) if answer.body.len() > max_page => {
            let size = answer.body.len();
            let observation = format!(
                "its metrics page has {size} bytes, more than scrape.max_page ({max_page})"
            );
            let reason = "The gateway does not read it, and routes without it.";
            Some(
                Remark::error(observation)
                    .because(reason)
                    .remedy("raise scrape.max_page"),
            )
        }
        Ok(answer) if answer.took * 2 > scrape_timeout => {
            let took = answer.took.as_secs_f64();
            let observation = format!("its metrics page took {took:.1} s");
            let reason = format!(
                "The gateway waits {scrape_timeout:?} (scrape.timeout). vLLM renders the page in \
                 the process that serves requests, so it is as slow for requests."
            );
            let remedy = "give vLLM's API server its own CPU core, or raise --api-server-count";
            Some(Remark::warning(observation).because(reason).remedy(remedy))
        }
        Err(GatherError::TooLarge) => {
            let remark = Remark::error("its metrics page exceeds the limit of the doctor");
            Some(remark.because("The gateway does not read it, and routes without it."))
        }
        _ => None,
    }
}

/// Turns a clause into a sentence with a capital letter and a full stop.
fn to_sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}
