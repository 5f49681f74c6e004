//! Why a request went where it went, as lines.

use super::words::{count, percent, seconds, text};
use serde_json::Value;

/// The lines of what `/explain` says of one request.
pub fn explanation(why: &Value) -> Vec<String> {
    let word = |value: &Value| text(value.as_str());
    let tokens = |of: &Value| {
        let [all, cached] = [&of["input_tokens"], &of["cached_tokens"]].map(Value::as_f64);
        format!("{} tokens, {} cached", count(all), count(cached))
    };
    let (predicted, actual) = (&why["predicted"], &why["actual"]);
    let ttft = |of: &Value| seconds(of["ttft_seconds"].as_f64());
    let mut lines = vec![
        format!("request    {}", word(&why["request_id"])),
        format!("replica    {}", word(&why["backend"])),
        format!("because    {} ({})", word(&why["reason"]), word(&why["policy"])),
        format!("outcome    {}", word(&actual["outcome"])),
        format!("TTFT       {} predicted, {} actual", ttft(predicted), ttft(actual)),
        format!("prompt     {} predicted", tokens(predicted)),
        format!("           {} actual", tokens(actual)),
        String::new(),
        format!(
            "  {:<24} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
            "CANDIDATE", "PREDICTED", "CACHED", "BACKLOG", "KV", "QUEUE", "RUN"
        ),
    ];
    lines.extend(why["candidates"].as_array().into_iter().flatten().map(|one| {
        let number = |name: &str| one[name].as_f64();
        format!(
            "{} {:<24} {:>9} {:>7} {:>8} {:>5} {:>6} {:>5}",
            if one["chosen"] == true { '>' } else { ' ' },
            word(&one["backend"]),
            seconds(number("predicted_ttft_seconds")),
            count(number("cached")),
            count(number("backlog")),
            percent(number("kv_usage")),
            count(number("waiting")),
            count(number("running")),
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_explanation_names_the_chosen_one_and_what_is_missing_is_a_dash() {
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
    fn an_answer_of_another_shape_is_no_panic() {
        for why in [json!(null), json!([]), json!({ "candidates": 7 })] {
            assert!(!explanation(&why).is_empty());
        }
    }
}
