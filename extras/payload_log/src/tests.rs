//! Tests of the prompts and responses that are written to the payload log, and of private data that
//! must not be written.

use super::*;
use std::fs;
use std::thread;
use tokenweir_net::testing::TempFolder;
use tokenweir_protocol::openai::TextExcerpt;
use tokenweir_redaction::REDACTION_MARGIN_BYTES;
use tokenweir_request::record::TextConsumers;
use tokenweir_request::record::fixtures::streamed;

const CONSUMER: TextConsumer = TextConsumer::new(0);
const OTHER_CONSUMER: TextConsumer = TextConsumer::new(1);

fn excerpt(text: &str, capacity: usize) -> TextExcerpt {
    let mut excerpt = TextExcerpt::new(capacity);
    excerpt.push(text.as_bytes());
    excerpt
}

/// Passes records with these prompts and responses to a payload log. Returns the written lines and the
/// counts. Waits for all records before the shutdown, because the shutdown drops records after 1 s and the
/// machine may be busy.
fn log_texts(
    settings: &PayloadLogSettings,
    texts: &[(&str, &str)],
) -> (Vec<serde_json::Value>, FileRecordCounts) {
    let folder = TempFolder::new(&format!("payload-log-{}", settings.max_bytes));
    let file = folder.path().join("log.jsonl");
    let (log, guard) = PayloadLog::start(&file, settings.redaction(), 1 << 30, CONSUMER).unwrap();
    for (prompt, answer) in texts {
        let mut record = streamed();
        record.prompt = Some(excerpt(prompt, settings.excerpt_bytes()));
        record.text_for.add(CONSUMER);
        record.observed.text_excerpt = Some(excerpt(answer, settings.excerpt_bytes()));
        log.finished(&[&record]);
    }
    while log.counts().written + log.counts().dropped < texts.len() as u64 {
        thread::yield_now();
    }
    drop(guard);
    let text = fs::read_to_string(file).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    (lines, log.counts())
}

#[test]
fn a_line_has_ids_and_redacted_texts() {
    let prompt = r#"[{"role":"user","content":"I am bob@example.com\nCall +1 415 555 0123."}]"#;
    let (lines, counts) = log_texts(
        &PayloadLogSettings::default(),
        &[(prompt, "Hello \u{1b}[1mBob")],
    );
    let line = &lines[0];
    let expected = r#"[{"role":"user","content":"I am [email]\nCall [phone]."}]"#;
    assert_eq!(line["prompt"], expected);
    assert_eq!(line["answer"], "Hello \u{1b}[1mBob");
    assert_eq!(
        (&line["request_id"], &line["model"]),
        (&"r-1".into(), &"tiny".into())
    );
    assert_eq!(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (&line["prompt_cut"], &line["answer_cut"]),
        (&false.into(), &false.into())
    );
    assert_eq!(line["redacted"], 2);
    assert_eq!(
        counts,
        FileRecordCounts {
            written: 1,
            dropped: 0
        }
    );
}

#[test]
fn truncation_leaves_no_part_of_a_secret() {
    let secrets = [
        "roberta.longname@subdomain.example.com",
        "4111 1111 1111 1111",
    ];
    let key = ["sk-", &"abcdefgh01234567".repeat(8)].concat();
    for secret in secrets.into_iter().chain([key.as_str()]) {
        let mut texts = Vec::new();
        // The secret crosses either the end of the written text or the end of the retained text.
        for end in [200, 200 + REDACTION_MARGIN_BYTES] {
            texts.extend(
                (end - secret.len()..end + 2).map(|start| {
                    format!("{} {secret} {}", "x ".repeat(start / 2), "y ".repeat(600))
                }),
            );
        }
        let texts: Vec<(&str, &str)> = texts.iter().map(|text| (text.as_str(), "")).collect();
        // Each part has fewer texts than the queue can hold, so no text is dropped.
        for texts in texts.chunks(100) {
            let settings = PayloadLogSettings {
                max_bytes: 200,
                ..PayloadLogSettings::default()
            };
            let (lines, counts) = log_texts(&settings, texts);
            assert_eq!(counts.written as usize, texts.len());
            for line in lines {
                let prompt = line["prompt"].as_str().unwrap();
                assert!(prompt.len() <= 200 && line["prompt_cut"] == true);
                assert!(!prompt.contains(&secret[..4]), "{prompt}");
            }
        }
    }
}

#[test]
fn only_sampled_requests_count_as_dropped() {
    let queue = PayloadQueue::without_thread(1);
    let log = PayloadLog {
        consumer: CONSUMER,
        queue,
        file_counters: Arc::default(),
    };
    let mut text_for = TextConsumers::default();
    text_for.add(CONSUMER);
    let record = RequestRecord {
        prompt: Some(TextExcerpt::new(8)),
        text_for,
        ..streamed()
    };
    (0..3).for_each(|_| log.finished(&[&record]));
    let mut text_for = TextConsumers::default();
    text_for.add(OTHER_CONSUMER);
    let not_logged = [
        ("without a prompt", streamed()),
        (
            "outside of the sample",
            RequestRecord {
                text_for,
                ..record.clone()
            },
        ),
        (
            "rejected by the gateway",
            RequestRecord {
                outcome: Outcome::Rejected,
                ..record
            },
        ),
    ];
    for (reason, record) in not_logged {
        log.finished(&[&record]);
        assert_eq!(log.counts().dropped, 2, "{reason}");
    }
}
