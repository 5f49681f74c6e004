//! Samples the candidates of a large pool, so that a decision need not build a [`Candidate`] for every backend.
//!
//! The sample has the backends that received the longest prefixes of the prompt, and the best of some random
//! backends by their [load hints](super::load_hint). Because of the randomness, concurrent decisions do not all
//! pick the same backend. Comparing dozens of hints costs fewer CPU cache misses than building one candidate,
//! so a decision costs about the same in a pool of 1,000 backends as in a pool of 100.

use super::load_hint::{LoadHint, LoadHintTable};
use crate::prefixes::PrefixHints;
use crate::{Candidate, PolicyKind, PromptFingerprint, RoutingRequest, mix};
use std::iter::{Chain, Copied};
use std::slice::Iter;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The sampling state of one pool. It survives when backends join or leave the pool.
#[derive(Debug)]
pub struct CandidateSampler {
    epoch: Instant,
    /// Empty until the pool first has more than [`MAX_UNSAMPLED_BACKENDS`] backends.
    tables: OnceLock<SamplerTables>,
}

/// Prefix index and load hints of the backends of a large pool.
#[derive(Debug)]
struct SamplerTables {
    prefix_hints: PrefixHints,
    load_hints: LoadHintTable,
}

/// Maximum number of backends of a model without sampling.
const MAX_UNSAMPLED_BACKENDS: usize = 64;
/// Number of backends that are drawn for a session, or for a policy that draws at random itself.
const RANDOM_SAMPLE_SIZE: usize = 8;
/// Number of backends that are chosen by their load hints for a request without a session.
const HINTED_SAMPLE_SIZE: usize = 4;
/// Number of load hints that are compared for each backend chosen by its hint.
const HINTS_PER_SAMPLE: usize = 16;

impl CandidateSampler {
    /// A sampler for a pool of `backend_count` backends. Times are stored relative to `epoch`.
    pub fn new(epoch: Instant, backend_count: usize) -> Self {
        let sampler = Self {
            epoch,
            tables: OnceLock::new(),
        };
        sampler.fit(backend_count);
        sampler
    }

    /// Whether a model has so many backends that a policy gets only a sample of them.
    pub fn is_large(backend_count: usize) -> bool {
        backend_count > MAX_UNSAMPLED_BACKENDS
    }

    /// Adapts the sampler to a new number of backends.
    pub fn fit(&self, backend_count: usize) {
        if Self::is_large(backend_count) {
            self.tables.get_or_init(SamplerTables::new);
        }
    }

    /// Size of the tables in bytes.
    pub fn bytes(&self) -> usize {
        self.tables.get().map_or(0, |tables| {
            tables.prefix_hints.bytes() + tables.load_hints.bytes()
        })
    }

    /// Records that a prompt was sent to the backend at `position` of the pool.
    pub fn sent(&self, prompt: &PromptFingerprint, position: usize) {
        if let Some(tables) = self.tables.get() {
            tables.prefix_hints.add(&prompt.blocks, position);
        }
    }

    /// Updates the load hint of the backend at `position`. `candidate` returns the backend's estimate for an
    /// empty prompt. `None`: the backend must not get requests. In a small pool, `candidate` is not called.
    pub fn show(
        &self,
        position: usize,
        now: Instant,
        candidate: impl FnOnce() -> Option<Candidate>,
    ) {
        let Some(tables) = self.tables.get() else {
            return;
        };
        let hint = candidate().map_or(LoadHint::UNAVAILABLE, |candidate| {
            let idle = Duration::try_from_secs_f64(candidate.idle_seconds).unwrap_or_default();
            let since_epoch = now.saturating_duration_since(self.epoch);
            LoadHint::new(&candidate, since_epoch.saturating_sub(idle))
        });
        tables.load_hints.set(position, hint);
    }

