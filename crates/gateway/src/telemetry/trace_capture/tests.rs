//! Tests of the captured fields and of the anonymity of IDs.

use super::*;
use serde_json::Value;
use tokenweir_request::record::fixtures::streamed;

fn capture() -> TraceCapture {
    let (writer, _) = NonBlockingWriter::start("test", io::sink());
    TraceCapture { writer, hash_key: RandomState::new(), file_counters: Arc::default() }
}

fn captured(blocks: &[u64]) -> CapturedPrompt {
    CapturedPrompt {
        prompt_bytes: 1_100,
        block_hashes: blocks.into(),
        block_bytes: 512,
        session_hash: Some(7),
    }
}

fn line(capture: &TraceCapture, record: &RequestRecord, captured: &CapturedPrompt) -> Value {
    serde_json::from_str(&capture.build_line(record, captured)).unwrap()
}

#[test]
fn line_has_replay_inputs_and_the_outcome() {
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
fn uncounted_prompt_length_is_estimated_and_marked() {
    let mut record = streamed();
    record.observed.usage.input = None;
    let line = line(&capture(), &record, &captured(&[]));
    assert_eq!((&line["input_length"], &line["input_source"]), (&275.into(), &"estimated".into()));
}

#[test]
fn client_errors_are_not_captured_but_shed_requests_are() {
    let is_excluded = |outcome, status| {
        let mut record = streamed();
        (record.outcome, record.status) = (outcome, Some(status));
        is_client_error(&record)
    };
    assert!(is_excluded(Outcome::ClientError, 400) && is_excluded(Outcome::Rejected, 404));
    assert!(!is_excluded(Outcome::Rejected, 429));
    assert!(!is_excluded(Outcome::ClientError, 429) && !is_excluded(Outcome::Rejected, 503));
    assert!(!is_excluded(Outcome::Ok, 200));
}

#[test]
fn equal_blocks_have_equal_ids_within_one_capture_only() {
    let (first_capture, other_capture) = (capture(), capture());
    let ids = |capture: &TraceCapture, blocks: &[u64]| -> Vec<u64> {
        let line = line(capture, &streamed(), &captured(blocks));
        serde_json::from_value(line["hash_ids"].clone()).unwrap()
    };
    let (first, second) = (ids(&first_capture, &[10, 11, 12]), ids(&first_capture, &[10, 11, 13]));
    assert_eq!(first[..2], second[..2]);
    assert_ne!(first[2], second[2]);
    assert!(ids(&other_capture, &[10, 11, 12]).iter().all(|id| !first.contains(id)));
    assert!(first.iter().all(|id| *id < 1 << 53), "exact as a double: {first:?}");
    let session =
        |capture: &TraceCapture| line(capture, &streamed(), &captured(&[]))["session"].clone();
    assert_eq!(session(&first_capture), session(&first_capture));
    assert_ne!(session(&first_capture), session(&other_capture));
}
