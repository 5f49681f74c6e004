//! Tests of the quality samples that the judge and the file receive, of the counts of samples and
//! of the trends.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokenweir_net::testing::TempFolder;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::TextExcerpt;
use tokenweir_redaction::{REDACTION_MARGIN_BYTES, RedactionKind};
use tokenweir_request::record::TextConsumers;
use tokenweir_request::record::fixtures::streamed;

const CONSUMER: TextConsumer = TextConsumer::new(0);
const OTHER_CONSUMER: TextConsumer = TextConsumer::new(1);

fn texts() -> RedactionSettings {
    RedactionSettings {
        max_bytes: 4 << 10,
        kinds: RedactionKind::ALL.to_vec(),
    }
}

fn excerpt(text: &str) -> TextExcerpt {
    let mut excerpt = TextExcerpt::new(texts().max_bytes + REDACTION_MARGIN_BYTES);
    excerpt.push(text.as_bytes());
    excerpt
}

/// Returns the record of a request whose prompt and response are sampled.
fn sampled(prompt: &str, answer: &str) -> RequestRecord {
    let mut record = streamed();
    record.prompt = Some(excerpt(prompt));
    record.observed.text_excerpt = Some(excerpt(answer));
    record.text_for.add(CONSUMER);
    record
}

/// Passes these records to a quality monitor and waits until it has processed `sample_count` samples.
/// Returns the lines of the sample file, and a snapshot of the monitor.
fn process_records(
    name: &str,
    settings: QualitySettings,
    records: &[RequestRecord],
    sample_count: u64,
) -> (Vec<Value>, QualitySnapshot) {
    let folder = TempFolder::new(&format!("quality-{name}"));
    let file = folder.path().join("samples.jsonl");
    let settings = QualitySettings {
        enabled: true,
        sample: 0.05,
        file: Some(file.clone()),
        ..settings
    };
    let (quality, guard) =
        QualityMonitor::start(&settings, &texts(), 1 << 30, Some(CONSUMER)).unwrap();
    for record in records {
        quality.finished(&[record]);
    }
    // Waits for all samples before the shutdown, because the shutdown drops samples after 1 s and
    // the machine may be busy.
    let are_processed = |counts: QualitySampleCounts| {
        counts.done + counts.dropped + counts.judge_failed >= sample_count
    };
    while !are_processed(quality.vitals(clock::now()).samples) {
        thread::yield_now();
    }
    drop(guard);
    let text = fs::read_to_string(file).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    (lines, quality.vitals(clock::now()))
}

/// Starts a judge server that responds to one request per connection with the next of `answers`.
/// Returns the URL of the server, and its thread. The thread returns the bodies of the requests.
fn spawn_judge(answers: Vec<&'static str>) -> (String, JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let mut open_connections = Vec::new();
        let requests = answers.into_iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 4_096]);
            while !request.ends_with(b"}") {
                let length = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            // The connection stays open, also if the response is empty.
            open_connections.push(stream);
            let text = String::from_utf8(request).unwrap();
            serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap()
        });
        requests.collect()
    });
    (format!("http://{addr}/score"), thread)
}

fn judge_response(body: &str) -> &'static str {
    let length = body.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    Box::leak(answer.into_boxed_str())
}

/// What the option brings with these settings, after a payload log without a file.
fn started_option(settings: QualitySettings) -> OptionParts {
    let mut parts = OptionParts::default();
    parts.gateway.share(Arc::<PayloadLogSettings>::default());
    let context = StartContext {
        env: &|_| None,
        host: String::new(),
        admin_port: 0,
        admin_url: String::new(),
        max_file_bytes: 1 << 30,
    };
    let option = Arc::<QualityOption>::default();
    option.start(settings, &context, &mut parts).unwrap();
    parts
}

#[test]
fn sampling_needs_a_file_or_a_judge() {
    let folder = TempFolder::new("quality-off");
    let file = folder.path().join("samples.jsonl");
    let settings = QualitySettings {
        file: Some(file.clone()),
        ..QualitySettings::default()
    };
    let parts = started_option(settings.clone());
    assert!(parts.records.sinks.is_empty() && parts.records.text_sampling.samples.is_empty());
    assert!(!file.exists());
    let enabled = QualitySettings {
        enabled: true,
        ..QualitySettings::default()
    };
    let parts = started_option(enabled);
    assert_eq!(parts.records.sinks.len(), 1);
    assert!(parts.records.text_sampling.samples.is_empty());
    let sampled = QualitySettings {
        enabled: true,
        ..settings
    };
    let parts = started_option(sampled);
    assert_eq!(parts.records.sinks.len(), 1);
    let sample = parts.records.text_sampling.samples[0];
    assert_eq!(sample.consumer, CONSUMER);
    assert!(sample.is_by_trace && sample.share > 0.0);
}

