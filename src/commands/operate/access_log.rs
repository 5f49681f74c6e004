//! Reads lines of the access log for `tokenweir explain`.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use tokenweir_request::record::SlowCause;
use tokenweir_top::explanation;

/// Minimum length of the start of a request id that is enough to find a line.
const MIN_ID_PREFIX: usize = 8;

/// Explains each line of the access log on standard input, separated by empty lines. The error names the first
/// line that is not about a request.
pub(super) fn explain_input(has_json: bool) -> Result<Vec<String>, String> {
    let mut explained = Vec::new();
    for line in io::stdin().lines() {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        let line = ended_request(&line)
            .ok_or("standard input: not a JSON line of the access log about an ended request")?;
        if !explained.is_empty() && !has_json {
            explained.push(String::new());
        }
        explained.extend(explain(&line, has_json));
    }
    Ok(explained)
}

/// Explains the newest request in the access log whose id is or begins with `request_id`.
pub(super) fn explain_from(
    log: &Path,
    request_id: &str,
    has_json: bool,
) -> Result<Vec<String>, String> {
    let problem = |error: io::Error| format!("{}: {error}", log.display());
    let mut found = None;
    for line in BufReader::new(File::open(log).map_err(problem)?).lines() {
        let line = line.map_err(problem)?;
        // Most lines are about other requests, so they are skipped unparsed.
        if !line.contains(request_id) {
            continue;
        }
        let is_found = |line: &Value| {
            let id = line["request_id"].as_str().unwrap_or_default();
            id == request_id || (request_id.len() >= MIN_ID_PREFIX && id.starts_with(request_id))
        };
        if let Some(line) = ended_request(&line).filter(is_found) {
            found = Some(line);
        }
    }
    let missing = || format!("{} has no line of the request {request_id}", log.display());
    Ok(explain(&found.ok_or_else(missing)?, has_json))
}

/// An end-of-request line of the access log in JSON. `None`: another line.
fn ended_request(line: &str) -> Option<Value> {
    let line: Value = serde_json::from_str(line).ok()?;
    let is_ended = line["request_id"].is_string() && line["outcome"].is_string();
    is_ended.then_some(line)
}

fn explain(line: &Value, has_json: bool) -> Vec<String> {
    if has_json {
        vec![line.to_string()]
    } else {
        explanation(&decision_of(line))
    }
}

/// Converts an access log line to the document of `/decisions`, with the values that the line has.
fn decision_of(line: &Value) -> Value {
    let mut causes = SlowCause::ALL.into_iter();
    let slow_cause = causes.find(|cause| line["slow_cause"] == cause.as_str());
    json!({
        "request_id": line["request_id"],
        "trace_id": line["trace_id"],
        "tenant": line["tenant"],
        "client": line["client"],
        "backend": line["backend"],
        "policy": line["policy"],
        "reason": line["reason"],
        "phases": phases_of(line),
        "predicted": {
            "ttft_seconds": seconds(&line["predicted_ttft_ms"]),
            "cached_tokens": line["predicted_cached"],
        },
        "actual": {
            "outcome": line["outcome"],
            "duration_seconds": seconds(&line["duration_ms"]),
            "slow_cause": slow_cause,
            "slow_meaning": slow_cause.map(SlowCause::meaning),
            "client_ttft_seconds": seconds(&line["ttft_ms"]),
            "first_answer_seconds": seconds(&line["first_answer_ms"]),
            "input_tokens": line["input_tokens"],
            "cached_tokens": line["cached_tokens"],
            "backend_wait_seconds": seconds(&line["backend_wait_ms"]),
        },
    })
}

fn phases_of(line: &Value) -> Vec<Value> {
    let times = &line["phases"];
    let is_estimated = times["estimated"] == true;
    let gateway = line["overhead_us"].as_f64().map(|micros| micros / 1e6);
    let phase = |phase: &str, time: Option<f64>, is_estimated: bool| {
        Some(json!({ "phase": phase, "seconds": time?, "is_estimated": is_estimated }))
    };
    let engine = |name: &str| {
        let time = seconds(&times[format!("{name}_ms")]);
        phase(name, time, is_estimated && name != "front_end")
    };
    let first = [
        phase("gateway_queue", seconds(&line["queued_ms"]), false),
        phase("gateway", gateway, false),
    ];
    let rest = ["front_end", "queue", "prefill", "unexplained"].map(engine);
    first.into_iter().chain(rest).flatten().collect()
}

fn seconds(milliseconds: &Value) -> Option<f64> {
    milliseconds.as_f64().map(|ms| ms / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"ts":"2026-11-21T16:29:46.249Z","request_id":"why-4567","client":"127.0.0.1",
        "outcome":"ok","slow_cause":"engine_queue","backend":"gpu-1","policy":"kv_aware","reason":"lowest_ttft",
        "predicted_ttft_ms":15.2,"attempts":1,"input_tokens":8,"ttft_ms":6640.0,"first_answer_ms":null,
        "duration_ms":7000.0,"overhead_us":117,"phases":{"queue_ms":6430.0,"estimated":true}}"#;

    #[test]
    fn a_line_has_cause_and_phases() {
        let line = ended_request(LINE).unwrap();
        let lines = explain(&line, false);
        for expected in [
            "request    why-4567",
            "outcome    ok in 7.00s",
            "slow       engine queue: the request waited in the queue of the engine",
            "phases     gateway 117µs, queue 6.43s (estimated)",
        ] {
            assert!(
                lines.iter().any(|line| line == expected),
                "{expected}: {lines:#?}"
            );
        }
        assert!(!lines.iter().any(|line| line.contains("CANDIDATE")));
        assert!(explain(&line, true)[0].starts_with('{'));
    }

    #[test]
    fn other_lines_are_no_ended_requests() {
        let start = r#"{"event":"start","request_id":"why-4567"}"#;
        for line in [start, "2026-11-21 200 ok", "[]", ""] {
            assert_eq!(ended_request(line), None);
        }
    }
}
