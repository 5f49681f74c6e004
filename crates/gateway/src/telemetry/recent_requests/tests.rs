//! Tests of the windows, the lists and the latencies of recent requests, at fixed instants.

use super::stats_window::{WindowHistogram, add_gaps, quantiles};
use super::*;
use std::time::Duration;
use tokenweir_protocol::histogram::OutputGapHistogram;
use tokenweir_request::record::fixtures::streamed;
use tokenweir_request::record::{Attempt, ErrorSource, Outcome, ShortName, SlowCause};

/// Returns a sample record whose request ended at this instant.
fn record_ended_at(at: Instant) -> RequestRecord {
    let mut record = streamed();
    record.timings.ended = Some(at);
    record
}

/// Creates statistics without requests that begin at the returned instant.
fn recent_requests() -> (Instant, RecentRequests) {
    let epoch = streamed().timings.ended.unwrap() + Duration::from_secs(10);
    (epoch, RecentRequests::new(epoch, Vec::new()))
}

#[test]
fn error_responses_are_counted_by_their_origin() {
    let (epoch, recent) = recent_requests();
    let mut record = record_ended_at(epoch);
    record.status = Some(403);
    record.outcome = Outcome::ClientError;
    record.attempts[0].status = Some(403);
    record.attempts[0].proxy = Some(ErrorSource::Proxy(ShortName::first_word(b"awselb/2.0")));
    recent.finished(&[&record]);
    let minute = recent.last_minute(epoch);
    let words = "403 by a proxy in front of the engines (server: awselb/2.0), not by an engine";
    assert_eq!(minute.error_sources, [(words.to_owned(), 1)].into());
    assert_eq!(minute.backend_client_errors[&403], 1);
}

#[test]
fn only_requests_of_the_last_minute_count() {
    let (epoch, recent) = recent_requests();
    let at = |seconds| epoch + Duration::from_secs(seconds);
    recent.finished(&[&record_ended_at(at(1))]);
    recent.finished(&[&RequestRecord {
        outcome: Outcome::Truncated,
        ..record_ended_at(at(58))
    }]);
    recent.finished(&[&RequestRecord {
        outcome: Outcome::Cancelled,
        ..record_ended_at(at(59))
    }]);
    let minute = recent.last_minute(at(59));
    assert_eq!(
        (minute.requests, minute.failed, minute.client_disconnects),
        (3, 1, 1)
    );
    assert_eq!(
        (minute.output_tokens, minute.by_backend["vllm-0"].requests),
        (48, 3)
    );
    assert!((minute.seconds - 59.0).abs() < 1e-9, "{}", minute.seconds);
    assert_eq!(
        (minute.ttft.unwrap().count, minute.e2e.unwrap().count),
        (3, 1)
    );
    assert_eq!(
        minute.itl.unwrap().count,
        3 * u64::from(streamed().observed.inter_chunk_latency.count())
    );
    assert_eq!(recent.last_minute(at(66)).requests, 2);
    let idle_minute = recent.last_minute(at(1_000));
    assert_eq!((idle_minute.requests, idle_minute.ttft), (0, None));
    assert!(
        (60.0..65.0).contains(&idle_minute.seconds),
        "{}",
        idle_minute.seconds
    );
    assert_eq!(
        recent.totals(),
        RequestTotals {
            requests: 3,
            output_tokens: 48
        }
    );
}

#[test]
fn refusals_failures_and_disconnects_count_separately() {
    let (epoch, recent) = recent_requests();
    for outcome in Outcome::ALL {
        recent.finished(&[&RequestRecord {
            outcome,
            ..record_ended_at(epoch)
        }]);
    }
    let minute = recent.last_minute(epoch);
    let failures = Outcome::ALL
        .iter()
        .filter(|outcome| outcome.is_backend_failure())
        .count();
    assert_eq!((minute.failed, minute.refused), (failures as u64, 1));
    assert_eq!((minute.requests, minute.client_disconnects), (10, 1));
    let at = |seconds| epoch + Duration::from_secs(seconds);
    let counts = |seconds| {
        let LastMinute {
            requests,
            refused,
            failed,
            ..
        } = recent.last_windows(2, at(seconds));
        (requests, refused, failed)
    };
    assert_eq!(
        (counts(14), counts(15)),
        ((10, 1, failures as u64), (0, 0, 0))
    );
}

