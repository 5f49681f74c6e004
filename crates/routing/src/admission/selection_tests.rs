//! Tests of the selection of requests in the admission queue: by the work of a request, by the caches that have
//! its prompt, and by whether a backend can serve its model.

use super::tests::{displaced_by, enter_all, grant, group, request};
use super::{
    AdmissionQueue, CapacityGroup, EnqueueOutcome, ExhaustedGroups, QueuedRequest, WaitingModel,
};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;

/// Grants the request that the queue selects, and returns its payload. `lost_tokens`: by payload, the number of
/// prompt tokens of a request that the granted backend must compute although another backend has cached them.
fn grant_by_lost_tokens(
    queue: &mut AdmissionQueue<usize>,
    now: Instant,
    lost_tokens: impl Fn(usize) -> f64,
) -> usize {
    let offer = |request: &QueuedRequest<usize>| Some(lost_tokens(request.payload));
    let selected = queue.select(now, &mut ExhaustedGroups::default(), offer, |lost| *lost);
    queue
        .grant(selected.unwrap().0, now)
        .unwrap()
        .ticket
        .payload
}

#[test]
fn a_request_with_its_prefix_elsewhere_gives_way() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    enter_all(&mut queue, 0..6, 0, now);
    let lost_tokens = |number| [3_000.0, 500.0, 2_000.0, 100.0, 0.0, 9_000.0][number];
    let granted: Vec<usize> = (0..6)
        .map(|_| grant_by_lost_tokens(&mut queue, now, lost_tokens))
        .collect();
    assert_eq!(
        granted,
        [3, 4, 1, 2, 0, 5],
        "a few lost tokens do not count, then the fewest"
    );
}

#[test]
fn at_most_16_later_requests_overtake_one() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(100, 1);
    enter_all(&mut queue, 0..100, 0, now);
    let lost_tokens = |number| if number < 2 { 1_000.0 } else { 0.0 };
    let granted: Vec<usize> = (0..20)
        .map(|_| grant_by_lost_tokens(&mut queue, now, lost_tokens))
        .collect();
    assert_eq!(granted[..16], (2..18).collect::<Vec<_>>());
    assert_eq!(granted[16..], [0, 1, 18, 19]);
}

#[test]
fn nobody_is_overtaken_by_another_tenant_or_class() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 2);
    queue.enter(request(0, 0, 1, now), now);
    queue.enter(request(1, 0, 2, now), now);
    queue.enter(request(2, 1, 1, now), now);
    queue.enter(
        QueuedRequest {
            group: group(1),
            ..request(3, 0, 1, now)
        },
        now,
    );
    queue.enter(
        QueuedRequest {
            deadline: now,
            ..request(4, 0, 1, now)
        },
        now,
    );
    let lost_tokens = |number| if number == 0 { 1_000.0 } else { 0.0 };
    assert_eq!(grant_by_lost_tokens(&mut queue, now, lost_tokens), 0);
}

#[test]
fn less_work_goes_first_unless_much_later() {
    let begin = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    let mut enter = |number, work, seconds| {
        let now = begin + Duration::from_secs(seconds);
        queue.enter(
            QueuedRequest {
                work,
                ..request(number, 0, 1, now)
            },
            now,
        );
    };
    enter(0, 3_000, 0);
    enter(1, 1_000, 0);
    enter(2, 1_000, 3);
    enter(3, 1_000, 5);
    // Request 4 gives way to later requests for at most half of its maximum wait of 1,000 s.
    enter(4, u64::MAX, 0);
    enter(5, 1_000, 499);
    let now = begin + Duration::from_secs(500);
    let granted: Vec<usize> = (0..6)
        .map(|_| grant(&mut queue, now).unwrap().payload)
        .collect();
    assert_eq!(granted, [1, 2, 0, 3, 4, 5]);
}

#[test]
fn time_without_backend_counts_for_each_request() {
    let begin = clock::epoch();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let mut queue = AdmissionQueue::new(10, 1);
    let names = [group(0)];
    queue.enter(request(0, 0, 1, begin), begin);
    queue.set_without_backend(&names, begin);
    queue.enter(request(1, 0, 1, at(4)), at(4));
    queue.enter(
        QueuedRequest {
            group: group(1),
            ..request(2, 0, 1, at(4))
        },
        at(4),
    );
    let waiting: Vec<WaitingModel> = queue.waiting_models().collect();
    assert_eq!(
        (waiting[0].requests, waiting[0].without_backend_since),
        (2, Some(begin))
    );
    assert_eq!(
        (waiting[1].requests, waiting[1].without_backend_since),
        (1, None)
    );
    assert!(
        queue.precedes(&CapacityGroup::default()),
        "a request for the other model may take the capacity"
    );
    queue.set_without_backend(&[], at(10));
    queue.set_without_backend(&names, at(12));
    let mut leave = |number: usize| {
        let select = |request: &QueuedRequest<usize>| (request.payload == number).then_some(());
        let selected = queue.select(at(15), &mut ExhaustedGroups::default(), select, |()| 0.0);
        queue
            .grant(selected.unwrap().0, at(15))
            .unwrap()
            .without_backend
            .as_secs()
    };
    assert_eq!([leave(0), leave(1), leave(2)], [10 + 3, 6 + 3, 0]);
}

