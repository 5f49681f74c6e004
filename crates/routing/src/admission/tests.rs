//! Property tests of the admission queue over random sequences of arrivals, grants, cancellations
//! and delays.

use super::longest_wait;
use super::{
    AdmissionQueue, CapacityGroup, EnqueueOutcome, ExhaustedGroups, QueuedRequest, QueuedRequestId,
    RejectedRequest,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;

const CAPACITY: usize = 6;
const CLASSES: usize = 3;
const MODELS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum QueueStep {
    Enter {
        class: usize,
        tenant: u64,
        model: usize,
        tokens: u64,
        timeout_seconds: u64,
    },
    /// Cancels the waiting request with this index, counted from the oldest.
    Leave(usize),
    /// Grants a request for a model whose entry is `true`. Each of [`MODELS`] has an entry.
    Grant([bool; 2]),
    /// Advances the time by this number of seconds.
    Wait(u64),
}

fn queue_step() -> impl Strategy<Value = QueueStep> {
    prop_oneof![
        6 => (0..CLASSES, 0_u64..4, 0..2_usize, 0_u64..500, 1_u64..40).prop_map(
            |(class, tenant, model, tokens, timeout_seconds)| {
                QueueStep::Enter { class, tenant, model, tokens, timeout_seconds }
            }
        ),
        1 => (0..CAPACITY).prop_map(QueueStep::Leave),
        3 => any::<[bool; 2]>().prop_map(QueueStep::Grant),
        2 => (0_u64..10).prop_map(QueueStep::Wait),
    ]
}

/// The group of requests that all backends of a model can serve.
pub(super) fn group(index: usize) -> CapacityGroup {
    CapacityGroup {
        model: Some(MODELS[index].into()),
        backends: 0,
    }
}

/// A request for model 0 whose payload is its number.
pub(super) fn request(
    number: usize,
    class: usize,
    tenant: u64,
    now: Instant,
) -> QueuedRequest<usize> {
    let deadline = now + Duration::from_secs(1_000);
    QueuedRequest {
        class,
        tenant,
        group: group(0),
        tokens: 100,
        work: 0,
        is_begun: false,
        gated_until: None,
        deadline,
        payload: number,
    }
}

/// Queues one request of tenant 1 for each of these numbers.
pub(super) fn enter_all(
    queue: &mut AdmissionQueue<usize>,
    numbers: Range<usize>,
    class: usize,
    now: Instant,
) {
    for number in numbers {
        queue.enter(request(number, class, 1, now), now);
    }
}

/// Grants the first request in service order.
pub(super) fn grant(
    queue: &mut AdmissionQueue<usize>,
    now: Instant,
) -> Option<QueuedRequest<usize>> {
    let (id, ()) = queue.select(now, &mut ExhaustedGroups::default(), |_| Some(()), |()| 0.0)?;
    Some(queue.grant(id, now)?.ticket)
}

/// The payload of the request that `newcomer` displaces from the full queue. `None`: the queue rejects the
/// newcomer.
pub(super) fn displaced_by(
    queue: &mut AdmissionQueue<usize>,
    newcomer: QueuedRequest<usize>,
    now: Instant,
) -> Option<usize> {
    match queue.enter(newcomer, now) {
        EnqueueOutcome::QueuedDisplacing(_, displaced) => Some(displaced.ticket.payload),
        EnqueueOutcome::Full(_) => None,
        EnqueueOutcome::Waits(_) => panic!("the queue is not full"),
    }
}

/// An admission queue, with the content that the test expects.
struct CheckedQueue {
    queue: AdmissionQueue<usize>,
    now: Instant,
    /// The requests that are expected in the queue, by payload.
    waiting: BTreeMap<usize, (QueuedRequestId, QueuedRequest<usize>)>,
    entered_count: usize,
    /// Payloads of the requests that have left the queue or were rejected.
    ended: BTreeSet<usize>,
}

impl CheckedQueue {
    fn enter(&mut self, request: QueuedRequest<usize>) {
        let number = request.payload;
        let copy = QueuedRequest {
            group: request.group.clone(),
            ..request
        };
        let is_full = self.waiting.len() == CAPACITY;
        let class = request.class;
        let tenant = request.tenant;
        self.entered_count += 1;
        match self.queue.enter(request, self.now) {
            EnqueueOutcome::Waits(id) => {
                assert!(!is_full);
                self.waiting.insert(number, (id, copy));
            }
            EnqueueOutcome::QueuedDisplacing(
                id,
                RejectedRequest {
                    ticket: displaced,
                    retry_after,
                    ..
                },
            ) => {
                assert!((1..=60).contains(&retry_after));
                assert!(is_full);
                let lowest_class = self
                    .waiting
                    .values()
                    .map(|(_, request)| request.class)
                    .max()
                    .unwrap();
                assert_eq!(
                    displaced.class, lowest_class,
                    "a request of the lowest class is displaced"
                );
                assert!(
                    class < displaced.class
                        || self.queued_count(class, tenant) + 1
                            < self.queued_count(class, displaced.tenant)
                );
                self.end(displaced.payload);
                self.waiting.insert(number, (id, copy));
            }
            EnqueueOutcome::Full(RejectedRequest {
                ticket: rejected,
                retry_after,
                ..
            }) => {
                assert!((1..=60).contains(&retry_after));
                assert!(is_full && rejected.payload == number);
                assert!(
                    self.waiting
                        .values()
                        .all(|(_, request)| request.class <= class)
                );
                assert!(self.ended.insert(number));
            }
        }
    }

    fn queued_count(&self, class: usize, tenant: u64) -> usize {
        let matches =
            |request: &QueuedRequest<usize>| (request.class, request.tenant) == (class, tenant);
        self.waiting
            .values()
            .filter(|(_, request)| matches(request))
            .count()
    }

    fn grant(&mut self, available: [bool; 2]) {
        let is_available = |request: &QueuedRequest<usize>| {
            (0..2).any(|index| available[index] && request.group == group(index))
        };
        let is_servable =
            |request: &QueuedRequest<usize>| is_available(request) && request.deadline > self.now;
        let mut exhausted = ExhaustedGroups::default();
        let offer = |request: &QueuedRequest<usize>| is_available(request).then_some(());
        let first = self.queue.select(self.now, &mut exhausted, offer, |()| 0.0);
        let highest_class = self
            .waiting
            .values()
            .map(|(_, request)| request)
            .filter(|request| is_servable(request))
            .map(|request| request.class)
            .min();
        let Some((id, ())) = first else {
            assert_eq!(highest_class, None, "a request could have been granted");
            return;
        };
        let granted = self.queue.grant(id, self.now).unwrap().ticket;
        assert!(is_servable(&granted));
        assert_eq!(
            Some(granted.class),
            highest_class,
            "the highest class goes first"
        );
        let is_older =
            |(number, (_, other)): (&usize, &(QueuedRequestId, QueuedRequest<usize>))| {
                is_servable(other)
                    && (other.class, other.tenant) == (granted.class, granted.tenant)
                    && *number < granted.payload
            };
        assert!(
            !self.waiting.iter().any(is_older),
            "the oldest request of a tenant goes first"
        );
        self.end(granted.payload);
    }

    fn leave(&mut self, index: usize) {
        let Some((number, (id, _))) = self.waiting.iter().nth(index) else {
            return;
        };
        let number = *number;
        let id = *id;
        assert_eq!(
            self.queue.leave(id, self.now).unwrap().ticket.payload,
            number
        );
        assert!(
            self.queue.leave(id, self.now).is_none(),
            "a request leaves only once"
        );
        self.end(number);
    }

    fn end(&mut self, number: usize) {
        assert!(self.waiting.remove(&number).is_some(), "{number} waited");
        assert!(self.ended.insert(number), "{number} ended once");
    }

    fn check(&self) {
        assert!(self.queue.len() <= CAPACITY);
        assert_eq!(self.queue.len(), self.waiting.len());
        assert_eq!(self.queue.is_empty(), self.waiting.is_empty());
        let mut waiting = vec![0; CLASSES];
        self.waiting
            .values()
            .for_each(|(_, request)| waiting[request.class] += 1);
        assert_eq!(self.queue.waiting(), waiting);
    }
}

proptest! {
    #[test]
    fn capacity_is_kept_and_each_request_leaves_once(
        steps in proptest::collection::vec(queue_step(), 0..120),
    ) {
        let mut checked = CheckedQueue {
            queue: AdmissionQueue::new(CAPACITY, CLASSES),
            now: clock::epoch(),
            waiting: BTreeMap::new(),
            entered_count: 0,
            ended: BTreeSet::new(),
        };
        for step in steps {
            match step {
                QueueStep::Enter { class, tenant, model: index, tokens, timeout_seconds } => {
                    let deadline = checked.now + Duration::from_secs(timeout_seconds);
                    let group = group(index);
                    let payload = checked.entered_count;
                    let request = QueuedRequest { class, tenant, group, tokens, work: 0, is_begun: false, gated_until: None, deadline, payload };
                    checked.enter(request);
                }
                QueueStep::Leave(index) => checked.leave(index),
                QueueStep::Grant(available) => checked.grant(available),
                QueueStep::Wait(seconds) => checked.now += Duration::from_secs(seconds),
            }
            checked.check();
        }
        while !checked.waiting.is_empty() {
            checked.leave(0);
        }
        checked.check();
        prop_assert_eq!(checked.ended.len(), checked.entered_count);
    }

    #[test]
    fn waiting_tenants_are_granted_equal_tokens(
        sizes in [1_u64..1_000, 1_u64..1_000, 1_u64..1_000],
        burst in 1_usize..6,
    ) {
        let now = clock::epoch();
        let mut queue = AdmissionQueue::new(1_000, 1);
        let mut granted = [0_u64; 3];
        let mut number = 0;
        // Tenant 0 sends bursts, the others single requests.
        let enter = |queue: &mut AdmissionQueue<usize>, tenant: usize, number: &mut usize| {
            *number += 1;
            let tokens = sizes[tenant];
            queue.enter(QueuedRequest { tokens, ..request(*number, 0, tenant as u64, now) }, now);
        };
        for tenant in 0..3 {
            (0..2).for_each(|_| enter(&mut queue, tenant, &mut number));
        }
        for _ in 0..300 {
            let served = grant(&mut queue, now).unwrap();
            granted[served.tenant as usize] += served.tokens;
            enter(&mut queue, served.tenant as usize, &mut number);
            if queue.len() + burst < 900 {
                (0..burst).for_each(|_| enter(&mut queue, 0, &mut number));
            }
            // Start-time fair queueing: two tenants differ by at most one request each.
            for (left, right) in [(0, 1), (0, 2), (1, 2)] {
                let bound = sizes[left] + sizes[right];
                let difference = granted[left].abs_diff(granted[right]);
                prop_assert!(difference <= bound, "{granted:?} {sizes:?}");
            }
        }
    }
}

#[test]
fn full_queues_displace_for_classes_and_small_tenants() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(4, 2);
    enter_all(&mut queue, 0..4, 1, now);
    let mut enter =
        |number, class, tenant| displaced_by(&mut queue, request(number, class, tenant, now), now);
    assert_eq!(enter(4, 1, 1), None, "its own tenant");
    assert_eq!(enter(5, 0, 1), Some(3), "the newest of the lowest class");
    assert_eq!(
        enter(6, 1, 2),
        Some(2),
        "the newest of the tenant with the most requests"
    );
    assert!(enter(7, 1, 3).is_some());
    assert_eq!(enter(8, 1, 4), None, "each tenant has one");
    assert_eq!(queue.waiting(), [1, 3]);
}