#[test]
fn client_errors_count_by_sender_and_status() {
    let (epoch, recent) = recent_requests();
    for (status, refusal, outcome) in [
        (401, None, Outcome::ClientError),
        (401, None, Outcome::ClientError),
        (404, Some("unknown_model"), Outcome::ClientError),
        (429, Some("saturated"), Outcome::Rejected),
        (502, None, Outcome::UpstreamError),
    ] {
        let mut record = record_ended_at(epoch);
        record.attempts[0].status = Some(status);
        if refusal.is_some() {
            record.attempts.clear();
        }
        recent.finished(&[&RequestRecord {
            status: Some(status),
            refusal,
            outcome,
            ..record
        }]);
    }
    let minute = recent.last_minute(epoch);
    assert_eq!(minute.backend_client_errors, [(401, 2)].into());
    assert_eq!(minute.gateway_client_errors, [(404, 1)].into());
    assert_eq!(minute.by_backend["vllm-0"].client_errors, [(401, 2)].into());
    assert_eq!(recent.history(epoch).client_errors, [3]);
}

#[test]
fn slow_requests_count_by_cause_and_objective() {
    let (epoch, recent) = recent_requests();
    let objective = |text: &str| Objective {
        name: "chat".into(),
        model: None,
        tier: None,
        definition: text.parse().unwrap(),
    };
    let objectives = vec![
        objective("ttft < 50ms for 99 %"),
        objective("first_answer < 200ms for 90 %"),
    ];
    let recent = RecentRequests {
        objectives,
        ..recent
    };
    let slow = |slow| RequestRecord {
        slow: Some(slow),
        ..record_ended_at(epoch)
    };
    recent.finished(&[&slow(SlowCause::EngineQueue), &slow(SlowCause::SlowDecode)]);
    recent.finished(&[&slow(SlowCause::SlowClient)]);
    let mut reasoning = record_ended_at(epoch);
    reasoning.timings.first_reasoning = reasoning.timings.first_output;
    reasoning.timings.first_answer = reasoning.timings.last_output;
    recent.finished(&[&reasoning]);
    let minute = recent.last_minute(epoch);
    let expected = [
        ("engine_queue".to_owned(), 1),
        ("slow_decode".to_owned(), 1),
    ];
    assert_eq!((minute.slow, minute.slow_output), (expected.into(), 1));
    let counts: Vec<_> = minute
        .objectives
        .iter()
        .map(|it| (it.requests, it.slow))
        .collect();
    assert_eq!(counts, [(4, 4), (4, 1)]);
    assert_eq!(
        minute.first_answer.map(|quantiles| quantiles.count),
        Some(1)
    );
}

#[test]
fn the_ttft_of_a_backend_is_a_mean() {
    let (epoch, recent) = recent_requests();
    let ttft = streamed().upstream_ttft().unwrap().as_secs_f64();
    (0..2).for_each(|_| recent.finished(&[&record_ended_at(epoch)]));
    let mean = recent.last_minute(epoch).by_backend["vllm-0"]
        .ttft_seconds
        .unwrap();
    assert!((mean - ttft).abs() < 1e-6, "{mean} {ttft}");
    let later = recent.last_minute(epoch + Duration::from_secs(70));
    assert!(later.by_backend.is_empty());
}

#[test]
fn old_windows_are_removed() {
    let (epoch, recent) = recent_requests();
    for minute in 0..100 {
        recent.finished(&[&record_ended_at(epoch + Duration::from_mins(minute))]);
    }
    assert_eq!(lock(&recent.state).windows.len(), 2);
}

#[test]
fn slow_requests_stay_in_the_list() {
    let (epoch, recent) = recent_requests();
    recent.finished(&[&RequestRecord {
        slow: Some(SlowCause::Stalled),
        ..record_ended_at(epoch)
    }]);
    (0..100).for_each(|_| recent.finished(&[&record_ended_at(epoch)]));
    let listed = recent.ended();
    assert_eq!(listed.len(), MAX_LISTED_REQUESTS + 1);
    assert!(listed.is_sorted_by_key(|request| std::cmp::Reverse(request.number)));
    assert_eq!(
        listed.last().and_then(|request| request.facts.slow),
        Some(SlowCause::Stalled)
    );
}

