//! The state of one sequence in the engine: its computed tokens, its KV blocks and its timestamps. Preemption
//! discards the computed state and keeps the generated tokens.

use std::time::Duration;

use super::blocks::{BlockId, BlockPool, StoredBlock};

/// The identifier of a sequence. The code that submits the sequence chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A request to the engine. It has lengths and hashes instead of text, because the engine needs no text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SequenceRequest {
    /// Number of prompt tokens. 0 counts as 1.
    pub prompt_tokens: u32,
    /// Chained hashes of the full blocks of the prompt and, if the output is already known, of the output.
    /// Further blocks get unique hashes.
    pub block_hashes: Vec<u64>,
    /// Number of output tokens. 0 counts as 1.
    pub output_tokens: u32,
    /// The LoRA adapter. `None`: the base model.
    pub adapter: Option<u32>,
}

impl SequenceRequest {
    /// Hashes of the blocks of the first `tokens` tokens that may be reused from the cache. The block of the
    /// last token is excluded: the engine always computes the last token, because it samples the next token
    /// from the result.
    pub fn reusable_block_hashes(&self, tokens: u32, block_size: u32) -> &[u64] {
        let reusable = (tokens.saturating_sub(1) / block_size) as usize;
        &self.block_hashes[..reusable.min(self.block_hashes.len())]
    }
}

/// A token that a step produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratedToken {
    /// The sequence that the token continues.
    pub id: SequenceId,
    /// Position in the output, from 1.
    pub nth: u32,
    /// Time since the previous token of the sequence. For the first token: time since the submission. For an
    /// accepted draft token: zero, because it exists at the time of the previous token.
    pub gap: Duration,
    /// Number of prompt tokens of the sequence.
    pub prompt_tokens: u32,
    /// Number of prompt tokens found in the prefix cache at the first admission.
    pub cached_tokens: u32,
}

/// The timestamps of a finished sequence, as times since the start of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedSequence {
    /// The id of the sequence.
    pub id: SequenceId,
    /// Time of the submission.
    pub arrived: Duration,
    /// Time at which the scheduler first saw the sequence. vLLM takes new requests into its queue only between
    /// two batches.
    pub queued: Duration,
    /// Time of the first admission to the batch.
    pub scheduled: Duration,
    /// Time of the first token.
    pub first_token: Duration,
    /// Time of the last token.
    pub last_token: Duration,
}

