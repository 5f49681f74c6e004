//! Moments that the tests choose.

use super::*;
use tokenweir_core::record::SlowCause;
use tokenweir_core::record::sample::streamed;

/// The sample, as if it had ended then.
fn ended(at: Instant) -> RequestRecord {
    let mut record = streamed();
    record.timings.ended = Some(at);
    record
}

fn epoch() -> Instant {
    streamed().timings.ended.unwrap() + Duration::from_secs(10)
}

#[test]
fn the_last_minute_has_what_ended_in_it_and_forgets_what_is_older() {
    let epoch = epoch();
    let recent = Recent::new(epoch);
    let at = |seconds| epoch + Duration::from_secs(seconds);
    recent.finished(&ended(at(1)));
    recent.finished(&RequestRecord { outcome: Outcome::Truncated, ..ended(at(58)) });
    recent.finished(&RequestRecord { outcome: Outcome::Cancelled, ..ended(at(59)) });
    let minute = recent.last_minute(at(59));
    assert_eq!((minute.requests, minute.failed, minute.left), (3, 1, 1));
    assert_eq!((minute.output_tokens, minute.by_replica["vllm-0"]), (48, 3));
    assert!((minute.seconds - 59.0).abs() < 1e-9, "{}", minute.seconds);
    assert_eq!((minute.ttft.unwrap().count, minute.e2e.unwrap().count), (3, 1));
    assert_eq!(minute.itl.unwrap().count, 3 * u64::from(streamed().observed.gaps.count()));
    assert_eq!(recent.last_minute(at(66)).requests, 2);
    let quiet = recent.last_minute(at(1_000));
    assert_eq!((quiet.requests, quiet.ttft), (0, None));
    assert!((60.0..65.0).contains(&quiet.seconds), "{}", quiet.seconds);
    assert_eq!(recent.totals(), Totals { requests: 3, output_tokens: 48 });
}

#[test]
fn windows_that_are_over_do_not_pile_up() {
    let epoch = epoch();
    let recent = Recent::new(epoch);
    for minute in 0..100 {
        recent.finished(&ended(epoch + Duration::from_mins(minute)));
    }
    assert_eq!(recent.state().windows.len(), 2);
}

#[test]
fn slow_ones_are_kept_when_others_have_pushed_them_out() {
    let epoch = epoch();
    let recent = Recent::new(epoch);
    recent.finished(&RequestRecord { slow: Some(SlowCause::Stalled), ..ended(epoch) });
    (0..100).for_each(|_| recent.finished(&ended(epoch)));
    let kept = recent.ended();
    assert_eq!(kept.len(), KEPT + 1);
    assert!(kept.is_sorted_by_key(|one| std::cmp::Reverse(one.number)));
    assert_eq!(kept.last().and_then(|one| one.slow), Some(SlowCause::Stalled));
}

#[test]
fn a_trace_is_told_only_if_it_is_kept() {
    let recent = Recent::new(epoch());
    recent.finished(&RequestRecord { kept: None, ..streamed() });
    assert_eq!(recent.ended()[0].trace_id, None);
    recent
        .finished(&RequestRecord { kept: Some(tokenweir_core::record::Kept::Slow), ..streamed() });
    assert_eq!(recent.ended()[0].trace_id, Some(streamed().trace.unwrap().trace_id));
}
