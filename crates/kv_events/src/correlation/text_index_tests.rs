//! Tests of the text index with a simulated engine whose tokens have different lengths.

use super::super::prompt_lookup::{CachedPrompt, PromptLookup, PromptText};
use super::super::request_chains::{RequestChains, RequestKey};
use super::*;
use crate::decoder::EventBatch;
use crate::encoder::{PublishedEvent, StoredBlocks, encode_batch};
use crate::residency::CacheContents;
use lru::LruCache;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BLOCK_SIZE: u32 = 16;
const BLOCK_BYTES: u32 = 512;

/// A prompt of words of 1 to 7 bytes. Each word is a token.
#[derive(Clone)]
struct Prompt {
    words: Vec<u64>,
}

fn word_bytes(word: u64) -> u64 {
    1 + word % 7
}

impl Prompt {
    fn random(random: &mut fastrand::Rng, words: usize) -> Self {
        Self {
            words: std::iter::repeat_with(|| random.u64(..))
                .take(words)
                .collect(),
        }
    }

    /// A prompt of the first `shared` words of this prompt, then `others` random words.
    fn branch(&self, random: &mut fastrand::Rng, shared: usize, others: usize) -> Self {
        let shared = &self.words[..shared.min(self.words.len())];
        Self {
            words: [shared, &Self::random(random, others).words].concat(),
        }
    }

    fn bytes(&self) -> u64 {
        self.words.iter().copied().map(word_bytes).sum()
    }

    /// Hashes of the text blocks, as the gateway computes them.
    fn text_blocks(&self) -> Vec<u64> {
        let text: Vec<u8> = self
            .words
            .iter()
            .copied()
            .flat_map(|word| (0..word_bytes(word)).map(move |n| (word >> (8 * n)) as u8))
            .collect();
        let mut hash = 0;
        text.chunks_exact(BLOCK_BYTES as usize)
            .map(|block| {
                hash = xxh3_64_with_seed(block, hash);
                hash
            })
            .collect()
    }

    fn whole(&self) -> u64 {
        self.words
            .iter()
            .fold(1, |hash, word| xxh3_64_with_seed(&word.to_be_bytes(), hash))
    }

    /// Hashes of the full engine blocks, as an engine with this seed computes them.
    fn engine_blocks(&self, seed: u64) -> Vec<u64> {
        let mut hash = seed;
        self.words
            .chunks_exact(BLOCK_SIZE as usize)
            .map(|tokens| {
                let bytes: Vec<u8> = tokens
                    .iter()
                    .flat_map(|token| token.to_be_bytes())
                    .collect();
                hash = xxh3_64_with_seed(&bytes, hash);
                hash
            })
            .collect()
    }

    fn tokens(&self) -> u64 {
        self.words.len() as u64
    }
}

/// An engine with a cache of bounded size, and a gateway that receives the KV events of the engine.
struct Fixture {
    contents: CacheContents,
    chains: RequestChains,
    index: TextIndex,
    /// The cached engine blocks, by their hashes.
    cache: LruCache<u64, ()>,
    max_blocks: usize,
    request_count: u64,
}

impl Fixture {
    fn new(max_blocks: usize) -> Self {
        Self {
            contents: CacheContents::new(1 << 20, 1),
            chains: RequestChains::default(),
            index: TextIndex::new(1 << 16, 1 << 18, 2),
            cache: LruCache::unbounded(),
            max_blocks,
            request_count: 0,
        }
    }

    /// Number of tokens of a prompt that the simulated engine has in its cache and reports.
    fn true_cached(&self, prompt: &Prompt) -> u64 {
        let reusable = (prompt.tokens() - 1) / u64::from(BLOCK_SIZE);
        let blocks = prompt.engine_blocks(0);
        let reused = blocks.iter().take(reusable as usize);
        let count = reused
            .take_while(|block| self.cache.contains(block))
            .count();
        count as u64 * u64::from(BLOCK_SIZE)
    }

    /// The number of cached tokens that the gateway expects. `None`: the index knows nothing about the text.
    fn lookup(&self, prompt: &Prompt) -> Option<CachedPrompt> {
        let blocks = prompt.text_blocks();
        let text = PromptText {
            blocks: &blocks,
            whole: prompt.whole(),
        };
        let mut lookup = PromptLookup::new(text, &self.index);
        lookup
            .is_known()
            .then(|| lookup.cached(text, &self.index, &self.contents))
    }

