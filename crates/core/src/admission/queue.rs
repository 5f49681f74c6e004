//! The admission queue as a state machine without I/O. Each request leaves the queue exactly once:
//! it is granted a backend, cancelled, or displaced by another request.

use super::decaying_rate::DecayingRate;
use super::fair_queue::FairQueue;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A request that waits for a backend.
#[derive(Debug)]
pub struct QueuedRequest<T> {
    /// Index of the priority class. 0 is the highest class.
    pub class: usize,
    /// Id of the tenant. The queue is shared fairly among tenants.
    pub tenant: u64,
    /// Requested model. `None`: the client named none.
    pub model: Option<Arc<str>>,
    /// Tokens that the request may occupy in a KV cache. When the request is granted, they are
    /// charged to the tenant.
    pub tokens: u64,
    /// From this time on, the request is not granted.
    pub deadline: Instant,
    /// Data that the code which fills the queue stores with the request.
    pub payload: T,
}

/// Identifies a request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuedRequestId(u64);

/// Result of adding a request to the queue.
#[derive(Debug)]
pub enum EnqueueOutcome<T> {
    /// The request is queued.
    Waits(QueuedRequestId),
    /// The request is queued. It displaced another request, which is rejected.
    QueuedDisplacing(QueuedRequestId, RejectedRequest<T>),
    /// The request is rejected: the queue is full, and the request may not displace another one.
    Full(RejectedRequest<T>),
}

/// A request that was not queued, or that was removed from the queue without a grant.
#[derive(Debug)]
pub struct RejectedRequest<T> {
    /// The rejected request.
    pub ticket: QueuedRequest<T>,
    /// Time after which the client should retry, in seconds: queue position ÷ grants per second,
    /// from 1 to 60.
    pub retry_after: u32,
}

/// Models for which no backend has capacity. [`AdmissionQueue::select`] adds models and skips their
/// requests. `None`: requests that name no model.
#[derive(Debug, Default)]
pub struct ExhaustedModels(Vec<Option<Arc<str>>>);

/// The admission queue.
#[derive(Debug)]
pub struct AdmissionQueue<T> {
    /// Greatest number of queued requests.
    capacity: usize,
    next_id: u64,
    /// The queued requests by id.
    requests: BTreeMap<u64, QueueEntry<T>>,
    /// The service order within each class, the highest class first.
    classes: Vec<FairQueue>,
    model_queues: BTreeMap<Option<Arc<str>>, ModelQueue>,
}

#[derive(Debug)]
struct QueueEntry<T> {
    request: QueuedRequest<T>,
    entered_at: Instant,
    /// Number of later requests of the same tenant that were selected before this request.
    overtaken: u32,
}

/// Counts of the requests for one model. The value exists while requests for the model wait.
#[derive(Debug)]
struct ModelQueue {
    /// Number of waiting requests per class.
    waiting_by_class: Vec<usize>,
    /// Rate of requests for the model that are granted.
    grant_rate: DecayingRate,
}

/// Least and greatest `retry_after` in seconds. A wait of more than a minute cannot be predicted,
/// and the OpenAI SDKs do not wait for much longer.
const RETRY_AFTER_SECONDS_BOUNDS: (f64, f64) = (1.0, 60.0);
/// Greatest number of requests among which [`AdmissionQueue::select`] selects one.
const MAX_COMPARED_REQUESTS: usize = 16;
/// Greatest number of later requests that are selected before a request.
const MAX_OVERTAKEN: u32 = 16;
/// Number of lost tokens up to which a request does not give way to a later one. Computing so few
/// tokens takes a few milliseconds.
const MAX_LOST_TOKENS: f64 = 128.0;

impl<T> AdmissionQueue<T> {
    /// An empty queue for at most `capacity` requests in `classes` classes. 0 classes count as 1.
    pub fn new(capacity: usize, classes: usize) -> Self {
        let classes = (0..classes.max(1)).map(|_| FairQueue::default()).collect();
        Self {
            capacity,
            next_id: 0,
            requests: BTreeMap::new(),
            classes,
            model_queues: BTreeMap::new(),
        }
    }

    /// Changes the capacity and the number of classes. `new_class` maps the old class of a queued
    /// request to its new class. Requests beyond the new capacity stay queued.
    pub fn change(&mut self, capacity: usize, classes: usize, new_class: impl Fn(usize) -> usize) {
        self.capacity = capacity;
        let classes = classes.max(1);
        self.classes = (0..classes).map(|_| FairQueue::default()).collect();
        self.model_queues.values_mut().for_each(|queue| queue.waiting_by_class = vec![0; classes]);
        for (id, QueueEntry { request, .. }) in &mut self.requests {
            request.class = new_class(request.class).min(classes - 1);
            self.classes[request.class].push(request.tenant, *id);
            if let Some(model_queue) = self.model_queues.get_mut(&request.model) {
                model_queue.waiting_by_class[request.class] += 1;
            }
        }
    }

