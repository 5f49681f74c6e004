//! Tests of the selection among requests whose prompts are in the caches of some backends.

use super::tests::{enter_all, model, request, start};
use super::{AdmissionQueue, ExhaustedModels, QueuedRequest};
use std::time::Instant;

/// Grants the selected request. `lost_tokens`: of each request, by payload.
fn grant_by_lost_tokens(
    queue: &mut AdmissionQueue<usize>,
    now: Instant,
    lost_tokens: impl Fn(usize) -> f64,
) -> usize {
    let offer = |request: &QueuedRequest<usize>| Some(lost_tokens(request.payload));
    let selected = queue.select(now, &mut ExhaustedModels::default(), offer, |lost| *lost);
    queue.grant(selected.unwrap().0, now).unwrap().payload
}

#[test]
fn a_request_that_is_cached_elsewhere_gives_way_to_the_first_one_that_is_not() {
    let now = start();
    let mut queue = AdmissionQueue::new(10, 1);
    enter_all(&mut queue, 0..6, 0, now);
    let lost_tokens = |number| [3_000.0, 500.0, 2_000.0, 100.0, 0.0, 9_000.0][number];
    let granted: Vec<usize> =
        (0..6).map(|_| grant_by_lost_tokens(&mut queue, now, lost_tokens)).collect();
    assert_eq!(granted, [3, 4, 1, 2, 0, 5], "a few lost tokens do not count, then the fewest");
}

#[test]
fn a_request_is_overtaken_a_bounded_number_of_times() {
    let now = start();
    let mut queue = AdmissionQueue::new(100, 1);
    enter_all(&mut queue, 0..100, 0, now);
    let lost_tokens = |number| if number < 2 { 1_000.0 } else { 0.0 };
    let granted: Vec<usize> =
        (0..20).map(|_| grant_by_lost_tokens(&mut queue, now, lost_tokens)).collect();
    assert_eq!(granted[..16], (2..18).collect::<Vec<_>>());
    assert_eq!(granted[16..], [0, 1, 18, 19]);
}

#[test]
fn requests_of_other_tenants_classes_and_models_do_not_overtake() {
    let now = start();
    let mut queue = AdmissionQueue::new(10, 2);
    queue.enter(request(0, 0, 1, now), now);
    queue.enter(request(1, 0, 2, now), now);
    queue.enter(request(2, 1, 1, now), now);
    queue.enter(QueuedRequest { model: Some(model(1)), ..request(3, 0, 1, now) }, now);
    queue.enter(QueuedRequest { deadline: now, ..request(4, 0, 1, now) }, now);
    let lost_tokens = |number| if number == 0 { 1_000.0 } else { 0.0 };
    assert_eq!(grant_by_lost_tokens(&mut queue, now, lost_tokens), 0);
}
