//! Tests of objective definitions as text, and of the result of every kind of request.

use super::*;
use crate::error::{GatewayError, RateLimitKind};
use crate::record::fixtures::{at, streamed};
use crate::record::{ModelLabel, Termination};
use proptest::prelude::*;
use std::time::Duration;
use tokenweir_protocol::histogram::OutputGapHistogram;
use tokenweir_protocol::openai::Api;

fn objective(definition: &str) -> Objective {
    let definition = definition.parse().unwrap();
    Objective {
        name: "chat".into(),
        model: None,
        tier: None,
        definition,
    }
}

/// The result of the sample record after a change. The sample is a stream with its first token after 100 ms,
/// then 15 gaps of 20 ms, and its end after 410 ms.
fn evaluate(definition: &str, change: impl FnOnce(&mut RequestRecord)) -> ObjectiveResult {
    let mut record = streamed();
    change(&mut record);
    objective(definition).judge(&record)
}

/// Changes the record: the client disconnected `millis` milliseconds after the request head was read, before
/// any output.
fn disconnect_before_output(record: &mut RequestRecord, millis: u64) {
    record.outcome = Outcome::Cancelled;
    record.end = Termination::ClientDisconnected;
    record.observed.inter_chunk_latency = OutputGapHistogram::default();
    let timings = &mut record.timings;
    (timings.first_output, timings.last_output, timings.terminal) = (None, None, None);
    timings.ended = Some(at(timings.accepted, millis));
}

#[test]
fn only_observed_times_are_limited() {
    let record = streamed();
    assert!(objective("ttft < 9s for 99 %").limits_time_of(&record));
    assert!(!objective("success for 99 %").limits_time_of(&record));
    let mut whole = streamed();
    whole.options.stream = false;
    whole.timings.first_output = None;
    assert!(!objective("ttft < 9s for 99 %").limits_time_of(&whole));
}

#[test]
fn an_objective_definition_is_parsed_from_its_text() {
    let definition: ObjectiveDefinition = "ttft < 1s and itl_p95 < 50ms for 99 %".parse().unwrap();
    let conditions = [
        ObjectiveCondition::Within(LatencyMeasure::Ttft, Duration::from_secs(1)),
        ObjectiveCondition::Within(LatencyMeasure::ItlP95, Duration::from_millis(50)),
    ];
    assert_eq!(
        definition,
        ObjectiveDefinition {
            conditions: conditions.into(),
            target: 0.99
        }
    );
    let definition: ObjectiveDefinition = " success  for 99.9%".parse().unwrap();
    assert_eq!(
        definition,
        ObjectiveDefinition {
            conditions: vec![ObjectiveCondition::Success],
            target: 0.999
        }
    );
    let definition: ObjectiveDefinition = "e2e<1m 30s for 95 %".parse().unwrap();
    assert_eq!(definition.to_string(), "e2e < 1m 30s for 95 %");
}

#[test]
fn invalid_definitions_are_rejected_with_a_suggestion() {
    for (text, problem) in [
        (
            "ttft < 1s",
            "`ttft < 1s` has no target; write it as in `ttft < 1s for 99 %`",
        ),
        (
            "ttft > 1s for 99 %",
            "`ttft > 1s` is not a condition; write one such as `ttft < 1s`, or `success`",
        ),
        (
            " for 99 %",
            "`` is not a condition; write one such as `ttft < 1s`, or `success`",
        ),
        (
            "ttft < 1 for 99 %",
            "`1` is not a duration; write a number and its unit, such as 250ms, 2s or 10m",
        ),
        (
            "ttft < 0s for 99 %",
            "`ttft`: the limit must be more than 0",
        ),
        (
            "ttft < 1s and ttft < 2s for 99 %",
            "the condition `ttft` occurs twice",
        ),
        (
            "bytes < 1s for 99 %",
            "`bytes` is not a measure of an SLO; write one of ttft, first_answer, tpot, e2e, itl_p50, itl_p95, itl_p99, itl_max, gap_max, success",
        ),
        (
            "itl_95 < 1s for 99 %",
            "`itl_95` is not a measure of an SLO; did you mean `itl_p95`?",
        ),
    ] {
        assert_eq!(
            text.parse::<ObjectiveDefinition>().unwrap_err().to_string(),
            problem
        );
    }
    for target in ["99", "100 %", "-1 %", "inf %"] {
        let error = format!("ttft < 1s for {target}")
            .parse::<ObjectiveDefinition>()
            .unwrap_err();
        let problem = "is not a target; write a share between 0 and 100 %, such as 99.9 %";
        assert_eq!(error.to_string(), format!("`{target}` {problem}"));
    }
}

