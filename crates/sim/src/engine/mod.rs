//! A model of vLLM's V1 scheduler: continuous batching over a paged KV cache with prefix reuse, chunked
//! prefill, and preemption by recomputation. The model uses no socket and no clock. Each [`Engine::step`]
//! computes one batch and returns the time that a GPU would need. The driver of the engine waits for this time,
//! real or virtual, and then publishes the tokens.
//!
//! Unlike vLLM, which reserves one block as its null block, the model can use all blocks.

pub mod cost_model;
mod engine_spec;
mod lora_slots;

use std::collections::VecDeque;
use std::time::Duration;

use super::blocks::BlockPool;
pub use super::blocks::{CacheChange, StoredBlock};
use super::sequence::Sequence;
pub use super::sequence::{FinishedSequence, GeneratedToken, SequenceId, SequenceRequest};
use cost_model::BatchWork;
pub use engine_spec::EngineSpec;
use lora_slots::LoraSlots;

/// The result of one batch. Its tokens exist `duration` after the start of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineStep {
    /// Time for which the batch occupies the GPU.
    pub duration: Duration,
    /// The produced tokens, in batch order. With speculative decoding, a sequence can have several.
    pub tokens: Vec<GeneratedToken>,
    /// The sequences that produced their last token in this step.
    pub finished: Vec<FinishedSequence>,
}

/// Gauges and counters of the engine, as vLLM defines them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedEngineLoad {
    /// Number of sequences in the batch.
    pub running: usize,
    /// Number of sequences in the queue of the engine, including preempted sequences.
    pub waiting: usize,
    /// Share of pinned KV blocks, 0 to 1. Cached but unpinned blocks count as free.
    pub kv_usage: f64,
    /// Number of preemptions for lack of free blocks.
    pub preemptions: u64,
    /// Number of tokens looked up in the prefix cache. A preempted sequence counts once.
    pub prefix_queries: u64,
    /// Number of tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Number of prompt tokens of the sequences that have produced a token.
    pub prompt_tokens: u64,
    /// Number of generated tokens.
    pub generation_tokens: u64,
}

/// The error for a sequence that is longer than the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{tokens} tokens do not fit into a KV cache of {capacity} tokens")]
pub struct SequenceTooLong {
    /// Number of prompt and output tokens of the sequence.
    pub tokens: u32,
    /// Number of tokens that the cache can hold.
    pub capacity: u32,
}

/// One simulated engine: its scheduler, its batch, its queue and its KV cache.
#[derive(Debug)]
pub struct Engine {
    spec: EngineSpec,
    pool: BlockPool,
    /// The batch, in order of admission. Preemption takes the last sequence first.
    running: Vec<Sequence>,
    /// The queue. A preempted sequence is at the front.
    waiting: VecDeque<Sequence>,
    loras: LoraSlots,
    /// The counters. [`Engine::load`] adds the gauges, which are not set here.
    totals: SimulatedEngineLoad,
    /// Random numbers for the jitter, the pauses and the accepted drafts of the cost model.
    random: fastrand::Rng,
}

impl Engine {
    /// Creates an idle engine with an empty cache.
    pub fn new(spec: EngineSpec) -> Self {
        Self::with_seed(spec, 0)
    }