#[test]
fn the_judge_gets_redacted_texts() {
    let (url, thread) = spawn_judge(vec![judge_response(r#"{"score":0.25,"why":"short"}"#)]);
    let settings = QualitySettings {
        judge: Some(url),
        ..QualitySettings::default()
    };
    let record = sampled(
        "I am bob@example.com",
        "Your key is sk-abcdefgh01234567abcdefgh",
    );
    let (lines, snapshot) = process_records("judged", settings, &[record], 1);
    let request = &thread.join().unwrap()[0];
    let expected = json!({
        "ts": lines[0]["ts"], "request_id": "r-1", "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "model": "tiny", "prompt": "I am [email]", "answer": "Your key is [key]",
        "prompt_cut": false, "answer_cut": false, "redacted": 2,
        "finish_reasons": ["stop"], "output_tokens": 16, "refused": false,
    });
    assert_eq!(*request, expected);
    let mut expected = expected;
    expected["score"] = json!(0.25);
    assert_eq!(lines, [expected]);
    assert_eq!(
        snapshot.samples,
        QualitySampleCounts {
            done: 1,
            ..QualitySampleCounts::default()
        }
    );
}

#[test]
fn invalid_answers_give_no_score() {
    let answers = [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
        "nonsense\r\n\r\n",
        "HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 13\r\n\r\n{\"score\":0.5}",
        judge_response("{}"),
        judge_response(r#"[{"score":0.5}]"#),
        judge_response(r#"{"score":1.5}"#),
        judge_response(r#"{"score":-0.1}"#),
        judge_response(r#"{"score":"good"}"#),
        judge_response(r#"{"score":1e999}"#),
    ];
    let (url, thread) = spawn_judge(answers.to_vec());
    let settings = QualitySettings {
        judge: Some(url),
        judge_timeout: Duration::from_millis(500),
        ..QualitySettings::default()
    };
    let records: Vec<RequestRecord> = (0..answers.len())
        .map(|number| sampled(&number.to_string(), "a"))
        .collect();
    let (lines, snapshot) = process_records("hangs", settings, &records, 10);
    thread.join().unwrap();
    assert_eq!(
        snapshot.samples.judge_failed as usize,
        answers.len(),
        "{:?}",
        snapshot.samples
    );
    assert!(lines.iter().all(|line| line.get("score").is_none()));
    let prompts: Vec<&str> = lines
        .iter()
        .map(|line| line["prompt"].as_str().unwrap())
        .collect();
    assert_eq!(
        prompts,
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        "all prompts in order"
    );
    assert_eq!(snapshot.models[0].scores, [None, None]);
    let reason = snapshot.judge_error.unwrap();
    assert!(reason.contains("`score`"), "{reason}");
}

#[test]
fn an_unreachable_judge_is_counted() {
    let judge = Some("http://127.0.0.1:9/".to_owned());
    let settings = QualitySettings {
        judge,
        ..QualitySettings::default()
    };
    let (lines, snapshot) = process_records("absent", settings, &[sampled("a", "b")], 1);
    assert_eq!((lines.len(), snapshot.samples.judge_failed), (1, 1));
    let reason = snapshot.judge_error.unwrap();
    assert!(reason.contains("refused"), "{reason}");
}

#[test]
fn a_full_queue_drops_and_counts() {
    let trends = Arc::new(QualityTrends::new(
        Duration::from_hours(1),
        Duration::from_hours(2),
    ));
    let queue = Some(PayloadQueue::without_thread(1));
    let quality = QualityMonitor {
        consumer: Some(CONSUMER),
        trends,
        queue,
        counters: Arc::default(),
    };
    (0..3).for_each(|_| quality.finished(&[&sampled("a", "b")]));
    assert_eq!(quality.vitals(clock::now()).samples.dropped, 2);
}

#[test]
fn only_complete_sampled_responses_are_written() {
    let mut text_for = TextConsumers::default();
    text_for.add(OTHER_CONSUMER);
    let records = [
        sampled("yes", "a"),
        RequestRecord {
            text_for,
            ..sampled("payload log only", "a")
        },
        RequestRecord {
            outcome: Outcome::Cancelled,
            ..sampled("disconnected", "a")
        },
        RequestRecord {
            api: Some(Api::Embeddings),
            ..sampled("no text", "a")
        },
    ];
    let (lines, snapshot) = process_records("whole", QualitySettings::default(), &records, 1);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (&lines[0]["prompt"], snapshot.samples.done),
        (&json!("yes"), 1)
    );
}

/// Returns a snapshot of the model after requests with these model refusals, one per minute.
fn snapshot_after(refusals: &[bool]) -> ModelQuality {
    let enabled = QualitySettings {
        enabled: true,
        ..QualitySettings::default()
    };
    let (quality, _) = QualityMonitor::start(&enabled, &texts(), 1 << 30, None).unwrap();
    let mut now = clock::now();
    for is_refusal in refusals {
        now += Duration::from_mins(1);
        let mut record = streamed();
        record.timings.ended = Some(now);
        record.observed.is_refusal = *is_refusal;
        quality.finished(&[&record]);
    }
    quality.vitals(now).models.remove(0)
}

#[test]
fn refusals_have_two_windows() {
    assert_eq!(
        snapshot_after(&[false; 100]).refusals,
        [Some(0.0), Some(0.0)]
    );
    let [recent, baseline] =
        snapshot_after(&[[false; 1_000].as_slice(), &[true; 60]].concat()).refusals;
    let (recent, baseline) = (recent.unwrap(), baseline.unwrap());
    assert!(
        (0.6..0.7).contains(&recent) && (0.0..0.15).contains(&baseline),
        "{recent} {baseline}"
    );
}

#[test]
fn mean_scores_need_enough_samples() {
    let trends = QualityTrends::new(Duration::from_hours(1), Duration::from_hours(24));
    let now = clock::now();
    (0..30).for_each(|_| trends.record_score("tiny", 0.5, now));
    (0..5).for_each(|_| trends.record_score("rare", 0.5, now));
    let snapshots = trends.snapshot(now);
    let scores: Vec<_> = snapshots
        .iter()
        .map(|model| (&*model.model, model.scores))
        .collect();
    assert_eq!(scores, [("rare", [None; 2]), ("tiny", [Some(0.5); 2])]);
    assert!(
        trends.snapshot(now + Duration::from_hours(80)).is_empty(),
        "idle models are removed"
    );
}
