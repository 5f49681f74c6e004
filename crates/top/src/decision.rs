//! Renders a routing decision as lines of text.

use super::formatting::{common_end, count, cut, label, percent, rows, seconds, text, words};
use super::waterfall;
use serde_json::Value;

/// The lines of text about one request. The first lines show the result and why the request was slow, if it
/// was. The next lines show the routing decision. A missing value is shown as a dash. `decision`: the JSON
/// document of the request from `/decisions`.
pub fn explanation(decision: &Value) -> Vec<String> {
    let predicted = &decision["predicted"];
    let actual = &decision["actual"];
    let mut lines = vec![
        format!("request    {}", word(&decision["request_id"])),
        format!(
            "outcome    {} in {}",
            label(&actual["outcome"]),
            seconds(actual["duration_seconds"].as_f64())
        ),
    ];
    lines.extend(slow_line(actual));
    lines.push(ttft_line(predicted, actual));
    lines.extend(phases_line(&decision["phases"]));
    lines.extend(backend_wait_line(actual));
    lines.extend(longest_gaps(&decision["chunk_timings"]));
    lines.extend(attempts_line(&decision["attempts"]));
    let trace = [&decision["trace_url"], &decision["trace_id"]]
        .into_iter()
        .find_map(Value::as_str);
    lines.extend(trace.map(|trace| format!("trace      {}", text(trace))));
    lines.extend(waterfall::bars(decision));
    lines.extend([
        format!(
            "client     {}",
            text(
                decision["tenant"]
                    .as_str()
                    .or_else(|| decision["client"].as_str())
                    .unwrap_or_default()
            )
        ),
        format!("prompt     {} predicted", token_counts(predicted)),
        format!("           {} actual", token_counts(actual)),
        format!("backend    {}", word(&decision["backend"])),
        format!(
            "reason     {} ({}){}",
            label(&decision["reason"]),
            word(&decision["policy"]),
            deciding_cost(decision)
        ),
    ]);
    if decision["candidates"].is_array() {
        lines.extend(candidate_lines(decision));
    }
    lines
}

/// The table of candidates, after an empty line.
fn candidate_lines(decision: &Value) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "  {:<NAME_WIDTH$} {:>9} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
            "CANDIDATE", "COST", "PREDICTED", "CACHED", "BACKLOG", "KV", "QUEUE", "RUN"
        ),
    ];
    let backends = rows(&decision["candidates"]).chain(rows(&decision["excluded"]));
    let names: Vec<String> = backends.map(|it| word(&it["backend"])).collect();
    let end = common_end(names.iter().map(String::as_str));
    let name = |it: &Value| cut(&word(&it["backend"]), NAME_WIDTH, end);
    lines.extend(rows(&decision["candidates"]).map(|it| candidate_line(it, &name(it))));
    if let Some(omitted @ 1..) = decision["omitted_candidates"].as_u64() {
        lines.push(format!("  {omitted} more candidates with higher costs"));
    }
    lines.extend(rows(&decision["excluded"]).map(|excluded| {
        format!(
            "  {:<NAME_WIDTH$} no candidate: {}",
            name(excluded),
            word(&excluded["reason"])
        )
    }));
    lines
}

/// Width of the names of backends in the table of candidates, in characters.
const NAME_WIDTH: usize = 24;

fn word(value: &Value) -> String {
    text(value.as_str().unwrap_or_default())
}

fn token_counts(values: &Value) -> String {
    let counts = [&values["input_tokens"], &values["cached_tokens"]];
    let [input, cached] = counts.map(Value::as_f64);
    format!("{} tokens, {} cached", count(input), count(cached))
}

/// Why the request was slow. `None`: the request was not slow.
fn slow_line(actual: &Value) -> Option<String> {
    let cause = actual["slow_cause"].as_str()?;
    Some(format!(
        "slow       {}: {}",
        words(cause),
        word(&actual["slow_meaning"])
    ))
}

