//! Promises as text, and what every kind of request does to one.

use super::*;
use crate::openai::Api;
use crate::record::sample::{at, streamed};
use crate::record::{End, ModelLabel};
use crate::spread::Gaps;
use proptest::prelude::*;
use std::time::Duration;

fn objective(promise: &str) -> Objective {
    let promise = promise.parse().unwrap();
    Objective { name: "chat".into(), model: None, tier: None, promise }
}

/// The verdict on the sample, a stream with its first token after 100 ms, 15 gaps of 20 ms and
/// its end after 410 ms, once it has been changed.
fn verdict(promise: &str, change: impl FnOnce(&mut RequestRecord)) -> Verdict {
    let mut record = streamed();
    change(&mut record);
    objective(promise).judge(&record)
}

/// A client that left `millis` after its request head was read, before any output.
fn left(record: &mut RequestRecord, millis: u64) {
    record.outcome = Outcome::Cancelled;
    record.end = End::Left;
    record.observed.gaps = Gaps::default();
    let timings = &mut record.timings;
    (timings.first_output, timings.last_output, timings.terminal) = (None, None, None);
    timings.ended = Some(at(timings.accepted, millis));
}

#[test]
fn a_promise_is_read_as_people_write_it() {
    let promise: Promise = "ttft < 1s and itl_p95 < 50ms for 99 %".parse().unwrap();
    let conditions = [
        Condition::Within(Measure::Ttft, Duration::from_secs(1)),
        Condition::Within(Measure::ItlP95, Duration::from_millis(50)),
    ];
    assert_eq!(promise, Promise { conditions: conditions.into(), target: 0.99 });
    let promise: Promise = " success  for 99.9%".parse().unwrap();
    assert_eq!(promise, Promise { conditions: vec![Condition::Success], target: 0.999 });
    let promise: Promise = "e2e<1m 30s for 95 %".parse().unwrap();
    assert_eq!(promise.to_string(), "e2e < 1m 30s for 95 %");
}

#[test]
fn a_text_that_is_no_promise_is_refused_with_what_would_be_right() {
    for (text, problem) in [
        ("ttft < 1s", "`ttft < 1s` has no target; write such as `ttft < 1s for 99 %`"),
        (
            "ttft < 1s for 99",
            "`99` is not a target; write a share between 0 and 100 %, such as 99.9 %",
        ),
        (
            "ttft < 1s for 100 %",
            "`100 %` is not a target; write a share between 0 and 100 %, such as 99.9 %",
        ),
        (
            "ttft < 1s for -1 %",
            "`-1 %` is not a target; write a share between 0 and 100 %, such as 99.9 %",
        ),
        (
            "ttft < 1s for inf %",
            "`inf %` is not a target; write a share between 0 and 100 %, such as 99.9 %",
        ),
        (
            "ttft > 1s for 99 %",
            "`ttft > 1s` is not a condition; write such as `ttft < 1s`, or `success`",
        ),
        (" for 99 %", "`` is not a condition; write such as `ttft < 1s`, or `success`"),
        (
            "ttft < 1 for 99 %",
            "`1` is not a duration; write a number and its unit, such as 250ms, 2s or 10m",
        ),
        ("ttft < 0s for 99 %", "`ttft`: a limit must be more than 0"),
        ("ttft < 1s and ttft < 2s for 99 %", "`ttft` stands here twice"),
        (
            "bytes < 1s for 99 %",
            "`bytes` is not measured; there are ttft, tpot, e2e, itl_p50, itl_p95, itl_p99, itl_max, gap_max, success",
        ),
        ("itl_95 < 1s for 99 %", "`itl_95` is not measured; did you mean `itl_p95`?"),
    ] {
        assert_eq!(text.parse::<Promise>().unwrap_err().to_string(), problem);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        limits in prop::collection::btree_map(0..8_usize, 1_u64..10_000_000, 1..8),
        thousandths in 1_u32..100_000,
    ) {
        let within = |(measure, limit): (&usize, &u64)| {
            Condition::Within(Measure::ALL[*measure], Duration::from_micros(*limit))
        };
        let text = format!("success for {}.{:03} %", thousandths / 1_000, thousandths % 1_000);
        let target = text.parse::<Promise>().unwrap().target;
        let promise = Promise { conditions: limits.iter().map(within).collect(), target };
        prop_assert_eq!(promise.to_string().parse(), Ok(promise));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "([a-z0-9_]{0,4}|ttft|<| for | and |%|1s|99){0,12}") {
        let _ = text.parse::<Promise>();
    }
}