    /// Number of waiting requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// When the request entered that has waited longest. `None`: no request waits.
    pub fn oldest(&self) -> Option<Instant> {
        self.requests.first_key_value().map(|(_, entry)| entry.entered_at)
    }

    /// Number of waiting requests per class, the highest class first.
    pub fn waiting(&self) -> Vec<usize> {
        let mut waiting = vec![0; self.classes.len()];
        for queue in self.model_queues.values() {
            waiting.iter_mut().zip(&queue.waiting_by_class).for_each(|(sum, count)| *sum += count);
        }
        waiting
    }

    /// Adds a request. A class that does not exist counts as the lowest class.
    pub fn enter(&mut self, request: QueuedRequest<T>, now: Instant) -> EnqueueOutcome<T> {
        let lowest_class = self.classes.len() - 1;
        let request = QueuedRequest { class: request.class.min(lowest_class), ..request };
        if self.requests.len() < self.capacity {
            return EnqueueOutcome::Waits(self.insert(request, now));
        }
        let displaced = self.find_displaceable(&request).and_then(|id| self.refuse(id, now));
        if let Some(displaced) = displaced {
            return EnqueueOutcome::QueuedDisplacing(self.insert(request, now), displaced);
        }
        let position = self.count_ahead(request.class, request.model.as_ref()) + 1;
        let retry_after = self.estimate_retry_after(position, request.model.as_ref(), now);
        EnqueueOutcome::Full(RejectedRequest { ticket: request, retry_after })
    }

    /// Removes a request without a grant, because its client has disconnected or its wait is over.
    /// `None`: the request is not in the queue any more.
    pub fn leave(&mut self, id: QueuedRequestId) -> Option<QueuedRequest<T>> {
        self.remove(id, None)
    }

    /// Rejects a queued request. `None`: the request is not in the queue any more.
    pub fn refuse(&mut self, id: QueuedRequestId, now: Instant) -> Option<RejectedRequest<T>> {
        let QueuedRequest { class, model, .. } = &self.requests.get(&id.0)?.request;
        let position = self.count_ahead(*class, model.as_ref());
        let retry_after = self.estimate_retry_after(position, model.as_ref(), now);
        Some(RejectedRequest { ticket: self.leave(id)?, retry_after })
    }

    /// Selects the request that is granted next, and returns the value that `offer` returned for
    /// the request. `None`: `offer` returned no value for any request. If `offer` returns `None`,
    /// the model of the request is added to `exhausted`, and `offer` is not called for further
    /// requests for that model. Requests after their deadline are skipped.
    ///
    /// The first request in service order for which `offer` returns a value is selected, unless it
    /// loses more than 128 tokens. `lost_tokens` is the number of prompt tokens that the
    /// offered backend must compute although another backend has them in its cache. Then the next
    /// requests of the same tenant, class and model are compared, and the first one that loses no
    /// more than this limit is selected, or else the one that loses the fewest tokens. This is
    /// delay scheduling (Zaharia et al. 2010), except that capacity is never left unused. A request
    /// is overtaken at most 16 times, and never by another tenant.
    pub fn select<R>(
        &mut self,
        now: Instant,
        exhausted: &mut ExhaustedModels,
        mut offer: impl FnMut(&QueuedRequest<T>) -> Option<R>,
        lost_tokens: impl Fn(&R) -> f64,
    ) -> Option<(QueuedRequestId, R)> {
        let (first, offered) = self.first(now, exhausted, &mut offer)?;
        let mut offers = vec![(first, offered)];
        let mut least_lost = (lost_tokens(&offers[0].1), 0);
        let is_overtakable = |id: &u64| self.requests[id].overtaken < MAX_OVERTAKEN;
        for (id, request) in self.followers(first, now).take(MAX_COMPARED_REQUESTS - 1) {
            let may_pass = offers.last().is_some_and(|(last, _)| is_overtakable(last));
            if least_lost.0 <= MAX_LOST_TOKENS || !may_pass {
                break;
            }
            let Some(offered) = offer(request) else { break };
            let lost = lost_tokens(&offered);
            if lost < least_lost.0 {
                least_lost = (lost, offers.len());
            }
            offers.push((id, offered));
        }
        let (id, offered) = offers.swap_remove(least_lost.1);
        for (overtaken, _) in offers.iter().filter(|(other, _)| *other < id) {
            if let Some(entry) = self.requests.get_mut(overtaken) {
                entry.overtaken += 1;
            }
        }
        Some((QueuedRequestId(id), offered))
    }