    fn predicted(&self, prompt: &Prompt) -> Option<u64> {
        self.lookup(prompt).map(|cached| cached.tokens)
    }

    /// Sends a prompt to the engine. `is_own`: this gateway sends it, not another gateway.
    fn send(&mut self, prompt: &Prompt, is_own: bool) {
        self.request_count += 1;
        let key = RequestKey {
            backend: 0,
            session: self.request_count,
        };
        let cached = self.true_cached(prompt);
        let blocks = prompt.engine_blocks(0);
        let reused = (cached / u64::from(BLOCK_SIZE)) as usize;
        // The first block of a prompt is used last, so it is evicted last.
        for block in blocks.iter().rev() {
            self.cache.put(*block, ());
        }
        let excess = self.cache.len().saturating_sub(self.max_blocks);
        let removed: Vec<u64> = (0..excess)
            .filter_map(|_| self.cache.pop_lru())
            .map(|it| it.0)
            .collect();
        let mut events: Vec<_> = removed.into_iter().map(PublishedEvent::Removed).collect();
        if reused < blocks.len() {
            events.push(PublishedEvent::Stored(StoredBlocks {
                hashes: blocks[reused..].to_vec(),
                parent: reused.checked_sub(1).map(|last| blocks[last]),
                token_ids: Vec::new(),
                block_size: BLOCK_SIZE,
                session_id: None,
            }));
        }
        let payload = encode_batch(0.0, &events);
        for event in EventBatch::parse(&payload).unwrap() {
            let event = event.unwrap();
            if let Some(chain) = self.contents.apply(&event).unwrap() {
                self.index.on_stored(&chain);
                if is_own {
                    self.chains.on_stored(key, &chain);
                }
            }
        }
        if let Some(chain) = self.chains.end(key) {
            let request = AnsweredRequest {
                text_blocks: &prompt.text_blocks(),
                whole: prompt.whole(),
                block_bytes: BLOCK_BYTES,
                bytes: prompt.bytes(),
                prompt_tokens: prompt.tokens(),
                cached_tokens: Some(cached),
            };
            let alignment = self.index.align(&request, &chain, BLOCK_SIZE).unwrap();
            self.index.learn(&alignment);
        }
    }
}

/// A new prompt that shares its beginning with one of `sent`. The function adds it to `sent`, which has at most
/// 20 prompts.
fn next_prompt(random: &mut fastrand::Rng, sent: &mut Vec<Prompt>) -> Prompt {
    let base = sent[random.usize(..sent.len())].clone();
    let shared = random.usize(..=base.words.len());
    let others = random.usize(20..1_500);
    let prompt = base.branch(random, shared, others);
    if sent.len() < 20 {
        sent.push(prompt.clone());
    } else {
        let replaced = random.usize(..20);
        sent[replaced] = prompt.clone();
    }
    prompt
}

/// Number of tokens, rounded up, in one text block plus one engine block.
const TEXT_BLOCK_TOKENS: u64 = 128 + BLOCK_SIZE as u64;

#[test]
fn a_repeated_prompt_is_predicted_to_one_block() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut fixture = Fixture::new(1_000);
    let prompt = Prompt::random(&mut random, 4_000);
    assert_eq!(fixture.predicted(&prompt), None);
    fixture.send(&prompt, true);
    let (predicted, reported) = (
        fixture.predicted(&prompt).unwrap(),
        fixture.true_cached(&prompt),
    );
    assert!(
        reported.abs_diff(predicted) <= TEXT_BLOCK_TOKENS,
        "{predicted} {reported}"
    );
    fixture.send(&Prompt::random(&mut random, 15_900), true);
    let (predicted, reported) = (
        fixture.predicted(&prompt).unwrap(),
        fixture.true_cached(&prompt),
    );
    assert!(
        reported < 500 && reported.abs_diff(predicted) <= TEXT_BLOCK_TOKENS,
        "{predicted}"
    );
}

