//! The breaker in its own time.

use super::*;
use crate::clock;

const SECOND: Duration = Duration::from_secs(1);

fn breaker() -> (Breaker, Instant) {
    let now = clock::origin();
    (Breaker::new(Settings::default(), now), now)
}

/// Whether it may have a request now, with this luck.
fn admits(breaker: &Breaker, now: Instant, luck: f64) -> bool {
    !breaker.is_shut(now) && !breaker.spares(now, luck)
}

fn fail(breaker: &Breaker, times: u32, now: Instant) -> u32 {
    (0..times).map(|_| u32::from(breaker.on_failure(now))).sum()
}

/// A replica that was ejected gets a request, and answers it.
fn recover(breaker: &Breaker, now: Instant) {
    breaker.on_pick(now);
    assert!(breaker.on_answer(now));
}

#[test]
fn failures_in_a_row_eject_and_an_answer_between_them_begins_anew() {
    let (breaker, now) = breaker();
    assert_eq!(fail(&breaker, 4, now), 0);
    breaker.on_answer(now);
    assert_eq!(fail(&breaker, 4, now), 0);
    assert!(admits(&breaker, now, 0.99));
    assert_eq!(fail(&breaker, 1, now), 1, "the fifth");
    assert!(!admits(&breaker, now, 0.0));
    assert_eq!(breaker.standing(), Standing::Open);
}

#[test]
fn half_of_the_requests_failing_ejects_although_others_are_answered_between() {
    let (breaker, now) = breaker();
    for number in 0..19 {
        assert!(!breaker.on_failure(now), "{number}: fewer than 20 say nothing");
        breaker.on_answer(now);
        if number >= 9 {
            break;
        }
    }
    assert!(breaker.on_failure(now));
    let (breaker, now) = self::breaker();
    for _ in 0..30 {
        breaker.on_answer(now);
        breaker.on_answer(now);
        assert!(!breaker.on_failure(now), "a third");
    }
}

#[test]
fn what_was_long_ago_is_no_part_of_the_share() {
    let (breaker, now) = breaker();
    for _ in 0..9 {
        breaker.on_failure(now);
        breaker.on_answer(now);
    }
    let later = now + 3 * WINDOW;
    for _ in 0..12 {
        breaker.on_answer(later);
    }
    assert!(!breaker.on_failure(later));
}

#[test]
fn half_open_gets_one_request_at_a_time_and_an_answer_closes_it() {
    let (breaker, now) = breaker();
    fail(&breaker, 5, now);
    let later = now + 10 * SECOND;
    assert!(admits(&breaker, later, 0.99));
    breaker.on_pick(later);
    assert_eq!(breaker.standing(), Standing::HalfOpen);
    assert!(!admits(&breaker, later, 0.0), "one is under way");
    assert!(admits(&breaker, later + PROBE, 0.0), "it may never tell");
    assert!(breaker.on_answer(later));
    assert_eq!(breaker.standing(), Standing::Closed);
}

#[test]
fn an_answer_to_a_request_from_before_does_not_close_it() {
    let (breaker, now) = breaker();
    fail(&breaker, 5, now);
    assert!(!breaker.on_answer(now + SECOND));
    assert!(!admits(&breaker, now + SECOND, 0.0));
}

#[test]
fn each_ejection_lasts_twice_as_long_up_to_five_minutes_until_it_was_well_for_a_while() {
    let (breaker, mut now) = breaker();
    fail(&breaker, 5, now);
    for lasts in [10, 20, 40, 80, 160, 300, 300] {
        assert!(!admits(&breaker, now + (lasts - 1) * SECOND, 0.0), "{lasts}");
        assert!(admits(&breaker, now + lasts * SECOND, 0.0), "{lasts}");
        now += lasts * SECOND;
        breaker.on_pick(now);
        assert!(breaker.on_failure(now), "the one that tries it fails");
    }
    now += LONGEST;
    recover(&breaker, now);
    now += LONGEST + SECOND;
    fail(&breaker, 5, now);
    assert!(admits(&breaker, now + 10 * SECOND, 0.99), "it begins anew");
}

#[test]
fn a_replica_that_comes_back_gets_a_tenth_and_then_evenly_more() {
    let (breaker, now) = breaker();
    breaker.on_return(now);
    assert!(admits(&breaker, now, 0.09) && !admits(&breaker, now, 0.11));
    let half = now + 15 * SECOND;
    assert!(admits(&breaker, half, 0.54) && !admits(&breaker, half, 0.56));
    assert!(admits(&breaker, now + 30 * SECOND, 0.99));
}

#[test]
fn one_that_is_full_rests_for_a_moment_and_is_not_ill() {
    let (breaker, now) = breaker();
    (0..10).for_each(|_| breaker.on_full(now));
    assert!(!admits(&breaker, now, 0.0));
    assert_eq!(breaker.standing(), Standing::Resting);
    assert!(admits(&breaker, now + REST, 0.99), "with its full share");
    breaker.on_pick(now + REST);
    assert!(admits(&breaker, now + REST, 0.99), "and not one at a time");
}

#[test]
fn one_that_drains_gets_nothing_and_is_tried_then() {
    let (breaker, now) = breaker();
    assert!(breaker.on_drain(now) && !breaker.on_drain(now));
    assert!(!admits(&breaker, now + DRAIN / 2, 0.0) && admits(&breaker, now + DRAIN, 0.0));
    breaker.on_pick(now + DRAIN);
    assert!(!admits(&breaker, now + DRAIN, 0.0));
}

#[test]
fn settings_of_zero_eject_nobody() {
    let settings = Settings { failures: 0, failure_share: 0.0, ..Settings::default() };
    let breaker = Breaker::new(settings, clock::origin());
    assert_eq!(fail(&breaker, 1_000, clock::origin()), 0);
}