#[test]
fn only_sampled_traces_have_an_id() {
    let (_, recent) = recent_requests();
    recent.finished(&[&RequestRecord {
        sample_reason: None,
        ..streamed()
    }]);
    assert_eq!(recent.ended()[0].facts.trace_id, None);
    recent.finished(&[&RequestRecord {
        sample_reason: Some(tokenweir_request::record::SampleReason::Slow),
        ..streamed()
    }]);
    assert_eq!(
        recent.ended()[0].facts.trace_id,
        Some(streamed().trace.unwrap().trace_id)
    );
}

#[test]
fn inter_token_quantiles_cover_all_streams() {
    let mut gaps = OutputGapHistogram::default();
    gaps.record_duration_n(Duration::from_millis(28), 99);
    gaps.record_duration_n(Duration::from_mins(2), 1);
    let mut latencies = WindowHistogram::default();
    assert_eq!(quantiles(&latencies), None);
    add_gaps(&mut latencies, &gaps);
    add_gaps(&mut latencies, &gaps);
    let quantiles = quantiles(&latencies).unwrap();
    assert_eq!((quantiles.count, quantiles.max), (200, 120.0));
    assert!((0.025..=0.03).contains(&quantiles.p95), "{quantiles:?}");
}

#[test]
fn a_failed_attempt_counts_for_its_backend() {
    let (epoch, recent) = recent_requests();
    let mut record = record_ended_at(epoch);
    let answered = record.attempts[0].clone();
    let id = tokenweir_engine::address::BackendId::new("vllm-1");
    let failed = Attempt {
        backend: id,
        failure: Some("connect_error"),
        ..answered.clone()
    };
    record.attempts = vec![failed, answered];
    recent.finished(&[&record]);
    let by_backend = recent.last_minute(epoch).by_backend;
    let counts = |name: &str| {
        let minute = &by_backend[name];
        (minute.requests, minute.attempts, minute.failed_attempts)
    };
    assert_eq!((counts("vllm-0"), counts("vllm-1")), ((1, 1, 0), (0, 1, 1)));
    let broken = RequestRecord {
        outcome: Outcome::Truncated,
        ..record_ended_at(epoch)
    };
    recent.finished(&[&broken]);
    assert_eq!(
        recent.last_minute(epoch).by_backend["vllm-0"].failed_attempts,
        1
    );
}

#[test]
fn the_history_has_a_value_per_interval() {
    let (epoch, recent) = recent_requests();
    let at = |seconds| epoch + Duration::from_secs(seconds);
    for second in [1, 8, 12, 12, 47] {
        recent.finished(&[&record_ended_at(at(second))]);
    }
    let history = recent.history(at(47));
    assert_eq!(history.requests, [2, 2, 0, 0, 1]);
    assert_eq!(
        (history.interval_seconds, history.last_seconds),
        (10.0, 7.0)
    );
    let is_known: Vec<bool> = history.ttft_p95.iter().map(Option::is_some).collect();
    assert_eq!(is_known, [true, true, false, false, true]);
    assert_eq!(recent.history(at(3_595)).requests[..2], [2, 2]);
    let hour_later = recent.history(at(3_605));
    assert_eq!(
        (hour_later.requests.len(), hour_later.requests[0]),
        (360, 2)
    );
    assert_eq!(hour_later.requests.iter().sum::<u64>(), 3);
}

#[test]
fn the_history_stays_bounded() {
    let (epoch, recent) = recent_requests();
    for seconds in (0..86_400).step_by(5) {
        recent.finished(&[&record_ended_at(epoch + Duration::from_secs(seconds))]);
    }
    let history = recent.history(epoch + Duration::from_secs(86_399));
    assert_eq!(history.requests, vec![2; 360]);
    assert!(lock(&recent.state).history.0.len() <= 360);
}