    /// Samples the positions among which a policy chooses. `positions` must be in ascending order. `None`: all
    /// positions are candidates, because they are few or because the policy needs all. For all requests of a
    /// session, the random part of the sample is the same.
    pub fn sample(
        &self,
        policy: PolicyKind,
        positions: &[usize],
        prompt: &PromptFingerprint,
        request: &RoutingRequest,
    ) -> Option<Vec<usize>> {
        if !Self::is_large(positions.len()) {
            return None;
        }
        let tables = self.tables.get()?;
        let mut sample = Vec::with_capacity(RANDOM_SAMPLE_SIZE + PrefixHints::MOST);
        match (policy, request.session) {
            (PolicyKind::KvAware, None) => sample.extend(tables.best(positions, request.seed)),
            (PolicyKind::KvAware | PolicyKind::P2c | PolicyKind::Random, session) => {
                let seed = session.unwrap_or(request.seed);
                sample.extend(
                    random_partitions(positions, RANDOM_SAMPLE_SIZE, seed)
                        .filter_map(|mut part| part.next()),
                );
            }
            _ => return None,
        }
        for position in tables.prefix_hints.lookup(&prompt.blocks) {
            if positions.binary_search(&position).is_ok() && !sample.contains(&position) {
                sample.push(position);
            }
        }
        Some(sample)
    }
}

impl SamplerTables {
    fn new() -> Self {
        Self {
            prefix_hints: PrefixHints::new(),
            load_hints: LoadHintTable::new(),
        }
    }

    /// The position with the lowest load hint in each of several random subsets.
    fn best(&self, positions: &[usize], seed: u64) -> impl Iterator<Item = usize> {
        let best = |part: FleetPartition<'_>| {
            part.take(HINTS_PER_SAMPLE)
                .min_by_key(|position| self.load_hints.at(*position))
        };
        random_partitions(positions, HINTED_SAMPLE_SIZE, seed).filter_map(best)
    }
}

/// The backends of one partition of the pool, by position. The order begins at a random position.
type FleetPartition<'a> = Copied<Chain<Iter<'a, usize>, Iter<'a, usize>>>;

