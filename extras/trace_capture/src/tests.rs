//! Tests of the fields of a captured request and of the anonymity of the IDs of its blocks.

use super::*;
use serde_json::Value;
use tokenweir_request::record::fixtures;

fn capture() -> TraceCapture {
    let (writer, _) = NonBlockingWriter::start("test", io::sink());
    TraceCapture {
        writer,
        share: 1.0,
        hash_key: RandomState::new(),
        file_counters: Arc::default(),
    }
}

fn prompt(blocks: &[u64]) -> PromptFingerprint {
    PromptFingerprint {
        bytes: 1_100,
        blocks: blocks.into(),
        block_bytes: 512,
        ..PromptFingerprint::default()
    }
}

fn streamed() -> RequestRecord {
    RequestRecord {
        session_hash: Some(7),
        ..fixtures::streamed()
    }
}

fn line(capture: &TraceCapture, record: &RequestRecord, prompt: &PromptFingerprint) -> Value {
    serde_json::from_str(&capture.build_line(record, prompt)).unwrap()
}

#[test]
fn a_line_has_inputs_and_outcome() {
    let mut line = line(&capture(), &streamed(), &prompt(&[1, 2]));
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
fn an_unreported_prompt_length_is_marked() {
    let mut record = streamed();
    record.observed.usage.input = None;
    let line = line(&capture(), &record, &prompt(&[]));
    assert_eq!(
        (&line["input_length"], &line["input_source"]),
        (&275.into(), &"estimated".into())
    );
}

#[test]
fn shed_requests_are_captured() {
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
fn block_ids_differ_between_captures() {
    let (first_capture, other_capture) = (capture(), capture());
    let ids = |capture: &TraceCapture, blocks: &[u64]| -> Vec<u64> {
        let line = line(capture, &streamed(), &prompt(blocks));
        serde_json::from_value(line["hash_ids"].clone()).unwrap()
    };
    let (first, second) = (
        ids(&first_capture, &[10, 11, 12]),
        ids(&first_capture, &[10, 11, 13]),
    );
    assert_eq!(first[..2], second[..2]);
    assert_ne!(first[2], second[2]);
    assert!(
        ids(&other_capture, &[10, 11, 12])
            .iter()
            .all(|id| !first.contains(id))
    );
    assert!(
        first.iter().all(|id| *id < 1 << 53),
        "exact as a double: {first:?}"
    );
    let session =
        |capture: &TraceCapture| line(capture, &streamed(), &prompt(&[]))["session"].clone();
    assert_eq!(session(&first_capture), session(&first_capture));
    assert_ne!(session(&first_capture), session(&other_capture));
}

#[test]
fn whole_sessions_and_the_configured_share_are_captured() {
    let mut rng = fastrand::Rng::with_seed(5);
    assert!((0..1_000).all(|_| !is_sampled(0.0, None, rng.u64(..))));
    assert!((0..1_000).all(|_| is_sampled(1.0, None, rng.u64(..))));
    assert!(is_sampled(1.0, None, u64::MAX));
    let count = (0..10_000)
        .filter(|_| is_sampled(0.3, None, rng.u64(..)))
        .count();
    assert!((2_700..3_300).contains(&count), "{count} of 10000");
    let sessions: Vec<u64> = (0..1_000).map(|_| rng.u64(..)).collect();
    for session in &sessions {
        let first = is_sampled(0.5, Some(*session), rng.u64(..));
        assert_eq!(is_sampled(0.5, Some(*session), rng.u64(..)), first);
    }
    let count = sessions
        .iter()
        .filter(|session| is_sampled(0.5, Some(**session), 0))
        .count();
    assert!((400..600).contains(&count), "{count} of 1000 sessions");
}