/// `retry_after` of a request that a full queue rejects.
fn rejected_retry_after(
    queue: &mut AdmissionQueue<usize>,
    class: usize,
    model_index: usize,
    now: Instant,
) -> u32 {
    let newcomer = QueuedRequest {
        group: group(model_index),
        ..request(0, class, 1, now)
    };
    let EnqueueOutcome::Full(rejected) = queue.enter(newcomer, now) else {
        panic!("the queue is not full")
    };
    rejected.retry_after
}

#[test]
fn retry_after_is_position_by_rate() {
    let begin = clock::epoch();
    let mut queue = AdmissionQueue::new(100, 2);
    enter_all(&mut queue, 0..100, 0, begin);
    assert_eq!(
        rejected_retry_after(&mut queue, 1, 0, begin),
        1,
        "the rate is not known yet"
    );
    // Five requests per second are granted and replaced.
    let mut now = begin;
    for number in 100..200 {
        now += Duration::from_millis(200);
        grant(&mut queue, now).unwrap();
        queue.enter(request(number, 0, 1, now), now);
    }
    let seconds = rejected_retry_after(&mut queue, 1, 0, now);
    assert!((19..=22).contains(&seconds), "{seconds}");
    let other_model = rejected_retry_after(&mut queue, 1, 1, now);
    assert_eq!(other_model, 1, "no request waits for the other model");
    let stalled = now + Duration::from_mins(2);
    assert_eq!(
        rejected_retry_after(&mut queue, 1, 0, stalled),
        60,
        "never more than a minute"
    );
}