fn ttft_line(predicted: &Value, actual: &Value) -> String {
    let time = |value: &Value| seconds(value.as_f64());
    let first_answer = &actual["first_answer_seconds"];
    let answer = first_answer
        .is_number()
        .then(|| format!(", {} to the first answer", time(first_answer)));
    format!(
        "TTFT       {} predicted, {} actual from sending, {} for the client{}",
        time(&predicted["ttft_seconds"]),
        time(&actual["ttft_seconds"]),
        time(&actual["client_ttft_seconds"]),
        answer.unwrap_or_default()
    )
}

/// The part of the wait in the gateway during which no backend could serve the model. `None`: there was no such
/// part.
fn backend_wait_line(actual: &Value) -> Option<String> {
    let wait = seconds(Some(actual["backend_wait_seconds"].as_f64()?));
    Some(format!("no backend {wait} of the gateway queue"))
}

/// The phases of the request in order of time. `None`: no phase is known.
fn phases_line(phases: &Value) -> Option<String> {
    let phase = |phase: &Value| {
        let estimated = if phase["is_estimated"] == true {
            " (estimated)"
        } else {
            ""
        };
        format!(
            "{} {}{estimated}",
            label(&phase["phase"]),
            seconds(phase["seconds"].as_f64())
        )
    };
    let phases: Vec<String> = rows(phases).map(phase).collect();
    (!phases.is_empty()).then(|| format!("phases     {}", phases.join(", ")))
}

/// The attempts to send the request to a backend. `None`: there was no attempt, or a single successful one.
fn attempts_line(attempts: &Value) -> Option<String> {
    let attempt = |attempt: &Value| {
        let status = attempt["status"].as_u64().map(|status| status.to_string());
        let result = attempt["failure"].as_str().map(words).or(status);
        let result = text(result.as_deref().unwrap_or_default());
        format!(
            "{} {result} after {}",
            word(&attempt["backend"]),
            seconds(attempt["seconds"].as_f64())
        )
    };
    let is_plain =
        rows(attempts).count() < 2 && rows(attempts).all(|attempt| attempt["status"] == 200);
    let attempts: Vec<String> = rows(attempts).map(attempt).collect();
    (!is_plain).then(|| format!("attempts   {}", attempts.join(", ")))
}

/// The cost of the chosen candidate, and the number of other candidates with a tied cost. Costs tie if they
/// differ by less than the error of the predictions. Empty: the costs are unknown.
fn deciding_cost(decision: &Value) -> String {
    let Some(tie) = decision["tie_cost"].as_f64() else {
        return String::new();
    };
    let cost = |candidate: &Value| candidate["cost"].as_f64();
    let mut candidates = rows(&decision["candidates"]);
    let chosen = candidates.find(|candidate| candidate["chosen"] == true);
    let Some(chosen) = chosen.and_then(cost) else {
        return String::new();
    };
    let costs = rows(&decision["candidates"]).filter_map(cost);
    let ties = costs.filter(|cost| *cost <= tie).count();
    let is_tie = if ties > 1 && chosen <= tie {
        format!(", a tie with {} (up to {})", ties - 1, seconds(Some(tie)))
    } else {
        String::new()
    };
    format!(": cost {}{is_tie}", seconds(Some(chosen)))
}

/// The line of the table about one candidate. The chosen candidate is marked.
fn candidate_line(candidate: &Value, name: &str) -> String {
    let number = |name: &str| candidate[name].as_f64();
    format!(
        "{} {name:<NAME_WIDTH$} {:>9} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
        if candidate["chosen"] == true {
            '>'
        } else {
            ' '
        },
        seconds(number("cost")),
        seconds(number("predicted_ttft_seconds")),
        count(number("cached")),
        count(number("backlog")),
        percent(number("kv_usage")),
        count(number("waiting")),
        count(number("running")),
    )
}