#[test]
fn a_request_that_ended_well_is_good_if_every_condition_holds() {
    for (promise, expected) in [
        ("ttft < 100ms for 99 %", Verdict::Good),
        ("ttft < 99ms for 99 %", Verdict::Bad),
        ("tpot < 20ms for 99 %", Verdict::Good),
        ("tpot < 19ms for 99 %", Verdict::Bad),
        ("e2e < 410ms for 99 %", Verdict::Good),
        ("e2e < 400ms for 99 %", Verdict::Bad),
        ("itl_p95 < 20ms for 99 %", Verdict::Good),
        ("itl_p95 < 15ms for 99 %", Verdict::Bad),
        ("gap_max < 20ms for 99 %", Verdict::Good),
        ("itl_max < 19ms for 99 %", Verdict::Bad),
        ("ttft < 1s and itl_p99 < 15ms for 99 %", Verdict::Bad),
        ("success for 99 %", Verdict::Good),
    ] {
        assert_eq!(verdict(promise, |_| ()), expected, "{promise}");
    }
}

#[test]
fn times_between_tokens_win_over_those_between_events() {
    let shared = |record: &mut RequestRecord| {
        record.observed.itl.add_gap(Duration::from_millis(5), 60);
    };
    assert_eq!(verdict("itl_p50 < 5ms for 99 %", shared), Verdict::Good);
    assert_eq!(verdict("gap_max < 5ms for 99 %", shared), Verdict::Bad);
}

#[test]
fn a_condition_on_what_a_request_does_not_have_is_passed_over() {
    let whole = |record: &mut RequestRecord| {
        record.timings.first_output = None;
        record.observed.gaps = Gaps::default();
        record.asked.stream = false;
    };
    let promise = "ttft < 1ms and tpot < 1ms and itl_max < 1ms for 99 %";
    assert_eq!(verdict(promise, whole), Verdict::Good);
}

#[test]
fn who_is_at_fault_decides_what_an_error_counts_for() {
    let fail = |outcome, status| {
        verdict("ttft < 1s for 99 %", |record| {
            (record.outcome, record.status) = (outcome, Some(status));
        })
    };
    assert_eq!(fail(Outcome::ClientError, 400), Verdict::Excluded);
    assert_eq!(fail(Outcome::ClientError, 404), Verdict::Excluded);
    assert_eq!(fail(Outcome::ClientError, 429), Verdict::Bad, "the replica had no room");
    for outcome in Outcome::ALL {
        let is_exempt = matches!(outcome, Outcome::Ok | Outcome::Cancelled | Outcome::ClientError);
        assert!(is_exempt || fail(outcome, 503) == Verdict::Bad, "{outcome:?}");
    }
}

#[test]
fn a_client_that_left_counts_once_it_had_waited_for_too_long() {
    let promise = "ttft < 1s and e2e < 10s for 99 %";
    let after = |millis| verdict(promise, |record| left(record, millis));
    assert_eq!([after(900), after(1_100)], [Verdict::Excluded, Verdict::Bad]);
    let whole = |millis| {
        verdict(promise, |record| {
            left(record, millis);
            record.asked.stream = false;
        })
    };
    assert_eq!([whole(1_100), whole(10_100)], [Verdict::Excluded, Verdict::Bad]);
}

#[test]
fn a_client_that_left_on_the_way_is_judged_by_what_had_come() {
    let leave = |record: &mut RequestRecord| record.outcome = Outcome::Cancelled;
    assert_eq!(verdict("ttft < 1s and itl_p95 < 20ms for 99 %", leave), Verdict::Good);
    assert_eq!(verdict("ttft < 1s and itl_p95 < 15ms for 99 %", leave), Verdict::Bad);
}

#[test]
fn only_inference_of_its_model_and_tier_counts() {
    let of = |model: Option<&str>, tier: Option<&str>, record: &RequestRecord| {
        let [model, tier] = [model, tier].map(|name| name.map(str::to_owned));
        Objective { model, tier, ..objective("success for 99 %") }.judge(record)
    };
    let record = streamed();
    assert_eq!(of(Some("tiny"), None, &record), Verdict::Good);
    assert_eq!(of(Some("large"), None, &record), Verdict::Excluded);
    assert_eq!(of(None, Some("gold"), &record), Verdict::Excluded);
    let unknown = RequestRecord { model: ModelLabel::other(), ..streamed() };
    assert_eq!(of(None, None, &unknown), Verdict::Good);
    assert_eq!(of(Some("tiny"), None, &unknown), Verdict::Excluded);
    let page = RequestRecord { api: None, ..streamed() };
    assert_eq!(of(None, None, &page), Verdict::Excluded);
    let embedding = RequestRecord { api: Some(Api::Embeddings), ..streamed() };
    assert_eq!(of(None, None, &embedding), Verdict::Good);
}
