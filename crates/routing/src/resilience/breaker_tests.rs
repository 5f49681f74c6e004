//! Tests of the circuit breaker in virtual time.

use super::super::recent_outcomes::{WINDOW_COUNT, WINDOW_LENGTH};
use super::*;
use tokenweir_protocol::clock;

const SECOND: Duration = Duration::from_secs(1);

fn breaker() -> (CircuitBreaker, Instant) {
    let now = clock::epoch();
    (
        CircuitBreaker::new(CircuitBreakerSettings::default(), now),
        now,
    )
}

/// Whether the circuit breaker admits a request now. `random`: see [`CircuitBreaker::spares`].
fn admits(breaker: &CircuitBreaker, now: Instant, random: f64) -> bool {
    !breaker.is_shut(now) && !breaker.spares(now, random)
}

fn fail(breaker: &CircuitBreaker, times: u32, now: Instant) -> u32 {
    (0..times).map(|_| u32::from(breaker.on_failure(now))).sum()
}

#[test]
fn consecutive_failures_eject_and_a_success_resets_them() {
    let (breaker, now) = breaker();
    assert_eq!(fail(&breaker, 4, now), 0);
    breaker.on_answer(now);
    assert_eq!(fail(&breaker, 4, now), 0);
    assert!(admits(&breaker, now, 0.99));
    assert_eq!(fail(&breaker, 1, now), 1, "the fifth");
    assert!(!admits(&breaker, now, 0.0));
    assert_eq!(breaker.state(), BreakerState::Open);
}

/// Sends requests at a constant rate for ten minutes, a share of which fails. Returns the seconds until the
/// ejection. `None`: the backend was not ejected.
fn seconds_until_ejection(per_second: f64, failing_share: f64, seed: u64) -> Option<u64> {
    let (breaker, start) = breaker();
    let mut random = fastrand::Rng::with_seed(seed);
    let requests = (600.0 * per_second) as u32;
    (0..requests).find_map(|number| {
        let at = start + SECOND.div_f64(per_second) * number;
        let has_ejected = random.f64() < failing_share && breaker.on_failure(at) || {
            breaker.on_answer(at);
            false
        };
        has_ejected.then(|| at.duration_since(start).as_secs())
    })
}

#[test]
fn the_failure_ratio_ejects_at_any_rate() {
    for per_second in [0.25, 0.7, 2.0, 50.0] {
        for seed in 0..20 {
            let ejected = seconds_until_ejection(per_second, 0.5, seed);
            assert!(
                ejected.is_some_and(|seconds| seconds <= 240),
                "{per_second}/s: {ejected:?}"
            );
            let flaky = seconds_until_ejection(per_second, 0.02, seed);
            assert_eq!(flaky, None, "{per_second}/s");
        }
    }
    let slow = (0..20).filter_map(|seed| seconds_until_ejection(2.0 / 3.0, 0.4, seed));
    let slow: Vec<u64> = slow.filter(|seconds| *seconds <= 120).collect();
    assert!(
        slow.len() >= 18,
        "two requests a second for three backends: {slow:?}"
    );
    let (breaker, now) = breaker();
    for number in 0..4 {
        assert!(!breaker.on_failure(now), "{number}");
        breaker.on_answer(now);
    }
    assert!(!breaker.on_failure(now), "five of nine are few");
}

#[test]
fn outcomes_older_than_a_minute_do_not_count() {
    let (breaker, now) = breaker();
    for _ in 0..4 {
        breaker.on_failure(now);
        breaker.on_answer(now);
    }
    let later = now + WINDOW_LENGTH * WINDOW_COUNT as u32;
    for _ in 0..4 {
        breaker.on_answer(later);
        assert!(!breaker.on_failure(later));
    }
}

#[test]
fn a_half_open_breaker_admits_one_request() {
    let (breaker, now) = breaker();
    fail(&breaker, 5, now);
    let later = now + 10 * SECOND;
    assert!(admits(&breaker, later, 0.99));
    breaker.on_pick(later);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(!admits(&breaker, later, 0.0), "one request is in flight");
    assert!(
        admits(&breaker, later + PROBE_TIMEOUT, 0.0),
        "its outcome may stay unknown"
    );
    assert!(breaker.on_answer(later));
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn the_success_of_earlier_requests_closes_no_breaker() {
    let (breaker, now) = breaker();
    fail(&breaker, 5, now);
    assert!(!breaker.on_answer(now + SECOND));
    assert!(!admits(&breaker, now + SECOND, 0.0));
}

#[test]
fn the_ejection_time_doubles_up_to_five_minutes() {
    let (breaker, mut now) = breaker();
    fail(&breaker, 5, now);
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        assert!(
            !admits(&breaker, now + (seconds - 1) * SECOND, 0.0),
            "{seconds}"
        );
        assert!(admits(&breaker, now + seconds * SECOND, 0.0), "{seconds}");
        now += seconds * SECOND;
        breaker.on_pick(now);
        assert!(breaker.on_failure(now), "the half-open request fails");
    }
    now += MAX_EJECTION_TIME;
    breaker.on_pick(now);
    assert!(breaker.on_answer(now), "the half-open request succeeds");
    now += MAX_EJECTION_TIME + SECOND;
    fail(&breaker, 5, now);
    assert!(
        admits(&breaker, now + 10 * SECOND, 0.99),
        "the ejection time is reset"
    );
}

#[test]
fn slow_start_grows_linearly_from_a_tenth() {
    let (breaker, now) = breaker();
    breaker.on_recovery(now);
    assert!(admits(&breaker, now, 0.09) && !admits(&breaker, now, 0.11));
    let midway = now + 15 * SECOND;
    assert!(admits(&breaker, midway, 0.54) && !admits(&breaker, midway, 0.56));
    assert!(admits(&breaker, now + 30 * SECOND, 0.99));
}

#[test]
fn overload_pauses_a_backend_without_ejection() {
    let (breaker, now) = breaker();
    (0..10).for_each(|_| breaker.on_overload(None, now));
    assert!(!admits(&breaker, now, 0.0));
    assert_eq!(breaker.state(), BreakerState::Resting);
    assert!(
        admits(&breaker, now + OVERLOAD_BACKOFF, 0.99),
        "without slow start"
    );
    breaker.on_pick(now + OVERLOAD_BACKOFF);
    assert!(
        admits(&breaker, now + OVERLOAD_BACKOFF, 0.99),
        "and more than one at a time"
    );
}

#[test]
fn a_draining_backend_is_probed_afterwards() {
    let (breaker, now) = breaker();
    assert!(breaker.on_drain(now) && !breaker.on_drain(now));
    assert!(
        !admits(&breaker, now + DRAIN_TIME / 2, 0.0) && admits(&breaker, now + DRAIN_TIME, 0.0)
    );
    breaker.on_pick(now + DRAIN_TIME);
    assert!(!admits(&breaker, now + DRAIN_TIME, 0.0));
}

#[test]
fn thresholds_of_zero_disable_ejection() {
    let settings = CircuitBreakerSettings {
        consecutive_failures: 0,
        failure_ratio: 0.0,
        ..CircuitBreakerSettings::default()
    };
    let breaker = CircuitBreaker::new(settings, clock::epoch());
    assert_eq!(fail(&breaker, 1_000, clock::epoch()), 0);
}