proptest! {
    #[test]
    fn a_formatted_objective_parses_to_itself(
        limits in prop::collection::btree_map(0..8_usize, 1_u64..10_000_000, 1..8),
        thousandths in 1_u32..100_000,
    ) {
        let within = |(measure, limit): (&usize, &u64)| {
            ObjectiveCondition::Within(LatencyMeasure::ALL[*measure], Duration::from_micros(*limit))
        };
        let text = format!("success for {}.{:03} %", thousandths / 1_000, thousandths % 1_000);
        let target = text.parse::<ObjectiveDefinition>().unwrap().target;
        let conditions = limits.iter().map(within).collect();
        let definition = ObjectiveDefinition { conditions, target };
        prop_assert_eq!(definition.to_string().parse(), Ok(definition));
    }

    #[test]
    fn no_text_causes_a_panic(
        text in "([a-z0-9_]{0,4}|ttft|<| for | and |%|1s|99){0,12}",
    ) {
        let _ = text.parse::<ObjectiveDefinition>();
    }
}

#[test]
fn success_is_good_if_all_conditions_hold() {
    for (definition, expected) in [
        ("ttft < 100ms for 99 %", ObjectiveResult::Good),
        ("ttft < 99ms for 99 %", ObjectiveResult::Bad),
        ("tpot < 20ms for 99 %", ObjectiveResult::Good),
        ("tpot < 19ms for 99 %", ObjectiveResult::Bad),
        ("e2e < 410ms for 99 %", ObjectiveResult::Good),
        ("e2e < 400ms for 99 %", ObjectiveResult::Bad),
        ("itl_p95 < 20ms for 99 %", ObjectiveResult::Good),
        ("itl_p95 < 15ms for 99 %", ObjectiveResult::Bad),
        ("gap_max < 20ms for 99 %", ObjectiveResult::Good),
        ("itl_max < 19ms for 99 %", ObjectiveResult::Bad),
        (
            "ttft < 1s and itl_p99 < 15ms for 99 %",
            ObjectiveResult::Bad,
        ),
        ("success for 99 %", ObjectiveResult::Good),
    ] {
        assert_eq!(evaluate(definition, |_| ()), expected, "{definition}");
    }
}

#[test]
fn itl_conditions_use_times_between_tokens() {
    let token_times = |record: &mut RequestRecord| {
        record
            .observed
            .inter_token_latency
            .record_duration_n(Duration::from_millis(5), 60);
    };
    assert_eq!(
        evaluate("itl_p50 < 5ms for 99 %", token_times),
        ObjectiveResult::Good
    );
    assert_eq!(
        evaluate("gap_max < 5ms for 99 %", token_times),
        ObjectiveResult::Bad
    );
}

#[test]
fn conditions_on_missing_times_are_ignored() {
    let without_stream = |record: &mut RequestRecord| {
        record.timings.first_output = None;
        record.observed.inter_chunk_latency = OutputGapHistogram::default();
        record.options.stream = false;
    };
    let definition = "ttft < 1ms and tpot < 1ms and itl_max < 1ms for 99 %";
    assert_eq!(evaluate(definition, without_stream), ObjectiveResult::Good);
}

#[test]
fn failures_are_bad_unless_clients_cause_them() {
    let fail = |outcome, status| {
        evaluate("ttft < 1s for 99 %", |record| {
            (record.outcome, record.status) = (outcome, Some(status));
        })
    };
    assert_eq!(fail(Outcome::ClientError, 400), ObjectiveResult::Excluded);
    assert_eq!(fail(Outcome::ClientError, 404), ObjectiveResult::Excluded);
    assert_eq!(
        fail(Outcome::ClientError, 429),
        ObjectiveResult::Bad,
        "no backend capacity"
    );
    for outcome in Outcome::ALL {
        let is_exempt = matches!(
            outcome,
            Outcome::Ok | Outcome::Cancelled | Outcome::ClientError
        );
        assert!(
            is_exempt || fail(outcome, 503) == ObjectiveResult::Bad,
            "{outcome:?}"
        );
    }
}

