//! What a judge and the file get, what becomes of it, and what is told.

use super::*;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use tokenweir_core::record::TextFor;
use tokenweir_core::record::sample::streamed;

fn texts() -> content::Settings {
    content::Settings::default()
}

fn file(name: &str) -> PathBuf {
    let name = format!("tokenweir-{}-quality-{name}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(name);
    let _ = fs::remove_file(&file);
    file
}

fn excerpt(text: &str) -> Excerpt {
    let mut excerpt = Excerpt::new(texts().room());
    excerpt.push(text.as_bytes());
    excerpt
}

/// A request in the sample.
fn sampled(prompt: &str, answer: &str) -> RequestRecord {
    let mut record = streamed();
    record.prompt = Some(excerpt(prompt));
    record.observed.text = Some(excerpt(answer));
    record.text_for = TextFor { log: false, quality: true };
    record
}

/// What is written of these requests, of which so many are samples, and what became of them.
fn lines(settings: Settings, records: &[RequestRecord], count: u64) -> (Vec<Value>, Vitals) {
    let settings = Settings { enabled: true, sample: 0.05, ..settings };
    let (quality, running) = Quality::start(&settings, &texts()).unwrap().unwrap();
    for record in records {
        quality.finished(record);
    }
    // However busy the machine is: at the end there is only a moment.
    let is_over = |it: Counts| it.done + it.dropped + it.redactor_failed + it.judge_failed >= count;
    while !is_over(quality.vitals(clock::now()).samples) {
        thread::yield_now();
    }
    drop(running);
    let file = settings.file.unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, quality.vitals(clock::now()))
}

/// A judge that answers so many requests, each on a connection of its own, and gives their bodies.
fn judge(answers: Vec<&'static str>) -> (String, JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let mut held = Vec::new();
        let asked = answers.into_iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut asked, mut piece) = (Vec::new(), [0; 4_096]);
            while !asked.ends_with(b"}") {
                let length = stream.read(&mut piece).unwrap();
                asked.extend_from_slice(&piece[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            // One that says nothing goes on saying nothing.
            held.push(stream);
            let text = String::from_utf8(asked).unwrap();
            serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap()
        });
        asked.collect()
    });
    (format!("http://{addr}/score"), serving)
}

fn verdict(body: &str) -> &'static str {
    let length = body.len();
    let answer =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    Box::leak(answer.into_boxed_str())
}

#[test]
fn it_is_off_unless_it_is_switched_on_and_then_nobody_gets_any_text_unless_he_is_named() {
    let named = Settings { file: Some(file("off")), ..Settings::default() };
    assert!(Quality::start(&named, &texts()).unwrap().is_none());
    assert!(!named.file.as_ref().unwrap().exists());
    assert!(named.share() <= 0.0);
    let enabled = Settings { enabled: true, ..Settings::default() };
    let (quality, running) = Quality::start(&enabled, &texts()).unwrap().unwrap();
    assert!(running.is_none() && quality.jobs.is_none() && enabled.share() <= 0.0);
}

