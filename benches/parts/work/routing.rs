//! The parts that select a backend.

use super::Part;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::clock;
use tokenweir_request::record::{BackendCondition, RoutingDecision};
use tokenweir_routing::prefix_table::PrefixTable;
use tokenweir_routing::{
    Candidate, CandidateSampler, LoadEstimator, LoadReport, Policy, PolicyKind, PromptFingerprint,
    RoutingContext, RoutingRequest,
};

/// Size in bytes of a prompt of 32k tokens.
const LONG_PROMPT_BYTES: usize = 4 * 32_768;

/// A simulated fleet: the load estimates of its backends, which have each received different prompts, and the
/// policy.
struct Fleet {
    load_estimators: Vec<LoadEstimator>,
    all: Vec<usize>,
    candidate_sampler: CandidateSampler,
    policy: Policy,
    now: Instant,
}

/// The parts that pick one of `backend_count` backends, and the parts that record such a decision.
pub(super) fn decisions(backend_count: usize) -> Vec<Part> {
    let fleet = Rc::new(Fleet::new(backend_count));
    let prompts = [
        ("no prompt", PromptFingerprint::default()),
        ("32k tokens", prompt(LONG_PROMPT_BYTES, 9)),
    ];
    let deciding = prompts.map(|(what, prompt)| {
        let (fleet, mut request) = (fleet.clone(), request());
        Part::new(
            format!("decide among {backend_count}, {what}"),
            1,
            0,
            move || {
                request.seed += 1;
                let candidates = fleet.candidates(black_box(&prompt), &request);
                black_box(fleet.policy.pick(&candidates, &request));
            },
        )
    });
    let ids: Arc<[BackendId]> = (0..backend_count)
        .map(|_| BackendId::new("vllm-0"))
        .collect();
    let request = request();
    let candidates = fleet.candidates(&PromptFingerprint::default(), &request);
    let explaining = Part::new(format!("explain among {backend_count}"), 1, 0, move || {
        let question = RoutingContext::new(fleet.policy, black_box(&candidates).clone(), request);
        let choice = question.pick().unwrap();
        let condition = BackendCondition::default();
        black_box(RoutingDecision::new(question, choice, condition, &ids));
    });
    deciding.into_iter().chain([explaining]).collect()
}

/// Two parts: one hashes a prompt of 32k tokens, the other stores the blocks of the prompt in a prefix table.
pub(super) fn prompts() -> [Part; 2] {
    let body = vec![b'x'; LONG_PROMPT_BYTES];
    let blocks = PromptFingerprint::new(1, std::iter::once(&body[..])).blocks;
    let table = PrefixTable::new(4_000);
    [
        Part::new("hash 32k tokens", 1, LONG_PROMPT_BYTES, move || {
            black_box(PromptFingerprint::new(
                1,
                std::iter::once(black_box(&body[..])),
            ));
        }),
        Part::new("remember 32k tokens", 1, LONG_PROMPT_BYTES, move || {
            table.touch(black_box(&blocks));
        }),
    ]
}

fn request() -> RoutingRequest {
    RoutingRequest {
        sequence: 5,
        seed: 7,
        session: None,
    }
}

/// The fingerprint of a prompt of this many bytes. The first half of the prompt is the same for all seeds.
fn prompt(bytes: usize, seed: u8) -> PromptFingerprint {
    let (head, tail) = (vec![b'h'; bytes / 2], vec![seed; bytes / 2]);
    PromptFingerprint::new(1, [&head[..], &tail[..]].into_iter())
}

/// The prompts that the backend with this number has received before the measurement.
fn sent(backend: usize) -> impl Iterator<Item = PromptFingerprint> {
    (0..4).map(move |seed| prompt(32_768, (backend * 4 + seed) as u8))
}

impl Fleet {
    fn new(backend_count: usize) -> Self {
        let now = clock::now();
        let candidate_sampler = CandidateSampler::new(now, backend_count);
        let load_estimators: Vec<LoadEstimator> = (0..backend_count)
            .map(|backend| load_estimator(backend, now))
            .collect();
        for (backend, load_estimator) in load_estimators.iter().enumerate() {
            sent(backend).for_each(|prompt| candidate_sampler.sent(&prompt, backend));
            let candidate = || Some(load_estimator.candidate(&PromptFingerprint::default(), now));
            candidate_sampler.show(backend, now, candidate);
        }
        Self {
            load_estimators,
            all: (0..backend_count).collect(),
            candidate_sampler,
            policy: Policy {
                kind: PolicyKind::KvAware,
                ..Policy::default()
            },
            now,
        }
    }

    fn candidates(&self, prompt: &PromptFingerprint, request: &RoutingRequest) -> Vec<Candidate> {
        let short = self
            .candidate_sampler
            .sample(self.policy.kind, &self.all, prompt, request);
        let positions = short.as_deref().unwrap_or(&self.all);
        let (mut cached_blocks, now) = (0, clock::nanos(self.now));
        let candidate = |place: &usize| {
            let load_estimator = &self.load_estimators[*place];
            let mut candidate = load_estimator.candidate_with(prompt, None, cached_blocks, now);
            candidate.position = *place;
            cached_blocks = candidate.cached_blocks;
            candidate
        };
        positions.iter().map(candidate).collect()
    }
}

fn load_estimator(backend: usize, now: Instant) -> LoadEstimator {
    let load_estimator = LoadEstimator::new(now, Duration::from_secs(5));
    let report = LoadReport {
        token_gaps: None,
        kv_usage: Some((backend % 100) as f64 / 100.0),
        waiting: (backend % 3) as f64,
        running: (backend % 40) as f64,
        capacity: Some(400_000),
        tokens: Some(f64::from(u32::MAX)),
    };
    load_estimator.on_report(&report, &load_estimator.local_load(), now);
    for prompt in sent(backend) {
        load_estimator.reserve(&load_estimator.candidate(&prompt, now), &prompt, true, now);
    }
    load_estimator
}
