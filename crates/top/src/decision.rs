//! Renders a routing decision as lines of text.

use super::formatting::{count, percent, seconds, text};
use serde_json::Value;

/// The lines of text about one request. `decision` is its JSON document from `/decisions`. A
/// missing value is shown as a dash.
pub fn explanation(decision: &Value) -> Vec<String> {
    let word_or_dash = |value: &Value| text(value.as_str());
    let token_counts = |values: &Value| {
        let counts = [&values["input_tokens"], &values["cached_tokens"]];
        let [input, cached] = counts.map(Value::as_f64);
        format!("{} tokens, {} cached", count(input), count(cached))
    };
    let (predicted, actual) = (&decision["predicted"], &decision["actual"]);
    let ttft = |values: &Value| seconds(values["ttft_seconds"].as_f64());
    let mut lines = vec![
        format!("request    {}", word_or_dash(&decision["request_id"])),
        format!("backend    {}", word_or_dash(&decision["backend"])),
        format!(
            "reason     {} ({})",
            word_or_dash(&decision["reason"]),
            word_or_dash(&decision["policy"])
        ),
        format!("outcome    {}", word_or_dash(&actual["outcome"])),
        format!("TTFT       {} predicted, {} actual", ttft(predicted), ttft(actual)),
        format!("prompt     {} predicted", token_counts(predicted)),
        format!("           {} actual", token_counts(actual)),
    ];
    lines.extend(longest_gaps(&decision["chunk_timings"]));
    lines.extend([
        String::new(),
        format!(
            "  {:<24} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
            "CANDIDATE", "PREDICTED", "CACHED", "BACKLOG", "KV", "QUEUE", "RUN"
        ),
    ]);
    lines.extend(decision["candidates"].as_array().into_iter().flatten().map(candidate_line));
    lines
}

/// The line of the table about one candidate. The chosen candidate is marked.
fn candidate_line(candidate: &Value) -> String {
    let number = |name: &str| candidate[name].as_f64();
    format!(
        "{} {:<24} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
        if candidate["chosen"] == true { '>' } else { ' ' },
        text(candidate["backend"].as_str()),
        seconds(number("predicted_ttft_seconds")),
        count(number("cached")),
        count(number("backlog")),
        percent(number("kv_usage")),
        count(number("waiting")),
        count(number("running")),
    )
}

/// The line about the longest gaps of a slow or broken stream. `None`: the document has no times of
/// chunks.
fn longest_gaps(timings: &Value) -> Option<String> {
    let gaps = timings["longest_gaps"].as_array()?.iter().take(4).map(|gap| {
        let length = seconds(gap["gap_ms"].as_f64().map(|ms| ms / 1e3));
        format!("{length} after {}", count(gap["after_chunks"].as_f64()))
    });
    let gaps: Vec<String> = gaps.collect();
    let gaps = if gaps.is_empty() { "none of 100ms".to_owned() } else { gaps.join(", ") };
    Some(format!("gaps       {gaps} ({} chunks)", count(timings["chunks"].as_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_marks_the_chosen_candidate_and_shows_missing_values_as_dashes() {
        let lines = explanation(&json!({
            "request_id": "r-1", "backend": "a", "reason": "lowest_ttft", "policy": "kv_aware",
            "predicted": { "ttft_seconds": 0.02, "input_tokens": 8.0, "cached_tokens": 0.0 },
            "candidates": [
                { "backend": "a", "chosen": true, "kv_usage": 0.25, "cached": 16.0 },
                { "backend": "b", "chosen": false },
            ],
        }));
        assert!(lines[4].ends_with("20ms predicted, – actual"), "{lines:?}");
        assert!(lines[9].starts_with("> a ") && lines[9].contains("25%"), "{lines:?}");
        assert!(lines[10].starts_with("  b ") && !lines[10].contains('%'), "{lines:?}");
    }

    #[test]
    fn a_slow_stream_shows_its_longest_gaps() {
        let lines = explanation(&json!({ "chunk_timings": {
            "chunks": 7, "longest_gaps": [{ "gap_ms": 900, "after_chunks": 3 }],
        } }));
        assert_eq!(lines[7], "gaps       900ms after 3 (7 chunks)");
    }

    #[test]
    fn an_unexpected_document_does_not_panic() {
        for document in [json!(null), json!([]), json!({ "candidates": 7 })] {
            assert!(!explanation(&document).is_empty());
        }
    }
}
