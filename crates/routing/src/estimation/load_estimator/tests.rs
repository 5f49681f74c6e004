//! Tests of the load estimator, event by event.

use super::super::load_report::LoadReport;
use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

/// An estimator that has learned one byte per token, and the time of its creation.
fn estimator() -> (LoadEstimator, Instant) {
    let (estimator, now) = new_estimator();
    let mut reservation = send(&estimator, &prompt(1, 0), now);
    let counts = Usage {
        input: Some(1),
        output: Some(100),
        ..Usage::default()
    };
    estimator.answered(&mut reservation, &counts);
    estimator.release(reservation, now);
    (estimator, now)
}

pub(super) fn new_estimator() -> (LoadEstimator, Instant) {
    let now = clock::epoch();
    (LoadEstimator::new(now, 5 * SECOND), now)
}

/// A prompt of `bytes` bytes. Prompts with different seeds share no blocks.
fn prompt(bytes: u64, seed: u64) -> PromptFingerprint {
    let mut random = fastrand::Rng::with_seed(seed);
    let blocks = (0..bytes / 512).map(|_| random.u64(..)).collect();
    PromptFingerprint {
        bytes,
        blocks,
        block_bytes: 512,
        ..PromptFingerprint::default()
    }
}

fn send(estimator: &LoadEstimator, prompt: &PromptFingerprint, now: Instant) -> Reservation {
    estimator.reserve(&estimator.candidate(prompt, now), prompt, true, now)
}

fn report(kv_usage: f64, waiting: f64, running: f64) -> LoadReport {
    LoadReport {
        kv_usage: Some(kv_usage),
        waiting,
        running,
        capacity: Some(100_000),
        ..LoadReport::default()
    }
}

#[test]
fn requests_sent_since_the_report_count() {
    let (estimator, now) = estimator();
    let prompt = prompt(10_000, 1);
    estimator.on_report(&report(0.5, 0.0, 3.0), &estimator.local_load(), now);
    let before = estimator.candidate(&prompt, now);
    assert_eq!(
        (before.kv_usage, before.waiting, before.running),
        (Some(0.5), 0.0, 3.0)
    );
    send(&estimator, &prompt, now);
    let after = estimator.candidate(&prompt, now);
    assert!((after.kv_usage.unwrap() - 0.601).abs() < 1e-9, "{after:?}");
    assert_eq!(
        (after.waiting, after.backlog, after.in_flight),
        (1.0, 10_000.0, 1)
    );
}

#[test]
fn a_new_report_replaces_earlier_estimates() {
    let (estimator, now) = estimator();
    let prompt = prompt(10_000, 1);
    let reservation = send(&estimator, &prompt, now);
    estimator.on_report(&report(0.3, 0.0, 1.0), &estimator.local_load(), now);
    assert_eq!(estimator.candidate(&prompt, now).kv_usage, Some(0.3));
    estimator.release(reservation, now);
    let after = estimator.candidate(&prompt, now).kv_usage.unwrap();
    assert!(
        (after - 0.199).abs() < 1e-9,
        "requests that ended since are subtracted: {after}"
    );
}

#[test]
fn aging_reports_give_way_to_local_load() {
    let (estimator, now) = estimator();
    let prompt = prompt(1_000, 1);
    estimator.on_report(&report(0.95, 12.0, 30.0), &estimator.local_load(), now);
    let at = |tenths: u32| estimator.candidate(&prompt, now + SECOND * tenths / 10);
    let estimates: Vec<Candidate> = (0..600).map(at).collect();
    assert!(estimates.windows(2).all(|pair| {
        let decrease = |read: fn(&Candidate) -> f64| read(&pair[0]) - read(&pair[1]);
        (0.0..0.05).contains(&decrease(|estimate| estimate.kv_usage.unwrap()))
            && (0.0..0.5).contains(&decrease(|estimate| estimate.waiting))
            && (0.0..0.05).contains(&decrease(|estimate| estimate.certainty))
    }));
    assert!(estimates[599].kv_usage.unwrap() < 0.1 && estimates[599].certainty < 0.1);
}