#[test]
fn one_request_makes_a_foreign_prefix_known() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut fixture = Fixture::new(10_000);
    let system = Prompt::random(&mut random, 3_000);
    let questions: Vec<Prompt> = (0..3)
        .map(|_| system.branch(&mut random, 3_000, 200))
        .collect();
    fixture.send(&questions[0], false);
    assert_eq!(fixture.predicted(&questions[1]), None);
    fixture.send(&questions[1], true);
    let predicted = fixture.predicted(&questions[2]).unwrap();
    let reported = fixture.true_cached(&questions[2]);
    assert!(
        reported.abs_diff(predicted) <= TEXT_BLOCK_TOKENS,
        "{predicted} {reported}"
    );
    // The cache is small, so a prompt of another gateway makes the engine evict the system prompt.
    fixture.max_blocks = 300;
    fixture.send(&Prompt::random(&mut random, 4_800), false);
    assert_eq!(
        (
            fixture.predicted(&questions[2]),
            fixture.true_cached(&questions[2])
        ),
        (Some(0), 0)
    );
}

#[test]
fn predictions_hold_under_eviction_and_foreign_requests() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut fixture = Fixture::new(3_000);
    // Two lists: the prompts that the other gateway sent, and the prompts that this gateway sent.
    let first = Prompt::random(&mut random, 2_000);
    let mut prompts = [vec![first.clone()], vec![first]];
    let (mut known, mut wrong, mut above) = (0, 0, 0_u64);
    for _ in 0..1_500 {
        let is_own = random.bool();
        let sent = &mut prompts[usize::from(is_own)];
        let prompt = next_prompt(&mut random, sent);
        let reported = fixture.true_cached(&prompt);
        if let Some(predicted) = fixture.predicted(&prompt).filter(|_| is_own) {
            known += 1;
            wrong += u64::from(reported.abs_diff(predicted) > TEXT_BLOCK_TOKENS);
            above = above.max(predicted.saturating_sub(reported));
        }
        fixture.send(&prompt, is_own);
    }
    assert!(known > 400, "{known}");
    assert!(wrong * 100 <= known * 2, "{wrong} of {known}");
    assert!(above <= 2 * TEXT_BLOCK_TOKENS, "{above}");
}

#[test]
fn a_certain_prediction_is_right_to_one_block() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut fixture = Fixture::new(2_000);
    let mut prompts = vec![Prompt::random(&mut random, 700)];
    let (mut decided, mut wrong) = (0, 0);
    for _ in 0..3_000 {
        // Two of three prompts repeat an earlier prompt.
        let prompt = match random.u8(..3) {
            0 => next_prompt(&mut random, &mut prompts),
            _ => prompts[random.usize(..prompts.len())].clone(),
        };
        let is_own = random.bool();
        if let Some(cached) = fixture
            .lookup(&prompt)
            .filter(|cached| is_own && cached.is_decided)
        {
            decided += 1;
            let reported = fixture.true_cached(&prompt);
            wrong += u64::from(reported.abs_diff(cached.tokens) > u64::from(BLOCK_SIZE));
        }
        fixture.send(&prompt, is_own);
    }
    assert!(decided > 400, "{decided}");
    assert!(wrong * 100 <= decided, "{wrong} of {decided}");
}

#[test]
fn blocks_that_contradict_token_counts_are_ignored() {
    let mut index = TextIndex::new(100, 100, 0);
    let chain = RequestChain {
        parent: Some(1),
        first_depth: 1,
        blocks: vec![2, 3],
    };
    let request = AnsweredRequest {
        text_blocks: &[10],
        whole: 11,
        block_bytes: 512,
        bytes: 512,
        prompt_tokens: 48,
        cached_tokens: Some(32),
    };
    assert!(
        index.align(&request, &chain, 16).is_none(),
        "other cached tokens"
    );
    assert!(index.align(&request, &chain, 0).is_none());
    let request = AnsweredRequest {
        cached_tokens: Some(16),
        ..request
    };
    let longer = AnsweredRequest {
        prompt_tokens: 80,
        ..request
    };
    assert!(
        index.align(&longer, &chain, 16).is_none(),
        "one of several prompts"
    );
    let alignment = index.align(&request, &chain, 16).unwrap();
    index.learn(&alignment);
    assert_eq!(index.block(10).map(ChainBlock::blocks), Some(3));
    assert_eq!(index.block(11).map(ChainBlock::blocks), Some(3));
}