    /// Creates an idle engine with an empty cache. `seed` determines the random effects of the cost model.
    pub fn with_seed(spec: EngineSpec, seed: u64) -> Self {
        let spec = EngineSpec {
            block_size: spec.block_size.max(1),
            blocks: spec.blocks.max(1),
            max_num_seqs: spec.max_num_seqs.max(1),
            max_num_batched_tokens: spec.max_num_batched_tokens.max(1),
            max_loras: spec.max_loras.max(1),
            ..spec
        };
        Self {
            pool: BlockPool::new(spec.blocks),
            spec,
            running: Vec::new(),
            waiting: VecDeque::new(),
            loras: LoraSlots::default(),
            totals: SimulatedEngineLoad::default(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Adds a sequence to the queue. Fails if the sequence is longer than [`EngineSpec::capacity`], because the
    /// engine would preempt it again and again.
    pub fn submit(
        &mut self,
        id: SequenceId,
        request: SequenceRequest,
        now: Duration,
    ) -> Result<(), SequenceTooLong> {
        let sequence = Sequence::new(id, request, now);
        let tokens = sequence.max_token_count();
        let capacity = self.spec.capacity();
        if tokens > capacity {
            return Err(SequenceTooLong { tokens, capacity });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Number of prompt tokens of a request that the prefix cache contains now and the request can reuse.
    pub fn cached_tokens(&self, request: &SequenceRequest) -> u32 {
        let hashes = request.reusable_block_hashes(request.prompt_tokens, self.spec.block_size);
        self.pool.cached_prefix(hashes).len() as u32 * self.spec.block_size
    }

    /// The LoRA adapters of the sequences in the batch and in the queue, as the metrics page of vLLM names them.
    pub fn adapters(&self) -> Vec<u32> {
        let sequences = self.running.iter().chain(&self.waiting);
        let mut adapters: Vec<u32> = sequences.filter_map(Sequence::adapter).collect();
        adapters.sort_unstable();
        adapters.dedup();
        adapters
    }

    /// Begins to record the changes of the prefix cache.
    pub fn record_cache_changes(&mut self) {
        self.pool.record_changes();
    }

    /// The recorded changes of the prefix cache since the last call, in their order.
    pub fn take_cache_changes(&mut self) -> Vec<CacheChange> {
        self.pool.take_changes()
    }

    /// Forgets the contents of the prefix cache. Does nothing and returns false while a sequence has
    /// blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// From the next step on, takes the fixed time of a step and the time per prompt token from `spec`.
    pub fn change_speed(&mut self, spec: &EngineSpec) {
        self.spec.step_base = spec.step_base;
        self.spec.prefill_token = spec.prefill_token;
    }

    /// Removes a sequence and frees its blocks at once. Returns false if the sequence is neither in the queue
    /// nor in the batch, for example because it has finished.
    pub fn abort(&mut self, id: SequenceId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            self.pool.release(&mut self.running.remove(at).blocks);
            return true;
        }
        let position = self.waiting.iter().position(|sequence| sequence.id == id);
        position.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Computes the next batch, which begins at `now`. `None`: the engine is idle.
    pub fn step(&mut self, now: Duration) -> Option<EngineStep> {
        if self.running.is_empty() && self.waiting.is_empty() {
            return None;
        }
        // New sequences are at the end of the queue, so the search begins there.
        for sequence in self
            .waiting
            .iter_mut()
            .rev()
            .take_while(|sequence| sequence.queued.is_none())
        {
            sequence.queued = Some(now.max(sequence.arrived));
        }
        let mut budget = self.spec.max_num_batched_tokens;
        let preempted = self.schedule_running(&mut budget);
        if !preempted {
            self.admit(&mut budget, now);
        }
        Some(self.execute(now))
    }

    /// Returns the current gauges and counters.
    pub fn load(&self) -> SimulatedEngineLoad {
        SimulatedEngineLoad {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_usage: self.pool.usage(),
            ..self.totals
        }
    }

    /// Schedules the next tokens of every running sequence, in order of admission. `budget`: the number of
    /// tokens that the step can still compute. Returns true if a sequence was preempted. The step then admits
    /// no sequence.
    fn schedule_running(&mut self, budget: &mut u32) -> bool {
        let before = self.totals.preemptions;
        let mut next = 0;
        while next < self.running.len() && *budget > 0 {
            if self.running[next].schedule(budget, self.spec.block_size, &mut self.pool) {
                next += 1;
            } else {
                self.preempt_last();
            }
        }
        self.totals.preemptions > before
    }

    /// Preempts the sequence that was admitted last.
    fn preempt_last(&mut self) {
        if let Some(mut preempted) = self.running.pop() {
            preempted.preempt(&mut self.pool);
            self.totals.preemptions += 1;
            self.waiting.push_front(preempted);
        }
    }

    /// Moves sequences from the queue into the batch while the free blocks suffice for all their
    /// tokens. A sequence that waits for a slot of its adapter keeps its place in the queue.
    fn admit(&mut self, budget: &mut u32, now: Duration) {
        let block_size = self.spec.block_size;
        let mut skipped = Vec::new();
        while *budget > 0 && self.running.len() < self.spec.max_num_seqs as usize {
            let Some(mut sequence) = self.waiting.pop_front() else {
                break;
            };
            if !LoraSlots::admit(&self.spec, &self.running, &sequence) {
                skipped.push(sequence);
                continue;
            }
            let hits = self
                .pool
                .cached_prefix(sequence.reusable_block_hashes(block_size));
            let total_blocks = sequence.len().div_ceil(block_size) as usize;
            if self.pool.free_after_pinning(&hits) < total_blocks - hits.len() {
                self.waiting.push_front(sequence);
                break;
            }
            self.pool.pin(&hits);
            let cached = sequence.admit(hits, block_size, now);
            if let Some(cached) = cached {
                self.totals.prefix_queries += u64::from(sequence.len());
                self.totals.prefix_hits += u64::from(cached);
            }
            // The sequence was admitted only because the free blocks suffice for all its tokens, so this
            // succeeds.
            sequence.schedule(budget, block_size, &mut self.pool);
            self.running.push(sequence);
        }
        for sequence in skipped.into_iter().rev() {
            self.waiting.push_front(sequence);
        }
    }

    fn batch_work(&self) -> BatchWork {
        let mut work = BatchWork::default();
        for sequence in &self.running {
            work.context += sequence.computed;
            if sequence.is_decoding() {
                work.decoded_sequences += u32::from(sequence.scheduled > 0);
            } else {
                work.add_prefill(sequence.scheduled, sequence.computed);
            }
        }
        work
    }

    /// Executes the batch: computes its duration, its tokens and the finished sequences.
    fn execute(&mut self, now: Duration) -> EngineStep {
        let duration = self.loras.load(&self.spec, &self.running)
            + self
                .spec
                .step_duration(&self.batch_work(), &mut self.random);

        let mut tokens = Vec::with_capacity(self.running.len());
        let mut finished = Vec::new();
        let Self {
            running,
            pool,
            totals,
            random,
            spec,
            ..
        } = self;
        running.retain_mut(|sequence| {
            let is_decoding = sequence.is_decoding();
            let Some(token) = sequence.produce_token(now + duration) else {
                return true;
            };
            totals.generation_tokens += 1;
            if token.nth == 1 {
                totals.prompt_tokens += u64::from(token.prompt_tokens);
            }
            tokens.push(token);
            let accepted = if is_decoding {
                spec.cost_model.accepted_drafts(random)
            } else {
                0
            };
            for _ in 0..accepted {
                let Some(token) = sequence.accept_draft(spec.block_size) else {
                    break;
                };
                totals.generation_tokens += 1;
                tokens.push(token);
            }
            let done = sequence.finished();
            if done.is_some() {
                pool.release(&mut sequence.blocks);
            }
            finished.extend(done);
            done.is_none()
        });
        EngineStep {
            duration,
            tokens,
            finished,
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