#[test]
fn a_picky_request_does_not_block_the_others() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    let few = CapacityGroup {
        backends: 7,
        ..group(0)
    };
    queue.enter(
        QueuedRequest {
            group: few.clone(),
            ..request(0, 0, 1, now)
        },
        now,
    );
    queue.set_without_backend(std::slice::from_ref(&few), now);
    assert!(queue.precedes(&few) && !queue.precedes(&group(0)));
    enter_all(&mut queue, 1..2, 0, now);
    let offer = |request: &QueuedRequest<usize>| (request.group != few).then_some(());
    let selected = queue.select(now, &mut ExhaustedGroups::default(), offer, |()| 0.0);
    assert_eq!(
        queue
            .grant(selected.unwrap().0, now)
            .unwrap()
            .ticket
            .payload,
        1
    );
}

#[test]
fn servable_requests_displace_unservable_ones() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(3, 2);
    enter_all(&mut queue, 0..1, 0, now);
    enter_all(&mut queue, 1..3, 1, now);
    queue.set_without_backend(&[group(0)], now);
    assert!(!queue.precedes(&group(1)) && queue.precedes(&group(0)));
    let mut enter = |number, name, class| {
        let newcomer = QueuedRequest {
            group: group(name),
            ..request(number, class, 1, now)
        };
        displaced_by(&mut queue, newcomer, now)
    };
    assert_eq!(enter(3, 0, 1), None, "it has no backend itself");
    assert_eq!(enter(4, 1, 1), Some(2), "the newest of the lowest class");
    assert_eq!(enter(5, 1, 1), Some(1));
    assert_eq!(enter(6, 1, 1), None, "the last one has a higher class");
}

#[test]
fn the_expected_wait_is_position_by_rate() {
    let begin = clock::epoch();
    let mut queue = AdmissionQueue::new(100, 2);
    enter_all(&mut queue, 0..30, 1, begin);
    let now = begin + Duration::from_secs(1);
    let new = |class, tenant| request(99, class, tenant, now);
    assert_eq!(
        queue.expected_wait(&new(1, 1), now),
        None,
        "no request was granted"
    );
    (0..10).for_each(|_| drop(grant(&mut queue, now)));
    let seconds = |class, tenant| {
        queue
            .expected_wait(&new(class, tenant), now)
            .unwrap()
            .as_secs_f64()
    };
    assert!(
        (1.5..2.5).contains(&seconds(1, 1)),
        "20 at 10 per second: {}",
        seconds(1, 1)
    );
    assert!(seconds(0, 1) < 0.1, "the higher class");
    assert!(seconds(1, 2) < 0.1, "a tenant without waiting requests");
}

#[test]
fn requests_move_when_classes_change() {
    let mut queue = AdmissionQueue::new(10, 3);
    let now = clock::epoch();
    let ids = [2, 1, 0].map(
        |class| match queue.enter(request(class, class, 0, now), now) {
            EnqueueOutcome::Waits(id) => id,
            other => panic!("{other:?}"),
        },
    );
    // The lowest class becomes the highest, and the other two become one.
    queue.change(2, 2, |class| usize::from(class < 2));
    assert_eq!(queue.waiting(), [1, 2]);
    assert!(
        matches!(
            queue.enter(request(9, 1, 0, now), now),
            EnqueueOutcome::Full(_)
        ),
        "less capacity"
    );
    assert!(queue.leave(ids[1], now).is_some());
    let granted_requests = [grant(&mut queue, now), grant(&mut queue, now)];
    assert_eq!(
        granted_requests.map(|granted| granted.unwrap().payload),
        [2, 0]
    );
    assert!(queue.is_empty());
}

#[test]
fn a_begun_request_enters_a_full_queue() {
    let now = clock::epoch();
    let begun = |number| QueuedRequest {
        is_begun: true,
        ..request(number, 0, 1, now)
    };
    let mut queue = AdmissionQueue::new(2, 2);
    enter_all(&mut queue, 0..2, 0, now);
    for number in [2, 3] {
        assert!(matches!(
            queue.enter(begun(number), now),
            EnqueueOutcome::Waits(_)
        ));
    }
    let granted: Vec<_> = (0..4)
        .map(|_| grant(&mut queue, now).unwrap().payload)
        .collect();
    assert_eq!(granted, [2, 3, 0, 1]);
    for number in [4, 5] {
        queue.enter(
            QueuedRequest {
                class: 1,
                ..begun(number)
            },
            now,
        );
    }
    assert_eq!(displaced_by(&mut queue, request(6, 0, 1, now), now), None);
}

#[test]
fn a_begun_request_holds_up_no_other() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    for number in 0..3 {
        queue.enter(
            QueuedRequest {
                is_begun: true,
                ..request(number, 0, 1, now)
            },
            now,
        );
    }
    queue.enter(request(3, 0, 1, now), now);
    let mut exhausted = ExhaustedGroups::default();
    let mut offered = Vec::new();
    // Only the backend that failed the begun requests has capacity.
    let offer = |request: &QueuedRequest<usize>| {
        offered.push(request.payload);
        (!request.is_begun).then_some(())
    };
    let (selected, ()) = queue.select(now, &mut exhausted, offer, |()| 0.0).unwrap();
    assert_eq!(
        offered,
        [0, 3],
        "one of those that have begun stands for all"
    );
    assert_eq!(queue.grant(selected, now).unwrap().ticket.payload, 3);
    assert!(!exhausted.has(&group(0)));
}
