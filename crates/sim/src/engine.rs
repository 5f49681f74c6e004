//! A model of vLLM's V1 scheduler: continuous batching over a paged KV cache with prefix reuse,
//! chunked prefill and preemption by recomputation. It knows no socket and no clock. Each
//! [`Engine::step`] decides one batch and tells how long the GPU would work on it; whoever drives
//! the engine waits that long, in real or in virtual time, and then hands out the tokens.
//!
//! vLLM's null block is left out: all `blocks` can be used.

use std::collections::VecDeque;
use std::time::Duration;

use super::blocks::BlockPool;
use super::sequence::Sequence;
pub use super::sequence::{Finished, Request, SequenceId, Token};

/// The size and the speed of a replica. A zero size counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Tokens in one KV block.
    pub block_size: u32,
    /// KV blocks in all.
    pub blocks: u32,
    /// Sequences that run at the same time.
    pub max_num_seqs: u32,
    /// Tokens computed in one step, prefill and decode together.
    pub max_num_batched_tokens: u32,
    /// Time of a step that does nothing.
    pub step_base: Duration,
    /// Time added by each prompt token that is not in the cache.
    pub prefill_token: Duration,
    /// Time added by each sequence that decodes.
    pub decode_sequence: Duration,
    /// Time added by each token of context that attention reads.
    pub kv_token: Duration,
}

impl Default for Spec {
    /// A small model on a small GPU: 32,768 tokens of KV cache, 10,000 prefill tokens a second,
    /// about 100 tokens a second alone and 3,500 in a full batch.
    fn default() -> Self {
        Self {
            block_size: 16,
            blocks: 2048,
            max_num_seqs: 64,
            max_num_batched_tokens: 2048,
            step_base: Duration::from_millis(10),
            prefill_token: Duration::from_micros(100),
            decode_sequence: Duration::from_micros(80),
            kv_token: Duration::from_nanos(100),
        }
    }
}

impl Spec {
    /// The longest prompt and output, in tokens, that one sequence can have.
    pub fn capacity(&self) -> u32 {
        self.blocks.saturating_mul(self.block_size)
    }
}

/// What one batch computed. The tokens exist `duration` after the step began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// How long the batch keeps the GPU busy.
    pub duration: Duration,
    /// The sequences that got a token, in the order in which they run.
    pub tokens: Vec<Token>,
    /// The sequences whose last token this was.
    pub finished: Vec<Finished>,
    /// Prompt tokens computed.
    pub prefill_tokens: u32,
    /// Sequences that decoded.
    pub decodes: u32,
}

/// The gauges and counters of the engine, as vLLM defines them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences in the queue, preempted ones included.
    pub waiting: usize,
    /// Pinned share of the KV blocks, 0 to 1; cached but unused blocks count as free.
    pub kv_usage: f64,
    /// Sequences thrown out of the batch for want of blocks.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache. A preempted sequence does not count again.
    pub prefix_queries: u64,
    /// Tokens found there.
    pub prefix_hits: u64,
    /// Prompt tokens of the sequences that have a first token.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
}

/// A sequence that could never fit into the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{tokens} tokens do not fit into a KV cache of {capacity} tokens")]
pub struct TooLong {
    /// Prompt and output tokens.
    pub tokens: u32,
    /// Tokens the cache can hold.
    pub capacity: u32,
}

