//! Tests of the file of the usage log: its line numbers, its gaps, and the order of reading.

use super::event_reader::EventReader;
use super::state_file::StateFile;
use super::*;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tokenweir_net::testing::TempFolder;
use tokenweir_request::record::fixtures::streamed;

fn settings(file: PathBuf) -> UsageLogSettings {
    UsageLogSettings {
        file,
        max_bytes: 1 << 20,
        gateway: "gateway-0".to_owned(),
        push: None,
    }
}

fn open(settings: &UsageLogSettings) -> UsageFile {
    UsageFile::open(settings, &Arc::default(), false)
        .unwrap()
        .unwrap()
}

fn records(count: usize) -> Vec<UsageRecord> {
    vec![UsageRecord::from_record(&streamed()); count]
}

fn lines(settings: &UsageLogSettings) -> Vec<Value> {
    let text = fs::read_to_string(&settings.file).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The short form of each line: `usage`, `gap` or `stop`.
fn kinds(lines: &[Value]) -> Vec<&str> {
    let short = |line: &Value| match line["type"].as_str().unwrap() {
        "tokenweir.usage" => "usage",
        "tokenweir.usage.gap" => "gap",
        "tokenweir.usage.stop" => "stop",
        other => panic!("{other}"),
    };
    lines.iter().map(short).collect()
}

/// Asserts that all lines have the same series and the numbers from 1.
fn assert_numbered(lines: &[Value]) {
    let series = lines[0]["id"].as_str().unwrap().strip_suffix("-1").unwrap();
    for (number, line) in (1_u64..).zip(lines) {
        assert_eq!(line["id"], format!("{series}-{number}"));
        assert_eq!(line["data"]["sequence"], number);
    }
}

#[test]
fn a_line_is_a_cloudevent_of_the_request() {
    let folder = TempFolder::new("usage-line");
    let settings = settings(folder.path().join("usage.jsonl"));
    open(&settings).write(&records(1));
    let mut line = lines(&settings).swap_remove(0);
    let id = line["id"].take();
    assert!(id.as_str().unwrap().ends_with("-1"), "{id}");
    let expected = serde_json::json!({
        "specversion": "1.0", "id": null, "source": "/tokenweir/gateway-0",
        "type": "tokenweir.usage", "time": "2027-01-15T08:00:00.410Z", "subject": "_none",
        "data": {
            "sequence": 1, "request_id": "r-1", "api": "chat", "model": "tiny",
            "served_model": "tiny", "backend": "vllm-0", "input_tokens": 12, "output_tokens": 16,
            "cached_tokens": 8, "reasoning_tokens": 6, "token_counts": "exact",
            "wasted_tokens": 0, "recomputed_tokens": 0, "backend_seconds": 0.405,
            "duration_seconds": 0.41, "attempts": 1, "status": 200,
            "outcome": "ok",
        },
    });
    assert_eq!(line, expected);
}

#[test]
fn numbers_continue_after_a_stop() {
    let folder = TempFolder::new("usage-stop");
    let settings = settings(folder.path().join("usage.jsonl"));
    for _ in 0..3 {
        open(&settings).write(&records(2));
    }
    let lines = lines(&settings);
    assert_numbered(&lines);
    assert_eq!(kinds(&lines), ["usage", "usage", "stop"].repeat(3));
}

#[test]
fn a_killed_process_leaves_a_gap() {
    let folder = TempFolder::new("usage-killed");
    let settings = settings(folder.path().join("usage.jsonl"));
    open(&settings).write(&records(2));
    let text = fs::read_to_string(&settings.file).unwrap();
    let stop = text.lines().last().unwrap().len() + 1;
    for cut in [stop, stop + 1, stop + 20, stop + 400] {
        fs::write(&settings.file, &text[..text.len() - cut]).unwrap();
        let counters = Arc::<UsageCounters>::default();
        let mut file = UsageFile::open(&settings, &counters, false)
            .unwrap()
            .unwrap();
        file.write(&records(1));
        let whole = if cut == stop { 2 } else { 1 };
        let lines = lines(&settings);
        assert_numbered(&lines);
        assert_eq!(kinds(&lines)[whole..], ["gap", "usage"], "{cut}");
        let gap = &lines[whole]["data"];
        assert_eq!(
            (&gap["cause"], &gap["records"]),
            (&"unclean_stop".into(), &Value::Null)
        );
        assert_eq!(counters.status(false).gaps.unclean_stop, 1);
        counters.state.get().unwrap();
    }
}

#[test]
fn lost_records_are_stated_in_the_file() {
    let folder = TempFolder::new("usage-lost");
    let settings = settings(folder.path().join("usage.jsonl"));
    let counters = Arc::<UsageCounters>::default();
    let queue = Arc::new(BatchQueue::new(Duration::ZERO, 2));
    let log = UsageLog {
        queue: queue.clone(),
        counters: counters.clone(),
        is_pushed: false,
    };
    (0..5).for_each(|_| log.finished(&[&streamed()]));
    let not_sent = RequestRecord {
        attempts: Vec::new(),
        ..streamed()
    };
    log.finished(&[&not_sent]);
    let mut file = UsageFile::open(&settings, &counters, false)
        .unwrap()
        .unwrap();
    file.write(&queue.take_batch());
    let lines = lines(&settings);
    assert_eq!(kinds(&lines), ["gap", "usage", "usage"]);
    assert_eq!(
        (&lines[0]["data"]["cause"], &lines[0]["data"]["records"]),
        (&"lost".into(), &3.into())
    );
    let status = log.status();
    assert_eq!((status.written, status.lost, status.gaps.lost), (2, 3, 1));
}

#[test]
fn a_file_of_another_kind_stays_unchanged() {
    let folder = TempFolder::new("usage-foreign");
    for text in [
        "{}\n",
        "no line feed",
        "{\"specversion\":\"1.0\",\"id\":\"1\"}\n",
        "\n",
    ] {
        let settings = settings(folder.write("foreign.txt", text));
        let error = UsageFile::open(&settings, &Arc::default(), false)
            .err()
            .unwrap();
        assert!(error.to_string().contains("not of a usage log"), "{error}");
        assert_eq!(fs::read_to_string(&settings.file).unwrap(), text);
    }
}

#[test]
fn one_process_at_a_time_writes_the_file() {
    let folder = TempFolder::new("usage-lock");
    let settings = settings(folder.path().join("usage.jsonl"));
    let first_counters = Arc::<UsageCounters>::default();
    let mut first = UsageFile::open(&settings, &first_counters, false)
        .unwrap()
        .unwrap();
    assert!(
        UsageFile::open(&settings, &Arc::default(), false)
            .unwrap()
            .is_none()
    );
    let (second, _guard) = UsageLog::start(settings.clone()).unwrap();
    second.finished(&[&streamed()]);
    first.write(&records(1));
    drop((first, first_counters));
    while second.status().written == 0 {
        std::thread::yield_now();
    }
    let lines = lines(&settings);
    assert_numbered(&lines);
    assert_eq!(kinds(&lines), ["usage", "stop", "usage"]);
}

#[test]
fn events_are_read_in_order_across_rotations() {
    let folder = TempFolder::new("usage-read");
    let settings = settings(folder.path().join("usage.jsonl"));
    let counters = Arc::<UsageCounters>::default();
    let mut file = UsageFile::open(&settings, &counters, false)
        .unwrap()
        .unwrap();
    let mut reader = EventReader::new(&settings.file, 0);
    let mut read = 0;
    for _ in 0..40 {
        file.write(&records(100));
        counters.disk.sync_waiting(&settings.file);
        while let Some(batch) = reader.read_batch(counters.disk.synced.get()).unwrap() {
            let events: Vec<Value> = serde_json::from_slice(&batch.body).unwrap();
            for event in &events {
                read += 1;
                assert_eq!(event["data"]["sequence"], read);
            }
            assert_eq!((batch.last, batch.expired), (read, 0));
        }
    }
    assert_eq!(read, 4_000);
    let length = fs::metadata(&settings.file).unwrap().len();
    assert!(
        length < 1 << 19 && folder.path().join("usage.jsonl.old").exists(),
        "{length}"
    );
    // A reader that was absent for several rotations misses events and counts them.
    let mut late = EventReader::new(&settings.file, 10);
    let batch = late.read_batch(read).unwrap().unwrap();
    let events: Vec<Value> = serde_json::from_slice(&batch.body).unwrap();
    assert_eq!(events[0]["data"]["sequence"], 11 + batch.expired);
    assert!(batch.expired > 1_000, "{}", batch.expired);
}

#[test]
fn events_are_read_after_their_sync() {
    let folder = TempFolder::new("usage-synced");
    let settings = settings(folder.path().join("usage.jsonl"));
    open(&settings).write(&records(5));
    let mut reader = EventReader::new(&settings.file, 1);
    assert!(reader.read_batch(1).unwrap().is_none());
    assert_eq!(reader.read_batch(3).unwrap().unwrap().last, 3);
    let text = fs::read(&settings.file).unwrap();
    fs::write(&settings.file, &text[..text.len() - 30]).unwrap();
    let mut reader = EventReader::new(&settings.file, 3);
    assert_eq!(
        reader.read_batch(9).unwrap().unwrap().last,
        5,
        "without the cut line"
    );
    fs::write(&settings.file, &text).unwrap();
    assert_eq!(
        reader.read_batch(9).unwrap().unwrap().last,
        6,
        "the line is complete now"
    );
}

#[test]
fn acknowledgements_belong_to_their_series() {
    let folder = TempFolder::new("usage-state");
    let log = folder.path().join("usage.jsonl");
    let state = StateFile::lock(&log, false).unwrap().unwrap();
    assert_eq!(state.acknowledged("00000000000000aa"), 0);
    state.acknowledge("00000000000000aa", u64::MAX).unwrap();
    state.acknowledge("00000000000000aa", 12).unwrap();
    assert!(StateFile::lock(&log, false).unwrap().is_none(), "locked");
    drop(state);
    let state = StateFile::lock(&log, false).unwrap().unwrap();
    assert_eq!(state.acknowledged("00000000000000aa"), 12);
    assert_eq!(state.acknowledged("00000000000000ab"), 0);
}
