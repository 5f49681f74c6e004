//! The parts of a request as bars on a time axis, for `tokenweir explain`.

use super::formatting::{label, rows, seconds};
use serde_json::Value;

struct Part {
    name: String,
    seconds: f64,
}

/// Width of the bars, in characters.
const WIDTH: f64 = 48.0;

/// One line for each part of the request, in order of time, with its name, its bar and its duration. Empty:
/// fewer than two parts are known. `decision`: the JSON document of the request from `/decisions`.
pub(super) fn bars(decision: &Value) -> Vec<String> {
    let parts = parts(decision);
    let total: f64 = parts.iter().map(|part| part.seconds).sum();
    if parts.len() < 2 || total <= 0.0 {
        return Vec::new();
    }
    let name_width = parts.iter().map(|part| part.name.chars().count()).max();
    let name_width = name_width.unwrap_or_default();
    let mut lines = Vec::new();
    let mut begin = 0.0;
    for part in &parts {
        let end = begin + part.seconds;
        let from = (WIDTH * begin / total) as usize;
        let to = (WIDTH * end / total).ceil() as usize;
        let bar = format!(
            "{}{}",
            " ".repeat(from),
            "#".repeat(to.saturating_sub(from).max(1))
        );
        let took = seconds(Some(part.seconds));
        lines.push(format!(
            "           {:<name_width$} |{bar:<width$}| {took}",
            part.name,
            width = WIDTH as usize + 1
        ));
        begin = end;
    }
    lines
}

/// The parts in order of time: the wait in the gateway, failed attempts, the other phases before the first
/// output, and the tokens with their longest pauses.
fn parts(decision: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    for phase in rows(&decision["phases"]) {
        push(&mut parts, label(&phase["phase"]), &phase["seconds"]);
        if phase["phase"] == "gateway" {
            add_failed_attempts(&mut parts, &decision["attempts"]);
        }
    }
    add_output(&mut parts, decision);
    parts
}

fn add_failed_attempts(parts: &mut Vec<Part>, attempts: &Value) {
    let attempts: Vec<&Value> = rows(attempts).collect();
    let failed = attempts.split_last().map_or(&[][..], |(_, failed)| failed);
    for attempt in failed {
        let name = format!("at {}", label(&attempt["backend"]));
        push(parts, name, &attempt["seconds"]);
    }
}

/// Adds two parts for the time after the first output: the time without the longest pauses between chunks, and
/// these pauses.
fn add_output(parts: &mut Vec<Part>, decision: &Value) {
    let actual = &decision["actual"];
    let duration = actual["duration_seconds"].as_f64();
    let first = actual["client_ttft_seconds"].as_f64();
    let (Some(duration), Some(first)) = (duration, first) else {
        return;
    };
    let gaps = rows(&decision["chunk_timings"]["longest_gaps"]);
    let paused: f64 = gaps.filter_map(|gap| gap["gap_ms"].as_f64()).sum();
    let paused = (paused / 1e3).min(duration - first);
    push(
        parts,
        "tokens".to_owned(),
        &Value::from(duration - first - paused),
    );
    push(parts, "pauses".to_owned(), &Value::from(paused));
}

/// Adds a part, if it took time.
fn push(parts: &mut Vec<Part>, name: String, seconds: &Value) {
    if let Some(seconds) = seconds.as_f64().filter(|seconds| *seconds > 0.0) {
        parts.push(Part { name, seconds });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_follow_each_other() {
        let lines = bars(&json!({
            "attempts": [{"backend": "gpu-1", "seconds": 1.0}, {"backend": "gpu-0", "seconds": 7.0}],
            "phases": [
                {"phase": "gateway_queue", "seconds": 2.0},
                {"phase": "gateway", "seconds": 0.001},
                {"phase": "prefill", "seconds": 3.0},
            ],
            "chunk_timings": {"longest_gaps": [{"gap_ms": 1_000.0}]},
            "actual": {"duration_seconds": 10.0, "client_ttft_seconds": 6.0},
        }));
        let names: Vec<&str> = lines
            .iter()
            .map(|line| line.split('|').next().unwrap_or_default().trim())
            .collect();
        assert_eq!(
            names,
            [
                "gateway queue",
                "gateway",
                "at gpu-1",
                "prefill",
                "tokens",
                "pauses"
            ]
        );
        assert!(lines[0].ends_with("| 2.00s"), "{lines:#?}");
        let begin = |line: &str| line.find('#').unwrap_or_default();
        assert!(lines.windows(2).all(|two| begin(&two[0]) <= begin(&two[1])));
        let widths = lines.iter().map(|line| line.rfind('|'));
        assert!(widths.collect::<std::collections::BTreeSet<_>>().len() == 1);
    }

    #[test]
    fn a_request_without_phases_has_no_bars() {
        assert_eq!(bars(&json!({"actual": {"duration_seconds": 1.0}})), [""; 0]);
    }
}
