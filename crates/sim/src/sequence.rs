//! One sequence in the engine: how much of it is computed, in which blocks, and when things
//! happened to it. It is preempted by forgetting what was computed, never what was generated.

use std::time::Duration;

use super::blocks::{BlockId, BlockPool};

/// The caller's name for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// What the engine must know of a sequence. It needs no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Length of the prompt; zero counts as one.
    pub prompt_tokens: u32,
    /// Chained hashes of the full blocks of the prompt and, if they are known beforehand, of the
    /// output. Blocks beyond get hashes that no other sequence has.
    pub block_hashes: Vec<u64>,
    /// Length of the output; zero counts as one.
    pub output_tokens: u32,
}

/// A token that a step produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Whose token it is.
    pub id: SequenceId,
    /// 1 for the first token of the output.
    pub nth: u32,
    /// Time since the sequence was submitted for the first token, since the token before for others.
    pub gap: Duration,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were in the prefix cache when the sequence was first admitted.
    pub cached_tokens: u32,
}

/// The story of a finished sequence, in times since the engine's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Whose story it is.
    pub id: SequenceId,
    /// Submitted.
    pub arrived: Duration,
    /// First admitted to the batch.
    pub scheduled: Duration,
    /// First token.
    pub first_token: Duration,
    /// Last token.
    pub last_token: Duration,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    request: Request,
    generated: u32,
    /// Tokens whose keys and values are in `blocks`.
    pub(super) computed: u32,
    /// Tokens of `computed` that belong to the current step.
    pub(super) scheduled: u32,
    pub(super) blocks: Vec<BlockId>,
    sealed: usize,
    cached: Option<u32>,
    arrived: Duration,
    admitted: Duration,
    first_token: Duration,
    last_token: Duration,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, request: Request, now: Duration) -> Self {
        let request = Request {
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
            sealed: 0,
            cached: None,
            arrived: now,
            admitted: now,
            first_token: now,
            last_token: now,
        }
    }

    /// Tokens that exist: the prompt and what was generated.
    pub(super) fn len(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    pub(super) fn final_len(&self) -> u32 {
        self.request.prompt_tokens.saturating_add(self.request.output_tokens)
    }

    pub(super) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Whether this step computed only the token generated last.
    pub(super) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.scheduled <= 1
    }

    pub(super) fn missing_blocks(&self, tokens: u32, block_size: u32) -> usize {
        ((self.computed + tokens).div_ceil(block_size) as usize).saturating_sub(self.blocks.len())
    }

    /// The blocks that may come from the cache. The last token is always computed, because its
    /// result is what the next token is drawn from.
    pub(super) fn reusable_hashes(&self, block_size: u32) -> &[u64] {
        let full = ((self.len() - 1) / block_size) as usize;
        &self.request.block_hashes[..full.min(self.request.block_hashes.len())]
    }

    /// Enters the batch with the blocks found in the cache. The number of cached tokens if this is
    /// the first admission.
    pub(super) fn admit(&mut self, hits: Vec<BlockId>, size: u32, now: Duration) -> Option<u32> {
        self.computed = hits.len() as u32 * size;
        self.sealed = hits.len();
        self.blocks = hits;
        if self.cached.is_some() {
            return None;
        }
        self.admitted = now.max(self.arrived);
        self.cached = Some(self.computed);
        self.cached
    }

    /// Schedules `tokens`, for which there are blocks, and makes the blocks they fill findable.
    pub(super) fn compute(&mut self, tokens: u32, block_size: u32, pool: &mut BlockPool) {
        self.computed += tokens;
        self.scheduled = tokens;
        for index in self.sealed..(self.computed / block_size) as usize {
            let hash = self.hash(index);
            pool.seal(self.blocks[index], hash);
            self.sealed = index + 1;
        }
    }

    pub(super) fn preempt(&mut self, pool: &mut BlockPool) {
        pool.release(&mut self.blocks);
        self.computed = 0;
        self.sealed = 0;
    }

    /// The token of this step, if all that came before it is computed.
    pub(super) fn produce(&mut self, now: Duration) -> Option<Token> {
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
        Some(Token {
            id: self.id,
            nth: self.generated,
            gap,
            prompt_tokens: self.request.prompt_tokens,
            cached_tokens: self.cached.unwrap_or(0),
        })
    }

    pub(super) fn finished(&self) -> Option<Finished> {
        (self.generated >= self.request.output_tokens).then_some(Finished {
            id: self.id,
            arrived: self.arrived,
            scheduled: self.admitted,
            first_token: self.first_token,
            last_token: self.last_token,
        })
    }

    fn hash(&mut self, index: usize) -> u64 {
        let hashes = &mut self.request.block_hashes;
        while hashes.len() <= index {
            let parent = hashes.last().copied().unwrap_or(0);
            hashes.push(super::text::mix(parent, self.id.0));
        }
        hashes[index]
    }
}
