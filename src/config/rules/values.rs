//! Checks the ranges of single values. Each range is stated once, with the keys to which it applies.

use crate::config::root::Config;
use crate::config::sections::backends::BackendConfig;
use crate::config::violation::{RuleViolation, require};
use http::HeaderName;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_request::error::listed;

/// Checks the ranges and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let Config { admission, circuit_breaker: breaker, limits, log, quality, routing, .. } = config;
    let Config { retry, scrape, slow, stalls, streams, timeouts, tracing, .. } = config;
    let durations = [
        ("admission.max_wait", Some(admission.max_wait)),
        ("circuit_breaker.base_ejection_time", Some(breaker.base_ejection_time)),
        ("circuit_breaker.stuck_after", breaker.stuck_after),
        ("limits.body_idle_timeout", Some(limits.body_idle_timeout)),
        ("limits.keep_alive", Some(limits.keep_alive)),
        ("limits.write_timeout", Some(limits.write_timeout)),
        ("scrape.max_interval", Some(scrape.max_interval)),
        ("scrape.min_interval", Some(scrape.min_interval)),
        ("scrape.timeout", Some(scrape.timeout)),
        ("slow.duration", Some(slow.duration)),
        ("slow.tpot", Some(slow.tpot)),
        ("slow.ttft", Some(slow.ttft)),
        ("slow.write_stall", Some(slow.write_stall)),
        ("stalls.min_gap", Some(stalls.min_gap)),
        ("streams.resume.for", streams.resume.window),
        ("timeouts.connect", Some(timeouts.connect)),
        ("timeouts.first_output", timeouts.first_output),
        ("timeouts.idle_connection", Some(timeouts.idle_connection)),
        ("timeouts.response_headers", Some(timeouts.response_headers)),
    ];
    let is_short =
        |limit: &Option<Duration>| limit.is_some_and(|limit| limit < Duration::from_millis(1));
    forbid(&durations, is_short, "this must be 1ms or more")?;
    let counts = [
        ("limits.body", Some(limits.body)),
        ("limits.connections", limits.connections),
        ("limits.connections_per_client", limits.connections_per_client.map(|max| max as usize)),
        ("limits.requests_in_flight", limits.requests_in_flight),
        ("limits.requests_per_client", limits.requests_per_client.map(|max| max as usize)),
        ("scrape.max_page", Some(scrape.max_page)),
    ];
    forbid(&counts, |count| *count == Some(0), "this must be more than 0")?;
    let shares = [
        ("circuit_breaker.failure_ratio", Some(breaker.failure_ratio)),
        ("circuit_breaker.panic_threshold", Some(breaker.panic_threshold)),
        ("continuous_usage", Some(config.continuous_usage)),
        ("retry.budget_ratio", Some(f64::from(retry.budget_ratio))),
        ("tracing.ratio", tracing.ratio),
    ];
    let is_no_share = |share: &Option<f64>| share.is_some_and(|share| !is_share(share));
    forbid(&shares, is_no_share, "this must be between 0 and 1")?;
    let samples = [
        ("log.payloads.sample", log.payloads.sample),
        ("trace_capture.sample", config.trace_capture.sample),
    ];
    let is_no_sample = |sample: &f64| !(*sample > 0.0 && *sample <= 1.0);
    forbid(&samples, is_no_sample, "this must be more than 0 and at most 1")?;
    let weights = [
        ("routing.kv_aware.pressure", routing.kv_aware.pressure),
        ("routing.kv_aware.session", routing.kv_aware.session),
    ];
    let is_no_weight = |weight: &f64| !(weight.is_finite() && *weight >= 0.0);
    forbid(&weights, is_no_weight, "a weight must be 0 or more")?;
    let headers = [
        ("admission.tenant_header", &admission.tenant_header),
        ("tiers.header", &config.tiers.header),
    ];
    let is_no_name = |name: &&Option<String>| {
        name.as_ref().is_some_and(|name| name.parse::<HeaderName>().is_err())
    };
    forbid(&headers, is_no_name, "this is not a valid header name")?;
    let files = [
        ("access.keys_file", &config.access.keys_file),
        ("log.payloads.file", &log.payloads.file),
        ("quality.file", &quality.file),
        ("trace_capture.file", &config.trace_capture.file),
    ];
    let is_no_path =
        |file: &&Option<PathBuf>| file.as_ref().is_some_and(|file| file.as_os_str().is_empty());
    forbid(&files, is_no_path, "write the path of a file, or null")
}

/// Whether a name is short and plain enough for a label of metrics.
pub(super) fn is_label(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=32).contains(&name.len()) && name.chars().all(is_plain)
}

/// Whether a number is from 0 to 1.
pub(super) fn is_share(number: f64) -> bool {
    (0.0..=1.0).contains(&number)
}

/// Returns an error text if no backend has the name. `None`: a backend has it, or a backend may have it
/// later: discovery may find some, and if `backends` is empty, flags or variables may name some.
pub(super) fn unknown_backend(config: &Config, name: &str) -> Option<String> {
    let ids = || config.backends.iter().map(BackendConfig::id);
    let are_complete = !config.backends.is_empty() && config.discovery.is_empty();
    let is_unknown = are_complete && !ids().any(|id| id.as_str() == name);
    is_unknown.then(|| format!("unknown backend `{name}`; `backends` has {}", listed(ids())))
}

/// Returns a violation with the text `problem` for the first of `values` that `is_wrong`. Each value has the
/// path of its key.
fn forbid<T>(
    values: &[(&str, T)],
    is_wrong: impl Fn(&T) -> bool,
    problem: &str,
) -> Result<(), RuleViolation> {
    values.iter().try_for_each(|(path, value)| require(!is_wrong(value), path, problem))
}
