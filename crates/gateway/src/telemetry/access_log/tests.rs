//! Tests of the access log: fields and rate limits.

use super::*;
use std::sync::{Arc, Mutex};
use tokenweir_request::observe::Sink;
use tokenweir_request::record::fixtures::{at, streamed};
use tokenweir_request::record::{ClientIdentity, NoteValue, RecordNote, Stall, Termination};

/// A note with a field after the number of attempts.
#[derive(Debug, Default)]
struct Added;

impl RecordNote for Added {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(Self)
    }

    fn log_field(&self, after: LogPlace) -> Option<NoteAttribute> {
        let value = NoteValue::Count(1);
        (after == LogPlace::Attempts).then_some(NoteAttribute {
            name: "added",
            value,
        })
    }
}

/// Creates an access log, and the list to which the log writes its lines.
fn create_log(
    is_json: bool,
    per_second: Option<u32>,
    has_keys: bool,
) -> (AccessLog, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink_lines = lines.clone();
    let write = Box::new(move |lines: String| sink_lines.lock().unwrap().push(lines));
    (AccessLog::new(is_json, write, per_second, has_keys), lines)
}

/// Returns the value of `omitted_lines` in a JSON line. 0 if the line lacks the field.
fn omitted_lines(line: &str) -> u64 {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line.get("omitted_lines")
        .map_or(0, |count| count.as_u64().unwrap())
}

#[test]
fn omitted_routine_lines_are_counted() {
    let (log, lines) = create_log(true, Some(10), false);
    let mut record = streamed();
    let epoch = record.timings.accepted;
    for tick in 0..1_000 {
        record.timings.ended = Some(at(epoch, 10_000 + tick));
        log.finished(&[&record]);
    }
    record.timings.ended = Some(at(epoch, 60_000));
    log.finished(&[&record]);
    let lines = lines.lock().unwrap();
    // The log wrote a burst of 10 lines, 9 lines in the second after the burst, and the line of the last
    // request.
    assert_eq!(lines.len(), 10 + 9 + 1);
    assert_eq!(
        lines.iter().map(|line| omitted_lines(line)).sum::<u64>(),
        1_001 - 20
    );
    assert!(!lines[0].contains("omitted_lines"), "{}", lines[0]);
    assert_eq!(log.omitted(), 981);
}

#[test]
fn start_lines_have_their_own_limit() {
    let mut record = streamed();
    record.options.max_tokens = Some(64);
    record.options.messages = Some(3);
    let now = record.timings.accepted;
    for is_json in [true, false] {
        let (log, lines) = create_log(is_json, Some(1), false);
        log.on_start(&record, now);
        log.on_start(&record, now);
        log.finished(&[&record]);
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 2, "one start line was omitted: {lines:?}");
        assert_eq!(log.omitted(), 1);
        if is_json {
            let [start, end] = [0, 1].map(|index: usize| {
                serde_json::from_str::<serde_json::Value>(&lines[index]).unwrap()
            });
            assert_eq!(
                (&start["event"], &end["event"]),
                (&"start".into(), &().into())
            );
            assert_eq!(
                (&start["max_tokens"], &start["messages"]),
                (&64.into(), &3.into())
            );
            for (name, value) in start.as_object().unwrap() {
                let is_own = matches!(name.as_str(), "event" | "stream");
                assert!(
                    is_own || end[name] == *value,
                    "{name}: {value} and {}",
                    end[name]
                );
            }
        } else {
            assert!(lines[0].contains(" --- start ") && lines[0].contains(" max_tokens=64 "));
        }
    }
}

#[test]
fn options_add_fields_to_lines() {
    for is_json in [true, false] {
        let (log, lines) = create_log(is_json, None, false);
        let mut record = streamed();
        log.finished(&[&record]);
        record.notes.set(Added);
        log.finished(&[&record]);
        let lines = lines.lock().unwrap();
        assert!(!lines[0].contains("added"), "{}", lines[0]);
        let expected = if is_json {
            r#""attempts":1,"added":1,"#
        } else {
            " added=1 "
        };
        assert!(lines[1].contains(expected), "{}", lines[1]);
    }
}

#[test]
fn lines_of_unusual_requests_are_always_written() {
    let changes: [fn(&mut RequestRecord); 5] = [
        |record| record.outcome = Outcome::Cancelled,
        |record| record.outcome = Outcome::StreamError,
        |record| record.slow = Some(SlowCause::ALL[0]),
        |record| record.attempts.push(record.attempts[0].clone()),
        |record| {
            let accepted = record.timings.accepted;
            record.observed.stalls.push(Stall {
                last_output_at: accepted,
                detected_at: accepted,
                ended_at: None,
                condition: tokenweir_request::record::BackendCondition::default(),
            });
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let (log, lines) = create_log(false, Some(0), false);
        let mut record = streamed();
        log.finished(&[&record]);
        change(&mut record);
        log.finished(&[&record]);
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 1, "{number}");
        assert!(lines[0].contains(" omitted_lines=1 "), "{}", lines[0]);
    }
}

#[test]
fn only_lines_without_a_tenant_are_limited() {
    type Change = fn(&mut RequestRecord);
    let of_tenant: Change = |record| {
        let (tenant, key) = ("acme".into(), "main".into());
        record.caller = Some(Arc::new(ClientIdentity {
            tenant,
            key,
            is_tenant_label: true,
        }));
    };
    let refused: Change = |record| {
        record.attempts.clear();
        (record.outcome, record.end) = (Outcome::ClientError, Termination::LocalReply);
    };
    for (has_keys, change, expected) in [
        (true, of_tenant, 100),
        (true, refused, REFUSED_PER_SECOND as usize),
        (false, refused, 50),
    ] {
        let (log, lines) = create_log(true, Some(50), has_keys);
        let mut record = streamed();
        change(&mut record);
        (0..100).for_each(|_| log.finished(&[&record]));
        assert_eq!(lines.lock().unwrap().len(), expected, "keys {has_keys}");
        assert_eq!(log.omitted(), 100 - expected as u64);
    }
}

#[test]
fn without_a_limit_every_request_has_a_line() {
    let (log, lines) = create_log(false, None, false);
    (0..5_000).for_each(|_| log.finished(&[&streamed()]));
    assert_eq!(lines.lock().unwrap().len(), 5_000);
}

#[test]
fn the_stream_field_has_the_requested_value() {
    let mut record = streamed();
    record.options.stream = true;
    record.observed.is_stream = false;
    let (log, lines) = create_log(true, None, false);
    log.finished(&[&record]);
    assert!(lines.lock().unwrap()[0].contains("\"stream\":true"));
}
