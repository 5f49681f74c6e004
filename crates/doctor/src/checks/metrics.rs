//! Checks of the metrics page of a backend.

use crate::configuration::GatewaySettings;
use crate::facts::{BackendFacts, DoctorFacts, GatherError};
use crate::finding::Remark;
use tokenweir_engine::engine_metrics::{ENGINE_METRICS, EngineMetric, metrics_flag_hint};

/// The engine metrics that routing by load needs.
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
    Some(Remark {
        remedy: metrics_flag_hint(server).map(Into::into),
        ..Remark::error(observation).because(
            "The gateway routes by its own requests in flight there. It sees neither the queue nor \
             the KV cache.",
        )
    })
}

pub(super) fn engine_metrics(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    let (Some(load), Some(server)) = (backend.load(), backend.server()) else {
        return Vec::new();
    };
    let after_request = "check again after a request: the Rust front end omits unused metrics";
    let after_request = backend.is_rust_front_end().then_some(after_request);
    let remark = |signal: &EngineMetric| {
        let impact = signal.missing_impact?;
        let observation = format!("its metrics page lacks the engine metric {}", signal.name);
        let remark = if REQUIRED_ENGINE_METRICS.contains(&signal.name) {
            Remark::warning(observation)
        } else {
            Remark::note(observation)
        };
        let remedy = (signal.remedy)(server).or(after_request);
        Some(Remark {
            remedy: remedy.map(Into::into),
            ..remark.because(to_sentence(impact))
        })
    };
    let is_missing = |signal: &&EngineMetric| !(signal.is_available)(&load);
    let missing = ENGINE_METRICS.iter().filter(is_missing);
    missing.filter_map(remark).collect()
}

pub(super) fn scrape_time(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let GatewaySettings {
        max_page,
        scrape_timeout,
        ..
    } = facts.config;
    let unread = "The gateway does not read it, and routes without it.";
    let answer = match &backend.metrics {
        Ok(answer) => answer,
        Err(GatherError::TooLarge) => {
            let remark = Remark::error("its metrics page exceeds the limit of the doctor");
            return Some(remark.because(unread));
        }
        Err(_) => return None,
    };
    let size = answer.body.len();
    if size > max_page {
        return Some(
            Remark::error(format!(
                "its metrics page has {size} bytes, more than scrape.max_page ({max_page})"
            ))
            .because(unread)
            .remedy("raise scrape.max_page"),
        );
    }
    let took = answer.took.as_secs_f64();
    (answer.took * 2 > scrape_timeout).then(|| {
        Remark::warning(format!("its metrics page took {took:.1} s"))
            .because(format!(
                "The gateway waits {scrape_timeout:?} (scrape.timeout). vLLM renders the page in \
                 the process that serves requests, so it is as slow for requests."
            ))
            .remedy("give vLLM's API server its own CPU core, or raise --api-server-count")
    })
}

/// Turns a clause into a sentence with a capital letter and a full stop.
fn to_sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}
