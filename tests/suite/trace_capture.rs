//! Trace capture: the gateway writes its traffic as a trace, which can be replayed and contains no text of a
//! request.

use crate::support::process::folder;
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::{CHAT, Setup, post, read_until_times, with_lines};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// This text is in every value that a client chooses. The capture must not contain it.
const CANARY: &str = "canary-7f3a";

/// Starts a gateway in front of simulated backends. It writes a trace capture to this file.
async fn capturing(file: &Path) -> Fleet {
    let setup = Setup {
        captured: 1.0,
        capture: Some(file.to_owned()),
        injects_usage: true,
        session_headers: vec![http::HeaderName::from_static("x-session-id")],
        ..Setup::default()
    };
    Fleet::start_with(2, setup).await
}

fn file(name: &str) -> PathBuf {
    folder("capture").join(format!("{name}.jsonl"))
}

/// Builds a chat request with these messages, which belongs to a session. The response has `tokens` tokens.
fn chat(session: &str, messages: &[String], tokens: u32) -> String {
    let messages: Vec<Value> = messages
        .iter()
        .map(|text| json!({ "role": "user", "content": text }))
        .collect();
    let body = json!({
        "model": "sim-model", "stream": true, "max_tokens": tokens, "ignore_eos": true,
        "user": CANARY, "messages": messages,
    });
    let lines = format!(
        "x-session-id: {CANARY}-{session}\r\nauthorization: Bearer {CANARY}\r\n\
         x-api-key: {CANARY}\r\nuser-agent: {CANARY}"
    );
    with_lines(&post(CHAT, &body.to_string()), &lines)
}

/// Waits until the capture has `lines` lines. Returns its text, and its lines as JSON, in the order in which
/// the requests arrived.
async fn captured(fleet: &Fleet, file: &Path, lines: u64) -> (String, Vec<Value>) {
    fleet.gateway.captured(lines).await;
    let text = fs::read_to_string(file).unwrap();
    let parsed = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut lines: Vec<Value> = parsed.collect();
    lines.sort_by(|a, b| arrival(a).total_cmp(&arrival(b)));
    (text, lines)
}

fn arrival(line: &Value) -> f64 {
    line["timestamp"].as_f64().unwrap()
}

/// Returns the hashes of the full prompt blocks in a line of the capture.
fn blocks(line: &Value) -> &[Value] {
    let full = line["input_bytes"].as_u64().unwrap() / line["block_bytes"].as_u64().unwrap();
    let ids = line["hash_ids"].as_array().unwrap();
    &ids[..ids.len().min(full as usize)]
}

fn common(a: &Value, b: &Value) -> usize {
    blocks(a)
        .iter()
        .zip(blocks(b))
        .take_while(|(a, b)| a == b)
        .count()
}

#[tokio::test]
async fn a_capture_has_counts_order_and_prefixes() {
    let file = file("round-trip");
    let fleet = capturing(&file).await;
    // Three requests of each of two conversations. The responses have 11, 12 and 13 tokens in the first and
    // 21, 22 and 23 in the second.
    for turn in 1..=3 {
        for (number, session) in [(1, "one"), (2, "two")] {
            let texts: Vec<String> = (0..turn)
                .map(|message_number| format!("{CANARY} {session} {message_number} ").repeat(100))
                .collect();
            fleet
                .gateway
                .raw(chat(session, &texts, number * 10 + turn))
                .await;
            fleet.gateway.record().await;
        }
    }
    let (text, lines) = captured(&fleet, &file, 6).await;
    let tokens: Vec<u64> = lines
        .iter()
        .map(|line| line["output_length"].as_u64().unwrap())
        .collect();
    assert_eq!(
        tokens,
        [11, 21, 12, 22, 13, 23],
        "the lines are in the order of arrival"
    );
    let prompts: u64 = lines
        .iter()
        .map(|line| line["input_length"].as_u64().unwrap())
        .sum();
    let counted = fleet.sum(|load| load.prompt_tokens) as u64;
    assert_eq!(prompts, counted, "the engines count as many prompt tokens");
    for (earlier, later) in [(0, 2), (2, 4), (1, 3), (3, 5)] {
        let (earlier, later) = (&lines[earlier], &lines[later]);
        assert_eq!(common(earlier, later), blocks(earlier).len());
        assert!(blocks(later).len() > blocks(earlier).len());
        assert_eq!(earlier["session"], later["session"]);
    }
    assert_eq!(
        common(&lines[0], &lines[1]),
        0,
        "the conversations share no prefix"
    );
    assert!(!lines[0]["session"].is_null() && lines[0]["session"] != lines[1]["session"]);
    for line in &lines {
        assert_eq!(
            (&line["input_source"], &line["output_source"]),
            (&json!("exact"), &json!("exact"))
        );
        assert_eq!(
            (&line["outcome"], &line["status"], &line["api"]),
            (&json!("ok"), &json!(200), &json!("chat"))
        );
        assert!(line["ttft_ms"].as_f64().unwrap() <= line["e2e_ms"].as_f64().unwrap());
    }
    assert!(!text.contains(CANARY), "no text, header or key: {text}");
    let page = fleet.gateway.admin("/metrics").await;
    assert!(
        page.contains("tokenweir_capture_records_total{result=\"written\"} 6\n"),
        "{page}"
    );
    assert!(
        page.contains("tokenweir_capture_records_total{result=\"dropped\"} 0\n"),
        "{page}"
    );
}

#[tokio::test]
async fn captured_requests_have_the_order_of_their_ends() {
    let file = file("order");
    let fleet = capturing(&file).await;
    let mut first = fleet
        .gateway
        .send(chat("one", &["go on".to_owned()], 2_000))
        .await;
    read_until_times(&mut first, "data: ", 4).await;
    fleet
        .gateway
        .raw(chat("two", &["be brief".to_owned()], 3))
        .await;
    fleet.gateway.record().await;
    drop(first);
    let disconnected = fleet.gateway.record().await;
    let (text, lines) = captured(&fleet, &file, 2).await;
    let first_line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        first_line["output_length"], 3,
        "lines are in the order of the ends"
    );
    assert_eq!(
        (&lines[1]["output_length"], &lines[1]["left_after"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(lines[0]["outcome"], "cancelled");
    let left_after = lines[0]["left_after"].as_u64();
    assert_eq!(left_after, disconnected.output_tokens());
    assert_eq!(lines[0]["output_length"], lines[0]["left_after"]);
    assert!(left_after.is_some_and(|tokens| (1..2_000).contains(&tokens)));
}
