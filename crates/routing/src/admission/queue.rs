//! The admission queue as a state machine without I/O. Each request leaves the queue exactly once:
//! it is granted a backend, cancelled, or displaced by another request.

use super::decaying_rate::DecayingRate;
use super::fair_queue::FairQueue;
use super::queued_request::{
    CapacityGroup, DequeuedRequest, EnqueueOutcome, ExhaustedGroups, QueuedRequest,
    QueuedRequestId, RejectedRequest, WaitingModel,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The queue in which requests wait while all backends that could serve them are full.
#[derive(Debug)]
pub struct AdmissionQueue<T> {
    /// Maximum number of queued requests.
    capacity: usize,
    next_id: u64,
    requests: BTreeMap<u64, QueueEntry<T>>,
    /// The service order within each class, the highest class first.
    classes: Vec<FairQueue<ServiceKey>>,
    groups: BTreeMap<CapacityGroup, GroupQueue>,
}

/// The key that orders the requests of a tenant: the time of arrival plus `precedence_given`, and for equal
/// times the id of the request.
type ServiceKey = (Instant, u64);

#[derive(Debug)]
struct QueueEntry<T> {
    request: QueuedRequest<T>,
    entered_at: Instant,
    key: ServiceKey,
    /// Sum of the past periods of the wait in which no backend could serve the request.
    without_backend: Duration,
    /// Number of later requests of the tenant that were selected before this one.
    overtaken: u32,
}

/// Counts for the requests of one group, kept while requests of the group wait.
#[derive(Debug)]
struct GroupQueue {
    /// Number of waiting requests per class.
    waiting_by_class: Vec<usize>,
    grant_rate: DecayingRate,
    /// Time since which no backend can serve the group. `None`: a backend can serve the group.
    without_backend_since: Option<Instant>,
}

/// Minimum and maximum `retry_after` in seconds. Longer waits cannot be predicted, and the OpenAI SDKs do not
/// wait much longer.
const RETRY_AFTER_SECONDS_BOUNDS: (f64, f64) = (1.0, 60.0);
/// Maximum number of requests that [`AdmissionQueue::select`] compares.
const MAX_COMPARED_REQUESTS: usize = 16;
/// Maximum number of later requests of the same tenant that may be selected before a request.
const MAX_OVERTAKEN: u32 = 16;
/// Maximum number of lost tokens (see [`AdmissionQueue::select`]) at which a request does not let a later one
/// go first. Computing so few tokens takes a few milliseconds.
const MAX_LOST_TOKENS: f64 = 128.0;

impl<T> AdmissionQueue<T> {
    /// An empty queue for at most `capacity` requests in `classes` classes, at least 1.
    pub fn new(capacity: usize, classes: usize) -> Self {
        let classes = (0..classes.max(1)).map(|_| FairQueue::default()).collect();
        Self {
            capacity,
            next_id: 0,
            requests: BTreeMap::new(),
            classes,
            groups: BTreeMap::new(),
        }
    }

    /// Changes the capacity and the number of classes. `new_class` maps the old class of a queued request to
    /// its new class. If the new capacity is lower, requests above it stay queued.
    pub fn change(&mut self, capacity: usize, classes: usize, new_class: impl Fn(usize) -> usize) {
        self.capacity = capacity;
        let classes = classes.max(1);
        self.classes = (0..classes).map(|_| FairQueue::default()).collect();
        self.groups
            .values_mut()
            .for_each(|queue| queue.waiting_by_class = vec![0; classes]);
        for QueueEntry { request, key, .. } in self.requests.values_mut() {
            request.class = new_class(request.class).min(classes - 1);
            self.classes[request.class].push(request.tenant, *key);
            if let Some(group) = self.groups.get_mut(&request.group) {
                group.waiting_by_class[request.class] += 1;
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

    /// Time at which the oldest waiting request entered the queue. `None`: no request waits.
    pub fn oldest(&self) -> Option<Instant> {
        self.requests
            .first_key_value()
            .map(|(_, entry)| entry.entered_at)
    }

    /// Number of waiting requests per class, the highest class first.
    pub fn waiting(&self) -> Vec<usize> {
        let mut waiting = vec![0; self.classes.len()];
        for queue in self.groups.values() {
            waiting
                .iter_mut()
                .zip(&queue.waiting_by_class)
                .for_each(|(sum, count)| *sum += count);
        }
        waiting
    }

    /// Number of requests that wait for a gate.
    pub fn gated(&self, now: Instant) -> usize {
        self.requests
            .values()
            .filter(|entry| entry.request.is_gated(now))
            .count()
    }

    /// The models for which requests wait. A model has one entry for each group of its requests.
    pub fn waiting_models(&self) -> impl Iterator<Item = WaitingModel> + '_ {
        self.groups.iter().map(|(group, queue)| WaitingModel {
            model: group.model.clone(),
            requests: queue.waiting_by_class.iter().sum(),
            without_backend_since: queue.without_backend_since,
        })
    }

    /// Whether a new request of `group` must queue behind waiting requests. True if a waiting request is of the
    /// same group, or of another group that a backend can serve and that may need the same capacity.
    pub fn precedes(&self, group: &CapacityGroup) -> bool {
        self.groups
            .iter()
            .any(|(other, queue)| queue.without_backend_since.is_none() || other == group)
    }

    /// Whether requests of `group` wait because no backend can serve them.
    pub fn is_without_backend(&self, group: &CapacityGroup) -> bool {
        self.groups
            .get(group)
            .is_some_and(|queue| queue.without_backend_since.is_some())
    }

    /// Records that no backend can serve `groups`, and that backends can serve all other waiting groups.
    pub fn set_without_backend(&mut self, groups: &[CapacityGroup], now: Instant) {
        let mut served = Vec::new();
        for (group, queue) in &mut self.groups {
            if groups.contains(group) {
                queue.without_backend_since.get_or_insert(now);
            } else if let Some(since) = queue.without_backend_since.take() {
                served.push((group.clone(), since));
            }
        }
        for (group, since) in served {
            let of_group = |entry: &&mut QueueEntry<T>| entry.request.group == group;
            for entry in self.requests.values_mut().filter(of_group) {
                entry.without_backend += now.saturating_duration_since(since.max(entry.entered_at));
            }
        }
    }

    /// Adds a request. A class beyond the last counts as the lowest class.
    pub fn enter(&mut self, request: QueuedRequest<T>, now: Instant) -> EnqueueOutcome<T> {
        let lowest_class = self.classes.len() - 1;
        let request = QueuedRequest {
            class: request.class.min(lowest_class),
            ..request
        };
        if self.requests.len() < self.capacity || request.is_begun {
            return EnqueueOutcome::Waits(self.insert(request, now));
        }
        let displaced = self
            .find_displaceable(&request)
            .and_then(|id| self.refuse(id, now));
        if let Some(displaced) = displaced {
            return EnqueueOutcome::QueuedDisplacing(self.insert(request, now), displaced);
        }
        let position = self.count_ahead(request.class, &request.group) + 1;
        let retry_after = self.estimate_retry_after(position, &request.group, now);
        let without_backend = Duration::ZERO;
        EnqueueOutcome::Full(RejectedRequest {
            ticket: request,
            without_backend,
            retry_after,
        })
    }

    /// Removes a request without a grant, because its client has disconnected or its wait is over. `None`: the
    /// request is no longer in the queue.
    pub fn leave(&mut self, id: QueuedRequestId, now: Instant) -> Option<DequeuedRequest<T>> {
        self.remove(id, false, now)
    }

    /// Rejects a queued request. `None`: the request is no longer in the queue.
    pub fn refuse(&mut self, id: QueuedRequestId, now: Instant) -> Option<RejectedRequest<T>> {
        let request = &self.requests.get(&id.0)?.request;
        let retry_after = if request.is_held_to_end() {
            // Room can appear at any moment, and a client that stays away misses it.
            RETRY_AFTER_SECONDS_BOUNDS.0 as u32
        } else {
            let position = self.count_ahead(request.class, &request.group);
            self.estimate_retry_after(position, &request.group, now)
        };
        let DequeuedRequest {
            ticket,
            without_backend,
        } = self.leave(id, now)?;
        Some(RejectedRequest {
            ticket,
            without_backend,
            retry_after,
        })
    }

    /// Selects the next request to grant, and returns the value that `offer` returned for it. `None`: `offer`
    /// returned no value for any request. If `offer` returns `None`, the group of the request is added to
    /// `exhausted`, and `offer` is not called again for that group. Requests after their deadline are skipped.
    ///
    /// The first request in service order for which `offer` returns a value is selected, unless it loses more
    /// than 128 tokens. `lost_tokens` returns the number of prompt tokens that the offered backend must compute
    /// although another backend has them in its cache. If the first request loses more than 128, it is compared
    /// with the next requests of the same tenant, class and group. The first one that loses at most 128 is
    /// selected, or else the one that loses the fewest tokens. This is delay scheduling (Zaharia et al. 2010),
    /// except that capacity is never left unused. A request is overtaken at most 16 times, and never by another
    /// tenant.
    pub fn select<R>(
        &mut self,
        now: Instant,
        exhausted: &mut ExhaustedGroups,
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
        for (overtaken, _) in &offers[..least_lost.1] {
            if let Some(entry) = self.requests.get_mut(overtaken) {
                entry.overtaken += 1;
            }
        }
        let (id, offered) = offers.swap_remove(least_lost.1);
        Some((QueuedRequestId(id), offered))
    }

    /// The first request in service order for which `offer` returns a value, with this value.
    fn first<R>(
        &self,
        now: Instant,
        exhausted: &mut ExhaustedGroups,
        mut offer: impl FnMut(&QueuedRequest<T>) -> Option<R>,
    ) -> Option<(u64, R)> {
        for (_, id) in self
            .classes
            .iter()
            .flat_map(FairQueue::keys_in_service_order)
        {
            if exhausted.count() == self.groups.len() {
                return None;
            }
            let request = &self.requests.get(&id)?.request;
            if request.deadline <= now || exhausted.has_for(request, now) {
                continue;
            }
            match offer(request) {
                Some(offered) => return Some((id, offered)),
                None => exhausted.add(request, now),
            }
        }
        None
    }

    /// The requests after a request in service order that have its tenant, class and group. Requests after
    /// their deadline are left out.
    fn followers(&self, id: u64, now: Instant) -> impl Iterator<Item = (u64, &QueuedRequest<T>)> {
        let QueueEntry {
            request: first,
            key,
            ..
        } = &self.requests[&id];
        let keys = self.classes[first.class].keys_after(first.tenant, *key);
        let requests = keys.filter_map(|(_, id)| Some((id, &self.requests.get(&id)?.request)));
        requests.filter(move |(_, other)| other.group == first.group && other.deadline > now)
    }

    /// Removes a granted request, and charges its tokens to its tenant. `None`: the request is no longer in the
    /// queue.
    pub fn grant(&mut self, id: QueuedRequestId, now: Instant) -> Option<DequeuedRequest<T>> {
        self.remove(id, true, now)
    }

    /// Number of requests of a group that wait in this class and in higher classes.
    fn count_ahead(&self, class: usize, group: &CapacityGroup) -> usize {
        let queue = self.groups.get(group);
        queue.map_or(0, |queue| {
            queue.waiting_by_class.iter().take(class + 1).sum()
        })
    }

    /// The `retry_after` of a request at this position among the requests of its group. The first position is
    /// 1.
    fn estimate_retry_after(&self, position: usize, group: &CapacityGroup, now: Instant) -> u32 {
        let (least, most) = RETRY_AFTER_SECONDS_BOUNDS;
        let Some(queue) = self.groups.get(group) else {
            return least as u32;
        };
        let seconds = position as f64 / queue.grant_rate.per_second(now);
        seconds.ceil().clamp(least, most) as u32
    }

    /// Expected wait of a new request for a backend: the number of requests of its group that are granted
    /// before it ÷ grants per second. Of each other tenant, at most as many requests count as its own tenant
    /// has. `None`: no request of the group has been granted since the group began to wait.
    pub fn expected_wait(&self, request: &QueuedRequest<T>, now: Instant) -> Option<Duration> {
        let rate = self
            .groups
            .get(&request.group)?
            .grant_rate
            .measured_per_second(now)?;
        let due = request.service_time(now);
        let mut higher = 0;
        let mut by_tenant = BTreeMap::from([(request.tenant, 0)]);
        for entry in self.requests.values() {
            let QueuedRequest {
                class,
                tenant,
                group,
                ..
            } = &entry.request;
            if *group != request.group || *class > request.class {
                continue;
            }
            if *class < request.class {
                higher += 1;
            } else if *tenant != request.tenant || entry.key.0 <= due {
                *by_tenant.entry(*tenant).or_insert(0) += 1;
            }
        }
        let own = by_tenant.get(&request.tenant).copied().unwrap_or_default();
        let ahead = higher
            + by_tenant
                .values()
                .map(|count| own.min(*count))
                .sum::<usize>();
        Duration::try_from_secs_f64(ahead as f64 / rate).ok()
    }

    /// The request that `newcomer` may displace. `None`: it may displace none. The first rule that yields a
    /// request decides:
    ///
    /// - If a backend can serve the group of `newcomer`: the newest request of the lowest class that no backend
    ///   can serve, unless its class is higher.
    /// - The last request of the tenant with the most requests in the lowest class that has requests.
    ///   `newcomer` must have a higher class, or an equal class and a tenant with fewer requests, including
    ///   `newcomer`.
    fn find_displaceable(&self, newcomer: &QueuedRequest<T>) -> Option<QueuedRequestId> {
        if !self.is_without_backend(&newcomer.group)
            && let Some(id) = self.last_without_backend(newcomer.class)
        {
            return Some(QueuedRequestId(id));
        }
        let mut classes = self.classes.iter().enumerate().rev();
        let (class, (largest_count, newest)) =
            classes.find_map(|(class, queue)| Some((class, queue.largest_tenant()?)))?;
        if self
            .requests
            .get(&newest.1)
            .is_none_or(|entry| entry.request.is_begun)
        {
            return None;
        }
        let tenant_count = self.classes[newcomer.class].queued_count(newcomer.tenant);
        let has_smaller_tenant = class == newcomer.class && tenant_count + 1 < largest_count;
        (class > newcomer.class || has_smaller_tenant).then_some(QueuedRequestId(newest.1))
    }

    /// Returns the newest request of the lowest class that no backend can serve. Classes above `highest_class`
    /// are not searched.
    fn last_without_backend(&self, highest_class: usize) -> Option<u64> {
        if self
            .groups
            .values()
            .all(|queue| queue.without_backend_since.is_none())
        {
            return None;
        }
        let is_displaceable = |entry: &&(&u64, &QueueEntry<T>)| {
            let request = &entry.1.request;
            !request.is_begun
                && request.class >= highest_class
                && self.is_without_backend(&request.group)
        };
        let displaceable = self.requests.iter().filter(|entry| is_displaceable(&entry));
        displaceable
            .map(|(id, entry)| (entry.request.class, *id))
            .max()
            .map(|(_, id)| id)
    }

    /// Adds a request regardless of the capacity.
    fn insert(&mut self, request: QueuedRequest<T>, now: Instant) -> QueuedRequestId {
        let id = self.next_id;
        self.next_id += 1;
        let classes = self.classes.len();
        let group = self.groups.entry(request.group.clone());
        let group = group.or_insert_with(|| GroupQueue {
            waiting_by_class: vec![0; classes],
            grant_rate: DecayingRate::begin(now),
            without_backend_since: None,
        });
        group.waiting_by_class[request.class] += 1;
        let key = (request.service_time(now), id);
        self.classes[request.class].push(request.tenant, key);
        let without_backend = Duration::ZERO;
        let entry = QueueEntry {
            request,
            entered_at: now,
            key,
            without_backend,
            overtaken: 0,
        };
        self.requests.insert(id, entry);
        QueuedRequestId(id)
    }

    fn remove(
        &mut self,
        QueuedRequestId(id): QueuedRequestId,
        is_granted: bool,
        now: Instant,
    ) -> Option<DequeuedRequest<T>> {
        let QueueEntry {
            request,
            entered_at,
            key,
            mut without_backend,
            ..
        } = self.requests.remove(&id)?;
        let granted_tokens = is_granted.then(|| request.tokens.max(1));
        self.classes[request.class].remove(request.tenant, key, granted_tokens);
        if let Some(group) = self.groups.get_mut(&request.group) {
            group.waiting_by_class[request.class] -= 1;
            if is_granted {
                group.grant_rate.add(now);
            }
            if let Some(since) = group.without_backend_since {
                without_backend += now.saturating_duration_since(since.max(entered_at));
            }
            if group.waiting_by_class.iter().all(|count| *count == 0) {
                self.groups.remove(&request.group);
            }
        }
        Some(DequeuedRequest {
            ticket: request,
            without_backend,
        })
    }
}