/// One simulated engine.
#[derive(Debug)]
pub struct Engine {
    spec: Spec,
    pool: BlockPool,
    /// In order of admission: the last one is the first to be preempted.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    totals: Load,
}

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(spec: Spec) -> Self {
        let spec = Spec {
            block_size: spec.block_size.max(1),
            blocks: spec.blocks.max(1),
            max_num_seqs: spec.max_num_seqs.max(1),
            max_num_batched_tokens: spec.max_num_batched_tokens.max(1),
            ..spec
        };
        Self {
            pool: BlockPool::new(spec.blocks),
            spec,
            running: Vec::new(),
            waiting: VecDeque::new(),
            totals: Load::default(),
        }
    }

    /// Queues a sequence. Refuses one that is longer than [`Spec::capacity`], because it would be
    /// preempted for ever.
    pub fn submit(
        &mut self,
        id: SequenceId,
        request: Request,
        now: Duration,
    ) -> Result<(), TooLong> {
        let sequence = Sequence::new(id, request, now);
        let (tokens, capacity) = (sequence.final_len(), self.spec.capacity());
        if tokens > capacity {
            return Err(TooLong { tokens, capacity });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Drops a sequence and frees its blocks at once. False if it is not here (any more).
    pub fn abort(&mut self, id: SequenceId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            self.pool.release(&mut self.running.remove(at).blocks);
            return true;
        }
        let queued = self.waiting.iter().position(|sequence| sequence.id == id);
        queued.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// Computes the next batch, which begins at `now`. `None` if there is nothing to do.
    pub fn step(&mut self, now: Duration) -> Option<Step> {
        if self.running.is_empty() && self.waiting.is_empty() {
            return None;
        }
        let mut budget = self.spec.max_num_batched_tokens;
        let preempted = self.schedule_running(&mut budget);
        if !preempted {
            self.admit(&mut budget, now);
        }
        Some(self.execute(now))
    }

    /// The gauges and counters after the last step.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_usage: self.pool.usage(),
            ..self.totals
        }
    }

    /// Gives every running sequence its next tokens, first come first served. True if some had to
    /// be preempted: then nobody is admitted in this step.
    fn schedule_running(&mut self, budget: &mut u32) -> bool {
        let before = self.totals.preemptions;
        let mut next = 0;
        while next < self.running.len() && *budget > 0 {
            let sequence = &mut self.running[next];
            let tokens = sequence.pending().min(*budget);
            let blocks = sequence.missing_blocks(tokens, self.spec.block_size);
            if self.pool.take(blocks, &mut sequence.blocks) {
                sequence.compute(tokens, self.spec.block_size, &mut self.pool);
                *budget -= tokens;
                next += 1;
            } else {
                self.preempt_last();
            }
        }
        self.totals.preemptions > before
    }

    fn preempt_last(&mut self) {
        if let Some(mut victim) = self.running.pop() {
            victim.preempt(&mut self.pool);
            self.totals.preemptions += 1;
            self.waiting.push_front(victim);
        }
    }

    /// Moves sequences from the queue into the batch while there is room for all they have so far.
    fn admit(&mut self, budget: &mut u32, now: Duration) {
        let block_size = self.spec.block_size;
        while *budget > 0 && self.running.len() < self.spec.max_num_seqs as usize {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            let hits = self.pool.cached_prefix(sequence.reusable_hashes(block_size));
            let whole = sequence.len().div_ceil(block_size) as usize;
            if self.pool.free_beyond(&hits) < whole - hits.len() {
                self.waiting.push_front(sequence);
                return;
            }
            self.pool.pin(&hits);
            let cached = sequence.admit(hits, block_size, now);
            if let Some(cached) = cached {
                self.totals.prefix_queries += u64::from(sequence.len());
                self.totals.prefix_hits += u64::from(cached);
            }
            let tokens = sequence.pending().min(*budget);
            let blocks = sequence.missing_blocks(tokens, block_size);
            if self.pool.take(blocks, &mut sequence.blocks) {
                sequence.compute(tokens, block_size, &mut self.pool);
                *budget -= tokens;
            }
            self.running.push(sequence);
        }
    }

    /// Lets the batch run: what it costs, who gets a token, who is done.
    fn execute(&mut self, now: Duration) -> Step {
        let (mut prefill_tokens, mut decodes, mut context) = (0, 0, 0);
        for sequence in &self.running {
            context += sequence.computed;
            if sequence.is_decoding() {
                decodes += u32::from(sequence.scheduled > 0);
            } else {
                prefill_tokens += sequence.scheduled;
            }
        }
        let duration = self.spec.step_base
            + self.spec.prefill_token * prefill_tokens
            + self.spec.decode_sequence * decodes
            + self.spec.kv_token * context;

        let mut tokens = Vec::with_capacity(self.running.len());
        let mut finished = Vec::new();
        let Self { running, pool, totals, .. } = self;
        running.retain_mut(|sequence| {
            let Some(token) = sequence.produce(now + duration) else { return true };
            totals.generation_tokens += 1;
            if token.nth == 1 {
                totals.prompt_tokens += u64::from(token.prompt_tokens);
            }
            tokens.push(token);
            let done = sequence.finished();
            if done.is_some() {
                pool.release(&mut sequence.blocks);
            }
            finished.extend(done);
            done.is_none()
        });
        Step { duration, tokens, finished, prefill_tokens, decodes }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