/// A sequence in the queue or in the batch.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    request: SequenceRequest,
    generated: u32,
    /// Number of tokens whose keys and values are in `blocks`.
    pub(super) computed: u32,
    /// Number of `computed` tokens that belong to the current step.
    pub(super) scheduled: u32,
    pub(super) blocks: Vec<BlockId>,
    /// Number of full blocks whose hashes are registered in the pool.
    hashed_blocks: usize,
    /// Number of cached tokens at the first admission. `None`: the sequence was not admitted yet.
    cached: Option<u32>,
    pub(super) arrived: Duration,
    /// Time at which the scheduler first saw the sequence. `None`: the scheduler has not seen it
    /// yet.
    pub(super) queued: Option<Duration>,
    admitted_at: Duration,
    first_token: Duration,
    last_token: Duration,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, request: SequenceRequest, now: Duration) -> Self {
        let request = SequenceRequest {
            prompt_tokens: request.prompt_tokens.max(1),
            output_tokens: request.output_tokens.max(1),
            ..request
        };
        Self {
            id,
            request,
            generated: 0,
            computed: 0,
            scheduled: 0,
            blocks: Vec::new(),
            hashed_blocks: 0,
            cached: None,
            arrived: now,
            queued: None,
            admitted_at: now,
            first_token: now,
            last_token: now,
        }
    }

    pub(super) fn adapter(&self) -> Option<u32> {
        self.request.adapter
    }

    /// Number of prompt and generated tokens.
    pub(super) fn len(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    /// Number of prompt and output tokens of the finished sequence.
    pub(super) fn max_token_count(&self) -> u32 {
        self.request
            .prompt_tokens
            .saturating_add(self.request.output_tokens)
    }

    /// Number of tokens whose keys and values must still be computed.
    pub(super) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether the sequence has generated tokens, and the current step computes at most one of its tokens.
    pub(super) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.scheduled <= 1
    }

    pub(super) fn reusable_block_hashes(&self, block_size: u32) -> &[u64] {
        self.request.reusable_block_hashes(self.len(), block_size)
    }

    /// Admits the sequence to the batch with `hits`, the blocks found in the cache, of `size` tokens each.
    /// Returns the number of cached tokens. `None`: the sequence was admitted before, and has been preempted
    /// since.
    pub(super) fn admit(&mut self, hits: Vec<BlockId>, size: u32, now: Duration) -> Option<u32> {
        self.computed = hits.len() as u32 * size;
        self.hashed_blocks = hits.len();
        self.blocks = hits;
        if self.cached.is_some() {
            return None;
        }
        self.admitted_at = now.max(self.arrived);
        self.cached = Some(self.computed);
        self.cached
    }

    /// Schedules the next tokens, at most `budget`, and registers the hashes of the blocks that they fill. If
    /// too few blocks are free, schedules no token and returns false.
    pub(super) fn schedule(
        &mut self,
        budget: &mut u32,
        block_size: u32,
        pool: &mut BlockPool,
    ) -> bool {
        let tokens = self.pending().min(*budget);
        let blocks = (self.computed + tokens).div_ceil(block_size) as usize;
        if !pool.allocate(blocks.saturating_sub(self.blocks.len()), &mut self.blocks) {
            return false;
        }
        *budget -= tokens;
        self.computed += tokens;
        self.scheduled = tokens;
        for index in self.hashed_blocks..(self.computed / block_size) as usize {
            let sequence = self.id.0;
            let stored = StoredBlock::new(self.hashes(index + 1), index, sequence);
            pool.seal(self.blocks[index], stored);
            self.hashed_blocks = index + 1;
        }
        true
    }

    /// Releases all blocks of the sequence. After its next admission, the engine computes the prompt and
    /// the generated tokens again.
    pub(super) fn preempt(&mut self, pool: &mut BlockPool) {
        pool.release(&mut self.blocks);
        self.computed = 0;
        self.hashed_blocks = 0;
    }

    /// Produces the next token at the end of a step. `None`: the sequence was not part of this step, or a part
    /// of its prompt is not computed yet.
    pub(super) fn produce_token(&mut self, now: Duration) -> Option<GeneratedToken> {
        let scheduled = std::mem::take(&mut self.scheduled);
        if scheduled == 0 || self.pending() > 0 {
            return None;
        }
        self.generated += 1;
        let gap = now.saturating_sub(self.last_token);
        self.last_token = now;
        if self.generated == 1 {
            self.first_token = now;
        }
        Some(self.token(gap))
    }

    /// Produces one more token of this step from an accepted draft of speculative decoding. `None`: the output
    /// is complete, or the last block is full. In the second case, vLLM would allocate a block; this model
    /// produces no further token in this step.
    pub(super) fn accept_draft(&mut self, block_size: u32) -> Option<GeneratedToken> {
        let free_slots = self.blocks.len() as u32 * block_size - self.computed;
        if free_slots == 0 || self.generated >= self.request.output_tokens {
            return None;
        }
        self.computed += 1;
        self.generated += 1;
        Some(self.token(Duration::ZERO))
    }

    fn token(&self, gap: Duration) -> GeneratedToken {
        GeneratedToken {
            id: self.id,
            nth: self.generated,
            gap,
            prompt_tokens: self.request.prompt_tokens,
            cached_tokens: self.cached.unwrap_or(0),
        }
    }

    /// The timestamps of the sequence. `None`: its last token has not been produced yet.
    pub(super) fn finished(&self) -> Option<FinishedSequence> {
        (self.generated >= self.request.output_tokens).then_some(FinishedSequence {
            id: self.id,
            arrived: self.arrived,
            queued: self.queued.unwrap_or(self.admitted_at),
            scheduled: self.admitted_at,
            first_token: self.first_token,
            last_token: self.last_token,
        })
    }

    /// The hashes of the first `count` blocks. Blocks without a given hash get unique hashes.
    fn hashes(&mut self, count: usize) -> &[u64] {
        let hashes = &mut self.request.block_hashes;
        while hashes.len() < count {
            let parent = hashes.last().copied().unwrap_or(0);
            hashes.push(super::text::mix(parent, self.id.0));
        }
        &hashes[..count]
    }
}