#[test]
fn requests_of_other_gateways_add_load() {
    let (estimator, now) = estimator();
    let prompt = prompt(1_000, 1);
    let mut first = send(&estimator, &prompt, now);
    estimator.answered(
        &mut first,
        &Usage {
            input: Some(1_000),
            cached: Some(0),
            ..Usage::default()
        },
    );
    estimator.on_report(&report(0.2, 4.0, 7.0), &estimator.local_load(), now);
    let estimate = estimator.candidate(&prompt, now);
    assert_eq!((estimate.waiting, estimate.running), (4.0, 7.0));
    assert!(
        estimate.backlog > 1_000.0,
        "waiting external requests have prompts: {estimate:?}"
    );
}

#[test]
fn the_backlog_falls_by_at_most_one_request() {
    let (estimator, now) = estimator();
    let prompt = prompt(10_000, 1);
    let mut first = send(&estimator, &prompt, now);
    send(&estimator, &prompt, now);
    let backlog = |at| estimator.candidate(&prompt, at).backlog as u64;
    assert_eq!(
        backlog(now),
        20_000 - 9_728,
        "the blocks of the second will be cached by then"
    );
    assert!(backlog(now + SECOND / 10) < backlog(now));
    let long_after = backlog(now + 100 * SECOND);
    assert!(
        long_after > 0,
        "reduced by at most one of them: {long_after}"
    );
    estimator.first_output(&mut first, now + SECOND);
    assert_eq!(backlog(now + SECOND), 272);
}

#[test]
fn unstreamed_backlog_falls_at_the_learned_speed() {
    let (estimator, now) = estimator();
    let prompt = prompt(10_000, 1);
    let reservation = estimator.reserve(&estimator.candidate(&prompt, now), &prompt, false, now);
    let backlog = |at| estimator.candidate(&prompt, at).backlog as u64;
    assert!(backlog(now) > 9_900 && backlog(now + 100 * SECOND) == 0);
    estimator.release(reservation, now);
    assert_eq!(estimator.local_load(), LocalLoad::default());
}

#[test]
fn a_sent_prompt_is_cached_until_a_restart() {
    let (estimator, now) = estimator();
    let long = prompt(51_200, 1);
    let other = prompt(51_200, 2);
    send(&estimator, &long, now);
    assert_eq!(estimator.candidate(&long, now).cached as u64, 51_200);
    assert_eq!(estimator.candidate(&other, now).cached as u64, 0);
    estimator.on_restart();
    assert_eq!(estimator.candidate(&long, now).cached as u64, 0);
}

#[test]
fn missing_prefix_caches_show_in_cached_tokens() {
    let (estimator, now) = estimator();
    estimator.on_report(&report(0.1, 0.0, 0.0), &estimator.local_load(), now);
    let long = prompt(51_200, 1);
    for seed in 0..120 {
        let mut reservation = send(&estimator, &long, now);
        let input = Some(51_200);
        let cached = Some(0);
        let output = Some(10);
        let no_cache_hit = Usage {
            input,
            cached,
            output,
            ..Usage::default()
        };
        estimator.answered(&mut reservation, &no_cache_hit);
        estimator.release(reservation, now);
        send(&estimator, &prompt(20_000, 100 + seed), now);
    }
    assert_eq!(estimator.candidate(&long, now).cached as u64, 0);
}

#[test]
fn slow_first_outputs_give_a_high_cost() {
    let (correct, now) = estimator();
    let (wrong, _) = estimator();
    let idle = report(0.0, 0.0, 0.0);
    for n in 0..20 {
        let sent = now + SECOND * n;
        for (estimator, seconds) in [(&correct, 1), (&wrong, 30)] {
            estimator.on_report(&idle, &estimator.local_load(), sent);
            let mut reservation = send(estimator, &prompt(5_000, n.into()), sent);
            estimator.first_output(&mut reservation, sent + SECOND * seconds);
            estimator.release(reservation, sent + SECOND * seconds);
        }
    }
    let seconds = |estimator: &LoadEstimator| {
        estimator
            .candidate(&prompt(5_000, 99), now)
            .prefill
            .seconds(5_000.0)
    };
    assert!(seconds(&wrong) > 5.0 * seconds(&correct));
}