#[test]
fn before_the_first_grant_the_past_wait_counts() {
    let begin = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    let EnqueueOutcome::Waits(id) = queue.enter(request(0, 0, 1, begin), begin) else {
        panic!()
    };
    let later = begin + Duration::from_secs(3);
    assert_eq!(queue.refuse(id, later).unwrap().retry_after, 3);
    assert!(queue.refuse(id, later).is_none());
}

#[test]
fn a_request_held_to_its_end_retries_soon() {
    let begin = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    let later = begin + Duration::from_secs(30);
    let mut retry_after = |gated_until: Instant| {
        let gated = QueuedRequest {
            gated_until: Some(gated_until),
            deadline: later,
            ..request(0, 0, 1, begin)
        };
        let EnqueueOutcome::Waits(id) = queue.enter(gated, begin) else {
            panic!()
        };
        queue.refuse(id, later).unwrap().retry_after
    };
    assert_eq!(retry_after(later), 1);
    assert_eq!(retry_after(begin), 10, "one grant in the weighted time");
}

#[test]
fn a_model_without_capacity_blocks_no_other() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(10, 1);
    for number in 0..8 {
        queue.enter(
            QueuedRequest {
                group: group(number / 7),
                ..request(number, 0, 1, now)
            },
            now,
        );
    }
    let mut offered = Vec::new();
    let mut exhausted = ExhaustedGroups::default();
    let offer = |request: &QueuedRequest<usize>| {
        offered.push(request.payload);
        (request.payload == 7).then_some(())
    };
    let first = queue.select(now, &mut exhausted, offer, |()| 0.0);
    assert!(first.is_some());
    assert_eq!(offered, [0, 7]);
    assert!(exhausted.has(&group(0)));
    assert!(!exhausted.has(&group(1)) && !exhausted.has(&CapacityGroup::default()));
}

#[test]
fn capacity_0_rejects_and_0_classes_are_one() {
    let now = clock::epoch();
    let mut queue = AdmissionQueue::new(0, 0);
    assert!(matches!(
        queue.enter(request(0, 0, 1, now), now),
        EnqueueOutcome::Full(_)
    ));
    let mut queue = AdmissionQueue::new(1, 0);
    assert!(matches!(
        queue.enter(request(0, 7, 1, now), now),
        EnqueueOutcome::Waits(_)
    ));
    assert_eq!(queue.waiting(), [1]);
}

#[test]
fn a_wait_leaves_time_for_the_first_token() {
    let wait = |predicted| longest_wait(Duration::from_secs(2), predicted);
    assert_eq!(
        wait(0.25),
        Duration::from_millis(1_500),
        "twice the prediction"
    );
    for long in [1.5, 1e300, f64::INFINITY, f64::NAN] {
        assert_eq!(wait(long), Duration::from_secs(1), "half of the limit");
    }
}