/// Splits the pool into `parts` equal partitions. The order of each begins at a random position.
fn random_partitions(
    positions: &[usize],
    parts: usize,
    seed: u64,
) -> impl Iterator<Item = FleetPartition<'_>> {
    let bound = move |part: usize| part * positions.len() / parts;
    (0..parts).map(move |part| {
        let all = &positions[bound(part)..bound(part + 1)];
        let start = mix(seed.wrapping_add(part as u64)) % all.len() as u64;
        let (before, after) = all.split_at(start as usize);
        after.iter().chain(before).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadEstimator, Policy};
    use std::collections::{BTreeSet, HashMap};
    use tokenweir_protocol::clock;

    const KV_AWARE: PolicyKind = PolicyKind::KvAware;

    fn prompt(seed: u64) -> PromptFingerprint {
        let text = seed.to_string().repeat(10_000);
        PromptFingerprint::new(7, std::iter::once(text.as_bytes()))
    }

    fn routing_request(seed: u64) -> RoutingRequest {
        RoutingRequest {
            seed: mix(seed),
            ..RoutingRequest::default()
        }
    }

    fn all(count: usize) -> Vec<usize> {
        (0..count).collect()
    }

    fn sampler(backend_count: usize) -> CandidateSampler {
        CandidateSampler::new(clock::epoch(), backend_count)
    }

    /// The sample of `count` backends for a prompt without blocks.
    fn sample(sampler: &CandidateSampler, kind: PolicyKind, count: usize, seed: u64) -> Vec<usize> {
        let prompt = PromptFingerprint::default();
        sampler
            .sample(kind, &all(count), &prompt, &routing_request(seed))
            .unwrap()
    }

    #[test]
    fn small_pools_and_some_policies_get_all_backends() {
        let small = sampler(MAX_UNSAMPLED_BACKENDS);
        let positions = all(MAX_UNSAMPLED_BACKENDS);
        assert_eq!(
            small.sample(KV_AWARE, &positions, &prompt(1), &routing_request(1)),
            None
        );
        assert_eq!(small.bytes(), 0);
        let large = sampler(1_000);
        assert_eq!(
            large.sample(KV_AWARE, &all(10), &prompt(1), &routing_request(1)),
            None,
            "few backends serve the model"
        );
        assert_eq!(
            large.sample(
                PolicyKind::RoundRobin,
                &all(1_000),
                &prompt(1),
                &routing_request(1)
            ),
            None
        );
    }

    #[test]
    fn the_longest_prefixes_are_in_the_sample() {
        let sampler = sampler(1_000);
        for position in [3, 997] {
            sampler.sent(&prompt(5), position);
        }
        let all = all(1_000);
        let sample = sampler
            .sample(KV_AWARE, &all, &prompt(5), &routing_request(1))
            .unwrap();
        assert!(sample.contains(&3) && sample.contains(&997), "{sample:?}");
        let others: Vec<usize> = (0..997).filter(|position| *position != 3).collect();
        let sample = sampler
            .sample(KV_AWARE, &others, &prompt(5), &routing_request(1))
            .unwrap();
        assert!(
            !sample.contains(&3) && !sample.contains(&997),
            "they do not serve the model"
        );
    }

    #[test]
    fn random_samples_are_even_and_without_duplicates() {
        let sampler = sampler(100);
        let mut counts = HashMap::<usize, u32>::new();
        for seed in 0..5_000 {
            let sample = sample(&sampler, PolicyKind::P2c, 100, seed);
            assert_eq!(
                sample.iter().collect::<BTreeSet<_>>().len(),
                RANDOM_SAMPLE_SIZE
            );
            for position in sample {
                *counts.entry(position).or_default() += 1;
            }
        }
        // The partitions have 12 or 13 positions, so each position is sampled about 400 times.
        assert_eq!(counts.len(), 100);
        assert!(
            counts.values().all(|count| (300..500).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_session_keeps_its_sample() {
        let sampler = sampler(500);
        let sample = |seed| {
            let request = RoutingRequest {
                session: Some(9),
                ..routing_request(seed)
            };
            sampler.sample(KV_AWARE, &all(500), &PromptFingerprint::default(), &request)
        };
        assert_eq!(sample(1), sample(2));
    }

    #[test]
    fn the_least_available_hints_are_sampled() {
        let sampler = sampler(64 * 4);
        let now = clock::epoch();
        for position in 0..256 {
            let backlog = if position % 8 == 1 { 100.0 } else { 1e4 };
            let candidate = Candidate {
                backlog,
                ..crate::tests::idle_candidate()
            };
            sampler.show(position, now, || (position % 2 == 1).then_some(candidate));
        }
        for seed in 0..100 {
            let sample = sample(&sampler, KV_AWARE, 256, seed);
            // Two of sixteen successive backends have a short backlog.
            assert_eq!(sample.len(), HINTED_SAMPLE_SIZE);
            assert!(
                sample.iter().all(|position| position % 8 == 1),
                "{sample:?}"
            );
        }
    }

    #[test]
    fn idle_backends_get_equally_many_streams() {
        let sampler = sampler(200);
        let mut now = clock::epoch();
        let estimators: Vec<LoadEstimator> = all(200)
            .iter()
            .map(|_| LoadEstimator::new(now, Duration::from_secs(5)))
            .collect();
        let prompt = PromptFingerprint {
            bytes: 400,
            ..PromptFingerprint::default()
        };
        let show = |position: usize, now| {
            let candidate = || estimators[position].candidate(&PromptFingerprint::default(), now);
            sampler.show(position, now, || Some(candidate()));
        };
        let mut counts = [0; 200];
        for seed in 0..10_000 {
            let positions = sampler
                .sample(KV_AWARE, &all(200), &prompt, &routing_request(seed))
                .unwrap();
            let candidate = |position| Candidate {
                position,
                ..estimators[position].candidate(&prompt, now)
            };
            let mut candidates: Vec<Candidate> = positions.into_iter().map(candidate).collect();
            crate::impute_missing_estimates(&mut candidates);
            let choice = Policy::default()
                .pick(&candidates, &routing_request(seed))
                .unwrap();
            let chosen = candidates[choice.index];
            counts[chosen.position] += 1;
            let estimator = &estimators[chosen.position];
            let mut reservation = estimator.reserve(&chosen, &prompt, true, now);
            now += Duration::from_millis(5);
            estimator.first_output(&mut reservation, now);
            estimator.release(reservation, now);
            show(chosen.position, now);
            // Each backend is scraped once a second.
            show(seed as usize % 200, now);
        }
        assert!(
            counts.iter().all(|count| (40..=60).contains(count)),
            "{counts:?}"
        );
    }
}