/// Sends a prompt of 5,000 tokens whose first output takes `seconds`.
fn observe(estimator: &LoadEstimator, seed: u64, at: Instant, seconds: f64) {
    let mut reservation = send(estimator, &prompt(5_000, seed), at);
    let output = at + Duration::from_secs_f64(seconds);
    estimator.first_output(&mut reservation, output);
    estimator.release(reservation, output);
}

#[test]
fn an_idle_backends_high_cost_loses_weight() {
    let (estimator, now) = estimator();
    (0..20).for_each(|n| observe(&estimator, n, now + SECOND * 10 * n as u32, 10.0));
    let seconds = || estimator.learned().prefill().seconds(5_000.0);
    let freshness = |at: u32| {
        estimator
            .candidate(&prompt(5_000, 99), now + SECOND * at)
            .prefill_freshness
    };
    assert!(seconds() > 5.0);
    assert!(freshness(200) > 0.99 && freshness(210) < 0.3 && freshness(240) < 0.01);
    observe(&estimator, 100, now + SECOND * 240, 0.5);
    assert!(seconds() < 1.0, "{}", seconds());
}

#[test]
fn a_wait_for_an_adapter_is_no_prefill() {
    for needs_adapter in [true, false] {
        let (estimator, now) = estimator();
        observe(&estimator, 0, now, 0.5);
        let cost = estimator.learned().prefill();
        let send = |seed| {
            let prompt = prompt(10, seed);
            let candidate = Candidate {
                needs_adapter,
                ..estimator.candidate(&prompt, now + SECOND)
            };
            estimator.reserve(&candidate, &prompt, true, now + SECOND)
        };
        // Two of forty requests have their first output at once, and then one each second.
        let mut sent: Vec<Reservation> = (1..=40).map(send).collect();
        for (position, reservation) in (0..).zip(&mut sent) {
            let wait = SECOND / 50 + SECOND * (position / 2);
            estimator.first_output(reservation, now + SECOND + wait);
        }
        let after = estimator.learned().prefill();
        assert_eq!(after.base <= cost.base, needs_adapter, "{cost:?} {after:?}");
        assert!(
            estimator.learned().ttft().unwrap() > 1.0,
            "the times were observed"
        );
    }
}

/// Estimated seconds for which the backend is overdue.
fn overdue(estimator: &LoadEstimator, now: Instant) -> f64 {
    estimator.candidate(&prompt(100, 99), now).overdue
}

#[test]
fn long_waits_for_output_are_overdue() {
    let (estimator, now) = estimator();
    let mut first = send(&estimator, &prompt(100, 1), now);
    send(&estimator, &prompt(100, 2), now + SECOND / 10);
    assert!(
        overdue(&estimator, now + SECOND / 5) <= 0.0,
        "within twice its prediction"
    );
    assert!((3.9..4.0).contains(&overdue(&estimator, now + 4 * SECOND)));
    estimator.first_output(&mut first, now + 4 * SECOND);
    assert!(
        overdue(&estimator, now + 9 * SECOND) <= 0.0,
        "the engine generates output"
    );
    estimator.on_stall_change(true, now + 5 * SECOND);
    assert!(
        (4.9..5.1).contains(&overdue(&estimator, now + 9 * SECOND)),
        "since the last output"
    );
}

#[test]
fn a_disconnect_does_not_end_being_overdue() {
    let (estimator, now) = estimator();
    let first = send(&estimator, &prompt(100, 1), now);
    send(&estimator, &prompt(100, 2), now + SECOND / 10);
    estimator.release(first, now + 4 * SECOND);
    assert!((3.8..3.9).contains(&overdue(&estimator, now + 4 * SECOND)));
}