    /// The first request in service order for which `offer` returns a value, and that value.
    fn first<R>(
        &self,
        now: Instant,
        exhausted: &mut ExhaustedModels,
        mut offer: impl FnMut(&QueuedRequest<T>) -> Option<R>,
    ) -> Option<(u64, R)> {
        for id in self.classes.iter().flat_map(FairQueue::request_ids_in_service_order) {
            if exhausted.0.len() == self.model_queues.len() {
                return None;
            }
            let request = &self.requests.get(&id)?.request;
            if request.deadline <= now || exhausted.has(request.model.as_deref()) {
                continue;
            }
            match offer(request) {
                Some(offered) => return Some((id, offered)),
                None => exhausted.0.push(request.model.clone()),
            }
        }
        None
    }

    /// The requests of the same tenant, class and model that follow a request, without those after
    /// their deadline. The oldest is first.
    fn followers(&self, id: u64, now: Instant) -> impl Iterator<Item = (u64, &QueuedRequest<T>)> {
        let first = &self.requests[&id].request;
        let ids = self.classes[first.class].request_ids_after(first.tenant, id);
        let requests = ids.filter_map(|id| Some((id, &self.requests.get(&id)?.request)));
        requests.filter(move |(_, other)| other.model == first.model && other.deadline > now)
    }

    /// Removes a request that is granted, and charges its tokens to its tenant. `None`: the request
    /// is not in the queue any more.
    pub fn grant(&mut self, id: QueuedRequestId, now: Instant) -> Option<QueuedRequest<T>> {
        self.remove(id, Some(now))
    }

    /// Number of requests for a model that wait in this class and in higher classes.
    fn count_ahead(&self, class: usize, model: Option<&Arc<str>>) -> usize {
        let queue = self.model_queues.get(&model.cloned());
        queue.map_or(0, |queue| queue.waiting_by_class.iter().take(class + 1).sum())
    }

    /// `retry_after` of a request at this position, counted from 1, of the queue for a model.
    fn estimate_retry_after(&self, position: usize, model: Option<&Arc<str>>, now: Instant) -> u32 {
        let (least, most) = RETRY_AFTER_SECONDS_BOUNDS;
        let Some(queue) = self.model_queues.get(&model.cloned()) else { return least as u32 };
        let seconds = position as f64 / queue.grant_rate.per_second(now);
        seconds.ceil().clamp(least, most) as u32
    }

    /// The request that `newcomer` may displace. It is the newest request of the tenant with the
    /// most requests in the lowest class that has requests. `newcomer` may displace it if it has a
    /// higher class, or if it has the same class and its tenant has fewer requests, including
    /// `newcomer`. `None`: `newcomer` may not displace a request.
    fn find_displaceable(&self, newcomer: &QueuedRequest<T>) -> Option<QueuedRequestId> {
        let mut classes = self.classes.iter().enumerate().rev();
        let (class, (largest_count, newest)) =
            classes.find_map(|(class, queue)| Some((class, queue.largest_tenant()?)))?;
        let tenant_count = self.classes[newcomer.class].queued_count(newcomer.tenant);
        let has_smaller_tenant = class == newcomer.class && tenant_count + 1 < largest_count;
        (class > newcomer.class || has_smaller_tenant).then_some(QueuedRequestId(newest))
    }

    /// Adds a request regardless of the capacity.
    fn insert(&mut self, request: QueuedRequest<T>, now: Instant) -> QueuedRequestId {
        let id = self.next_id;
        self.next_id += 1;
        let classes = self.classes.len();
        let model_queue = self.model_queues.entry(request.model.clone());
        let model_queue = model_queue.or_insert_with(|| ModelQueue {
            waiting_by_class: vec![0; classes],
            grant_rate: DecayingRate::begin(now),
        });
        model_queue.waiting_by_class[request.class] += 1;
        self.classes[request.class].push(request.tenant, id);
        self.requests.insert(id, QueueEntry { request, entered_at: now, overtaken: 0 });
        QueuedRequestId(id)
    }

    /// Removes a request. `granted_at`: the time of its grant. `None`: the request is not granted.
    fn remove(
        &mut self,
        QueuedRequestId(id): QueuedRequestId,
        granted_at: Option<Instant>,
    ) -> Option<QueuedRequest<T>> {
        let QueueEntry { request, .. } = self.requests.remove(&id)?;
        let granted_tokens = granted_at.map(|_| request.tokens.max(1));
        self.classes[request.class].remove(request.tenant, id, granted_tokens);
        if let Some(model_queue) = self.model_queues.get_mut(&request.model) {
            model_queue.waiting_by_class[request.class] -= 1;
            if let Some(now) = granted_at {
                model_queue.grant_rate.add(now);
            }
            if model_queue.waiting_by_class.iter().all(|count| *count == 0) {
                self.model_queues.remove(&request.model);
            }
        }
        Some(request)
    }
}

impl ExhaustedModels {
    /// Whether the model is among the exhausted models. `None`: requests that name no model.
    pub fn has(&self, model: Option<&str>) -> bool {
        self.0.iter().any(|exhausted| exhausted.as_deref() == model)
    }
}
