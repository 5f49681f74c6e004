//! What a line says, and what it must not say.

use super::*;
use serde_json::Value;
use tokenweir_core::record::sample::streamed;
use tokenweir_core::record::{End, UsageSource};

fn capture() -> Capture {
    let (writer, _) = Batched::start(io::sink());
    let counts = Counter { tally: Arc::default(), writer: writer.clone() };
    Capture { writer, key: RandomState::new(), counts }
}

fn captured(blocks: &[u64]) -> Captured {
    Captured { bytes: 1_100, blocks: blocks.into(), block_bytes: 512, session: Some(7) }
}

fn line(capture: &Capture, record: &RequestRecord, captured: &Captured) -> Value {
    serde_json::to_value(capture.line(record, captured)).unwrap()
}

#[test]
fn a_line_has_what_a_replay_needs_and_what_became_of_the_request() {
    let mut line = line(&capture(), &streamed(), &captured(&[1, 2]));
    let fields = line.as_object_mut().unwrap();
    let ids = fields.remove("hash_ids").unwrap();
    assert_eq!(ids.as_array().unwrap().len(), 2);
    assert!(fields.remove("session").unwrap().is_u64());
    let expected = serde_json::json!({
        "timestamp": 1_800_000_000_000.0, "input_length": 12, "output_length": 16,
        "block_bytes": 512, "input_bytes": 1_100, "input_source": "exact",
        "output_source": "exact", "cached_tokens": 8, "model": "tiny", "api": "chat",
        "backend": "vllm-0", "status": 200, "outcome": "ok", "ttft_ms": 100.0, "e2e_ms": 410.0,
    });
    assert_eq!(line, expected);
}

#[test]
fn a_prompt_that_nobody_has_counted_is_estimated_and_says_so() {
    let mut record = streamed();
    record.observed.usage.input = None;
    let line = line(&capture(), &record, &captured(&[]));
    assert_eq!((&line["input_length"], &line["input_source"]), (&275.into(), &"estimated".into()));
}

#[test]
fn a_request_that_was_at_fault_is_no_traffic_and_one_without_room_is() {
    let answered = |outcome, status| {
        let mut record = streamed();
        (record.outcome, record.status) = (outcome, Some(status));
        is_at_fault(&record)
    };
    assert!(answered(Outcome::ClientError, 400));
    assert!(!answered(Outcome::ClientError, 429) && !answered(Outcome::Rejected, 503));
    assert!(!answered(Outcome::Ok, 200));
}

#[test]
fn a_client_that_left_did_so_after_some_tokens() {
    let mut record = streamed();
    (record.outcome, record.end) = (Outcome::Cancelled, End::Left);
    record.observed.usage_source = UsageSource::Estimated;
    record.observed.estimated_tokens = 5;
    let line = line(&capture(), &record, &captured(&[]));
    assert_eq!((&line["left_after"], &line["output_length"]), (&5.into(), &5.into()));
}

#[test]
fn equal_blocks_have_equal_numbers_that_only_this_capture_knows() {
    let (one, other) = (capture(), capture());
    let ids = |capture: &Capture, blocks: &[u64]| -> Vec<u64> {
        let line = line(capture, &streamed(), &captured(blocks));
        serde_json::from_value(line["hash_ids"].clone()).unwrap()
    };
    let (first, second) = (ids(&one, &[10, 11, 12]), ids(&one, &[10, 11, 13]));
    assert_eq!(first[..2], second[..2]);
    assert_ne!(first[2], second[2]);
    assert!(ids(&other, &[10, 11, 12]).iter().all(|id| !first.contains(id)));
    assert!(first.iter().all(|id| *id < 1 << 53), "exact as a double: {first:?}");
    let session = |capture: &Capture| line(capture, &streamed(), &captured(&[]))["session"].clone();
    assert_eq!(session(&one), session(&one));
    assert_ne!(session(&one), session(&other));
}