#[test]
fn late_unstreamed_requests_without_tokens_are_overdue() {
    let (estimator, now) = new_estimator();
    let report_tokens = |tokens: f64, at| {
        let report = LoadReport {
            tokens: Some(tokens),
            ..report(0.1, 0.0, 1.0)
        };
        estimator.on_report(&report, &estimator.local_load(), at);
    };
    let send = |at| {
        let prompt = prompt(100, 1);
        estimator.reserve(&estimator.candidate(&prompt, at), &prompt, false, at)
    };
    // The first request teaches a response time of one second.
    let mut first = send(now);
    estimator.answered(
        &mut first,
        &Usage {
            output: Some(9),
            ..Usage::default()
        },
    );
    estimator.release(first, now + SECOND);
    report_tokens(10.0, now + SECOND);
    let mut other = send(now + SECOND);
    assert!(
        overdue(&estimator, now + 5 * SECOND) <= 0.0,
        "responses differ in length"
    );
    report_tokens(10.0, now + 10 * SECOND);
    assert!(overdue(&estimator, now + 10 * SECOND) > 7.0);
    let rejected = send(now + 10 * SECOND);
    estimator.release(rejected, now + 10 * SECOND);
    let after_error = overdue(&estimator, now + 10 * SECOND);
    assert!(
        after_error > 7.0,
        "an error comes from the API server, not from the engine"
    );
    report_tokens(11.0, now + 11 * SECOND);
    assert!(
        overdue(&estimator, now + 60 * SECOND) <= 0.0,
        "the engine makes progress: the response may be long"
    );
    estimator.answered(
        &mut other,
        &Usage {
            output: Some(9),
            ..Usage::default()
        },
    );
    estimator.release(other, now + 60 * SECOND);
    assert_eq!(estimator.local_load(), LocalLoad::default());
}

#[test]
fn stalled_streams_are_overdue_only_together() {
    let (estimator, now) = estimator();
    for seed in 0..2 {
        let mut reservation = send(&estimator, &prompt(100, seed), now);
        estimator.first_output(&mut reservation, now);
    }
    estimator.on_stall_change(true, now + SECOND);
    assert!(
        overdue(&estimator, now + 5 * SECOND) <= 0.0,
        "one may have been preempted"
    );
    estimator.on_stall_change(true, now + 2 * SECOND);
    assert!((2.9..=3.1).contains(&overdue(&estimator, now + 5 * SECOND)));
    estimator.on_stall_change(false, now + 5 * SECOND);
    assert!(overdue(&estimator, now + 5 * SECOND) <= 0.0);
}

proptest! {
    #[test]
    fn every_history_leaves_finite_estimates_and_no_reservation(
        steps in proptest::collection::vec(
            (0_u8..5, 0_u64..200_000, 0.0..2.0_f64, 0_u64..20_000),
            1..80,
        ),
    ) {
        let (estimator, mut now) = new_estimator();
        let mut open: Vec<Reservation> = Vec::new();
        for (step, bytes, share, millis) in steps {
            now += Duration::from_millis(millis);
            match (step, open.pop()) {
                (0, popped) => {
                    open.extend(popped);
                    let report = report(share, bytes as f64, bytes as f64 * share);
                    estimator.on_report(&report, &estimator.local_load(), now);
                }
                (1, Some(mut reservation)) => {
                    estimator.first_output(&mut reservation, now);
                    open.push(reservation);
                }
                (2, Some(mut reservation)) => {
                    let input = Some(bytes);
                    let cached = Some(millis);
                    let output = Some(7);
                    let counts = Usage { input, cached, output, ..Usage::default() };
                    estimator.answered(&mut reservation, &counts);
                    estimator.release(reservation, now);
                }
                (_, popped) => {
                    open.extend(popped);
                    open.push(send(&estimator, &prompt(bytes, bytes % 7), now));
                }
            }
            let estimate = estimator.candidate(&prompt(5_000, 3), now);
            let numbers = [
                estimate.overdue,
                estimate.prompt,
                estimate.cached,
                estimate.output,
                estimate.backlog,
                estimate.waiting,
                estimate.running,
                estimate.certainty,
                estimate.prefill.per_token,
            ];
            let is_valid = |number: &f64| number.is_finite() && *number >= 0.0;
            prop_assert!(numbers.iter().all(is_valid), "{estimate:?}");
            prop_assert!(estimate.cached <= estimate.prompt);
        }
        for reservation in open {
            estimator.release(reservation, now);
        }
        prop_assert_eq!(estimator.local_load(), LocalLoad::default());
    }
}