#[test]
fn a_judge_gets_texts_without_what_is_private_and_its_score_is_written_and_told() {
    let (url, serving) = judge(vec![verdict(r#"{"score":0.25,"why":"short"}"#)]);
    let settings = Settings { file: Some(file("judged")), judge: Some(url), ..Settings::default() };
    let record = sampled("I am bob@example.com", "Your key is sk-abcdefgh01234567abcdefgh");
    let (lines, vitals) = lines(settings, &[record], 1);
    let asked = &serving.join().unwrap()[0];
    let expected = json!({
        "ts": lines[0]["ts"], "request_id": "r-1", "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "model": "tiny", "prompt": "I am [email]", "answer": "Your key is [key]",
        "prompt_cut": false, "answer_cut": false, "redacted": 2,
        "finish_reasons": ["stop"], "output_tokens": 16, "refused": false,
    });
    assert_eq!(*asked, expected);
    let mut expected = expected;
    expected["score"] = json!(0.25);
    assert_eq!(lines, [expected]);
    assert_eq!(vitals.samples, Counts { done: 1, ..Counts::default() });
}

#[test]
fn a_judge_that_hangs_or_answers_garbage_loses_nothing_but_its_score() {
    let answers = [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
        "nonsense\r\n\r\n",
        "HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 13\r\n\r\n{\"score\":0.5}",
        verdict("{}"),
        verdict(r#"[{"score":0.5}]"#),
        verdict(r#"{"score":1.5}"#),
        verdict(r#"{"score":-0.1}"#),
        verdict(r#"{"score":"good"}"#),
        verdict(r#"{"score":1e999}"#),
    ];
    let (url, serving) = judge(answers.to_vec());
    let settings = Settings {
        file: Some(file("hangs")),
        judge: Some(url),
        judge_timeout: Duration::from_millis(500),
        ..Settings::default()
    };
    let records: Vec<RequestRecord> =
        (0..answers.len()).map(|number| sampled(&number.to_string(), "a")).collect();
    let (lines, vitals) = lines(settings, &records, 10);
    serving.join().unwrap();
    assert_eq!(vitals.samples.judge_failed as usize, answers.len(), "{:?}", vitals.samples);
    assert!(lines.iter().all(|line| line.get("score").is_none()));
    let prompts: Vec<&str> = lines.iter().map(|line| line["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "all, in their order");
    assert_eq!(vitals.models[0].scores, [None, None]);
}

#[test]
fn a_judge_that_is_not_there_is_counted() {
    let judge = Some("http://127.0.0.1:9/".to_owned());
    let settings = Settings { file: Some(file("absent")), judge, ..Settings::default() };
    let (lines, vitals) = lines(settings, &[sampled("a", "b")], 1);
    assert_eq!((lines.len(), vitals.samples.judge_failed), (1, 1));
}

#[test]
fn a_queue_that_is_full_costs_samples_which_are_counted() {
    let trends = Arc::new(Trends::over(Duration::from_hours(1), Duration::from_hours(2)));
    let jobs = Some(Arc::new(Gatherer::new(TOGETHER, 1)));
    let quality = Quality { trends, jobs, tallies: Arc::default() };
    (0..3).for_each(|_| quality.finished(&sampled("a", "b")));
    assert_eq!(quality.vitals(clock::now()).samples.dropped, 2);
}

#[test]
fn what_a_redactor_did_not_treat_goes_to_nobody() {
    let (url, _listening) = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (format!("http://{}/", listener.local_addr().unwrap()), listener)
    };
    let texts = content::Settings { command: Some(vec!["false".to_owned()]), ..texts() };
    let settings = Settings {
        enabled: true,
        file: Some(file("untreated")),
        judge: Some(url),
        ..Settings::default()
    };
    let (quality, running) = Quality::start(&settings, &texts).unwrap().unwrap();
    quality.finished(&sampled("a", "b"));
    drop(running);
    let samples = quality.vitals(clock::now()).samples;
    assert_eq!(samples, Counts { redactor_failed: 1, ..Counts::default() });
    assert_eq!(fs::read_to_string(settings.file.as_ref().unwrap()).unwrap(), "");
    fs::remove_file(settings.file.unwrap()).unwrap();
}

#[test]
fn only_whole_answers_of_the_sample_are_given_away() {
    let of_log = TextFor { log: true, quality: false };
    let records = [
        sampled("yes", "a"),
        RequestRecord { text_for: of_log, ..sampled("of the log only", "a") },
        RequestRecord { outcome: Outcome::Cancelled, ..sampled("left", "a") },
        RequestRecord { api: Some(Api::Embeddings), ..sampled("no text", "a") },
    ];
    let settings = Settings { file: Some(file("whole")), ..Settings::default() };
    let (lines, vitals) = lines(settings, &records, 1);
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["prompt"], vitals.samples.done), (&json!("yes"), 1));
}

/// What is told after so many requests of these lengths, one a minute.
fn told(requests: &[(u64, bool)]) -> OfModel {
    let enabled = Settings { enabled: true, ..Settings::default() };
    let (quality, _) = Quality::start(&enabled, &texts()).unwrap().unwrap();
    let mut now = clock::now();
    for (tokens, is_refusal) in requests {
        now += Duration::from_mins(1);
        let mut record = streamed();
        record.timings.ended = Some(now);
        record.observed.usage.output = Some(*tokens);
        record.observed.is_refusal = *is_refusal;
        quality.finished(&record);
    }
    quality.vitals(now).models.remove(0)
}

#[test]
fn the_drift_moves_when_lengths_move_and_does_not_when_they_do_not() {
    let steady = vec![(100, false); 2_000];
    let drift = told(&steady).output_drift.unwrap();
    assert!((drift - 1.0).abs() < 1e-9, "{drift}");
    let drift = told(&[&steady[..], &[(300, false); 60]].concat()).output_drift.unwrap();
    assert!(drift > 1.5, "{drift}");
    let drift = told(&[&steady[..], &[(30, false); 60]].concat()).output_drift.unwrap();
    assert!(drift < 0.67, "{drift}");
}

#[test]
fn refusals_are_told_as_a_share_of_lately_and_of_long() {
    assert_eq!(told(&[(10, false); 100]).refusals, [Some(0.0), Some(0.0)]);
    let [recent, baseline] =
        told(&[[(10, false); 1_000].as_slice(), &[(10, true); 60]].concat()).refusals;
    let (recent, baseline) = (recent.unwrap(), baseline.unwrap());
    assert!((0.6..0.7).contains(&recent) && (0.0..0.15).contains(&baseline), "{recent} {baseline}");
}

#[test]
fn scores_are_told_by_model_once_there_are_enough() {
    let trends = Trends::over(Duration::from_hours(1), Duration::from_hours(24));
    let now = clock::now();
    (0..30).for_each(|_| trends.score("tiny", 0.5, now));
    (0..5).for_each(|_| trends.score("rare", 0.5, now));
    let told = trends.at(now);
    let scores: Vec<_> = told.iter().map(|model| (&*model.model, model.scores)).collect();
    assert_eq!(scores, [("rare", [None; 2]), ("tiny", [Some(0.5); 2])]);
    assert!(trends.at(now + Duration::from_hours(80)).is_empty(), "and is forgotten in the end");
}