/// The line about the longest gaps between the chunks of a slow or broken stream. `None`: the document lacks
/// the times of the chunks.
fn longest_gaps(timings: &Value) -> Option<String> {
    let mut gaps = Vec::new();
    for gap in timings["longest_gaps"].as_array()?.iter().take(4) {
        let length = seconds(gap["gap_ms"].as_f64().map(|ms| ms / 1e3));
        let after = count(gap["after_chunks"].as_f64());
        gaps.push(format!("{length} after {after}"));
    }
    if gaps.is_empty() {
        gaps.push("none of 100ms".to_owned());
    }
    let chunks = count(timings["chunks"].as_f64());
    Some(format!("gaps       {} ({chunks} chunks)", gaps.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_slow_cause_follows_the_outcome() {
        let lines = explanation(&json!({
            "request_id": "r-1", "trace_url": "http://ui/4a",
            "attempts": [
                { "backend": "b", "status": 429, "failure": "busy", "seconds": 0.2 },
                { "backend": "a", "status": 200, "failure": null, "seconds": 12.1 },
            ],
            "phases": [
                { "phase": "gateway", "seconds": 0.001, "is_estimated": false },
                { "phase": "queue", "seconds": 10.2, "is_estimated": true },
            ],
            "actual": {
                "outcome": "ok", "slow_cause": "engine_queue", "duration_seconds": 12.3,
                "slow_meaning": "the request waited in the queue of the engine",
                "backend_wait_seconds": 0.8,
                "ttft_seconds": 10.9, "client_ttft_seconds": 11.0, "first_answer_seconds": 11.2,
            },
            "predicted": { "ttft_seconds": 0.02 },
            "chunk_timings": { "chunks": 7, "longest_gaps": [{ "gap_ms": 900, "after_chunks": 3 }] },
        }));
        let expected = [
            "request    r-1",
            "outcome    ok in 12.3s",
            "slow       engine queue: the request waited in the queue of the engine",
            "TTFT       20ms predicted, 10.9s actual from sending, 11.0s for the client, 11.2s to the \
             first answer",
            "phases     gateway 1.0ms, queue 10.2s (estimated)",
            "no backend 800ms of the gateway queue",
            "gaps       900ms after 3 (7 chunks)",
            "attempts   b busy after 200ms, a 200 after 12.1s",
            "trace      http://ui/4a",
        ];
        assert_eq!(lines[..expected.len()], expected);
    }

    #[test]
    fn deciding_cost_and_excluded_backends_are_shown() {
        let decision = json!({
            "request_id": "r-1", "backend": "a", "reason": "lowest_ttft", "policy": "kv_aware",
            "tie_cost": 0.031,
            "candidates": [
                { "backend": "b", "chosen": false, "cost": 0.025 },
                { "backend": "a", "chosen": true, "cost": 0.027, "kv_usage": 0.25, "cached": 16.0 },
                { "backend": "c", "chosen": false, "cost": 0.4 },
            ],
            "omitted_candidates": 2,
            "excluded": [{ "backend": "d", "reason": "drained" }],
        });
        let lines = explanation(&decision);
        let at = |words: &str| lines.iter().position(|line| line.contains(words)).unwrap();
        assert!(
            lines[at("lowest ttft (kv_aware): cost 27ms, a tie with 1 (up to 31ms)")]
                .starts_with("reason")
        );
        let row = at("> a ");
        assert!(
            lines[row].contains("27ms") && lines[row].contains("25%"),
            "{lines:?}"
        );
        assert!(
            lines[row - 1].starts_with("  b ") && !lines[row - 1].contains('%'),
            "{lines:?}"
        );
        assert_eq!(lines[row + 2], "  2 more candidates with higher costs");
        assert!(
            lines[row + 3].ends_with("no candidate: drained"),
            "{lines:?}"
        );
    }

    #[test]
    fn an_unexpected_document_does_not_panic() {
        for document in [json!(null), json!([]), json!({ "candidates": 7 })] {
            assert!(!explanation(&document).is_empty());
        }
    }
}