#[test]
fn lack_of_capacity_counts_unlike_client_limits() {
    let reject = |error: &GatewayError| {
        evaluate("success for 99 %", |record| {
            record.outcome = error.outcome();
            record.status = Some(error.status().as_u16());
            record.refusal = Some(error.reason());
            record.end = Termination::LocalReply;
        })
    };
    for limited in [
        RateLimitKind::Requests,
        RateLimitKind::Tokens,
        RateLimitKind::Concurrency,
    ] {
        let error = GatewayError::RateLimited {
            limited,
            allowed: 1,
            retry_after: 1,
        };
        assert_eq!(reject(&error), ObjectiveResult::Excluded, "{error:?}");
    }
    assert_eq!(reject(&GatewayError::ClientBusy), ObjectiveResult::Excluded);
    for error in [
        GatewayError::Saturated { retry_after: 1 },
        GatewayError::Shed { retry_after: 1 },
        GatewayError::QueueTimeout {
            waited: Duration::from_secs(30),
            retry_after: 1,
        },
        GatewayError::Overloaded,
    ] {
        assert_eq!(reject(&error), ObjectiveResult::Bad, "{error:?}");
    }
}

#[test]
fn disconnects_are_bad_after_the_limit() {
    let definition = "ttft < 1s and e2e < 10s for 99 %";
    let stream = |millis| {
        evaluate(definition, |record| {
            disconnect_before_output(record, millis);
        })
    };
    assert_eq!(
        [stream(900), stream(1_100)],
        [ObjectiveResult::Excluded, ObjectiveResult::Bad]
    );
    let complete = |millis| {
        evaluate(definition, |record| {
            disconnect_before_output(record, millis);
            record.options.stream = false;
        })
    };
    let results = [complete(1_100), complete(10_100)];
    assert_eq!(results, [ObjectiveResult::Excluded, ObjectiveResult::Bad]);
}

#[test]
fn disconnects_count_by_the_output_so_far() {
    let cancel = |record: &mut RequestRecord| record.outcome = Outcome::Cancelled;
    assert_eq!(
        evaluate("ttft < 1s and itl_p95 < 20ms for 99 %", cancel),
        ObjectiveResult::Good
    );
    assert_eq!(
        evaluate("ttft < 1s and itl_p95 < 15ms for 99 %", cancel),
        ObjectiveResult::Bad
    );
}

#[test]
fn only_requests_of_model_and_tier_count() {
    let result = |model: Option<&str>, tier: Option<&str>, record: &RequestRecord| {
        let [model, tier] = [model, tier].map(|name| name.map(str::to_owned));
        Objective {
            model,
            tier,
            ..objective("success for 99 %")
        }
        .judge(record)
    };
    let record = streamed();
    assert_eq!(result(Some("tiny"), None, &record), ObjectiveResult::Good);
    assert_eq!(
        result(Some("large"), None, &record),
        ObjectiveResult::Excluded
    );
    assert_eq!(
        result(None, Some("gold"), &record),
        ObjectiveResult::Excluded
    );
    let unknown = RequestRecord {
        model: ModelLabel::Unknown,
        ..streamed()
    };
    assert_eq!(result(None, None, &unknown), ObjectiveResult::Good);
    assert_eq!(
        result(Some("tiny"), None, &unknown),
        ObjectiveResult::Excluded
    );
    let page = RequestRecord {
        api: None,
        ..streamed()
    };
    assert_eq!(result(None, None, &page), ObjectiveResult::Excluded);
    let embedding = RequestRecord {
        api: Some(Api::Embeddings),
        ..streamed()
    };
    assert_eq!(result(None, None, &embedding), ObjectiveResult::Good);
}

#[test]
fn the_least_limit_of_a_model_counts() {
    let named = |model: &str, text| Objective {
        model: Some(model.into()),
        ..objective(text)
    };
    let objectives = [
        objective("ttft < 2s and itl_p95 < 80ms for 99 %"),
        named("tiny", "tpot < 50ms and e2e < 1s for 99 %"),
        named("large", "ttft < 1s and itl_max < 10ms for 99 %"),
    ];
    let limits = |model| latency_limits(&objectives, model);
    assert_eq!(
        limits(Some("tiny")),
        LatencyLimits {
            ttft: Some(2.0),
            tpot: Some(0.05)
        }
    );
    assert_eq!(
        limits(Some("large")),
        LatencyLimits {
            ttft: Some(1.0),
            tpot: Some(0.08)
        }
    );
    assert_eq!(
        limits(None),
        LatencyLimits {
            ttft: Some(2.0),
            tpot: Some(0.08)
        }
    );
    assert_eq!(latency_limits(&[], Some("tiny")), LatencyLimits::default());
}
