//! The CPU time of KV events and prompt lookups. `tests/kv_events.sh` runs these tests with compiler
//! optimization. They can fail if other programs use the machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::hint::black_box;
use std::time::Instant;
use tokenweir_kv_events::correlation::{
    AnsweredRequest, PromptLookup, PromptText, RequestChain, TextIndex,
};
use tokenweir_kv_events::decoder::EventBatch;
use tokenweir_kv_events::encoder::{PublishedEvent, StoredBlocks, encode_batch};
use tokenweir_kv_events::residency::CacheContents;
use tokenweir_protocol::clock;

/// Tokens in an engine block.
const BLOCK_SIZE: u64 = 16;
/// Blocks in one event: a prefill step of 8,192 tokens.
const BLOCKS: u64 = 512;

/// A batch with one event that stores `hashes` after `parent`, with the ids of their tokens.
fn batch(hashes: &[u64], parent: Option<u64>) -> Vec<u8> {
    let tokens = hashes.len() as u32 * BLOCK_SIZE as u32;
    let stored = StoredBlocks {
        hashes: hashes.to_vec(),
        parent,
        token_ids: (0..tokens).map(|token| token * 19 % 150_000).collect(),
        block_size: BLOCK_SIZE as u32,
        session_id: None,
    };
    encode_batch(0.0, &[PublishedEvent::Stored(stored)])
}

fn apply(payload: &[u8], contents: &mut CacheContents, index: &mut TextIndex) {
    for event in EventBatch::parse(payload).unwrap() {
        let event = event.unwrap();
        if let Some(chain) = contents.apply(&event).unwrap() {
            index.on_stored(&chain);
        }
    }
}

fn random(number: u64) -> u64 {
    (number + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d)
}

fn seconds(began: Instant) -> f64 {
    clock::now().saturating_duration_since(began).as_secs_f64()
}

#[test]
#[ignore = "needs optimisation and an idle machine"]
fn events_take_a_hundredth_of_a_core() {
    let payloads: Vec<Vec<u8>> = (0..400)
        .map(|batch_number| {
            let hashes: Vec<u64> = (0..BLOCKS)
                .map(|n| random(batch_number * BLOCKS + n))
                .collect();
            batch(&hashes, None)
        })
        .collect();
    let (mut contents, mut index) = (
        CacheContents::new(1_000_000, 1),
        TextIndex::new(1_000_000, 1_000_000, 2),
    );
    let began = clock::now();
    for payload in &payloads {
        apply(payload, &mut contents, &mut index);
    }
    let tokens = (400 * BLOCKS * BLOCK_SIZE) as f64;
    let share = seconds(began) / tokens * 100_000.0;
    println!(
        "{:.3} % of a core for 100,000 new tokens a second",
        100.0 * share
    );
    assert!(share <= 0.01, "{share}");
}

#[test]
#[ignore = "needs optimisation and an idle machine"]
fn a_lookup_takes_at_most_2_microseconds() {
    let prompt_blocks = 100_000 / BLOCK_SIZE;
    let hashes: Vec<u64> = (0..prompt_blocks).map(random).collect();
    let texts: Vec<u64> = (0..800).map(|n| random(n + 1_000_000)).collect();
    let mut index = TextIndex::new(1_000_000, 1_000_000, 2);
    // Blocks of other prompts make the tables as large as in real use.
    let others: Vec<Vec<u8>> = (0..100)
        .map(|number| {
            let hashes: Vec<u64> = (0..BLOCKS)
                .map(|n| random(10_000_000 + number * BLOCKS + n))
                .collect();
            batch(&hashes, None)
        })
        .collect();
    let mut caches: Vec<CacheContents> = Vec::new();
    for backend in 0..16 {
        let mut contents = CacheContents::new(1_000_000, backend);
        for payload in &others {
            apply(payload, &mut contents, &mut index);
        }
        // Backend 0 has the whole prompt in its cache, three backends have a part, and the others have nothing.
        let resident = match backend {
            0 => hashes.len(),
            1..=3 => hashes.len() * backend as usize / 5,
            _ => 0,
        };
        let mut parent = None;
        for chunk in hashes[..resident].chunks(BLOCKS as usize) {
            apply(&batch(chunk, parent), &mut contents, &mut index);
            parent = chunk.last().copied();
        }
        caches.push(contents);
    }
    let whole = 77;
    let request = AnsweredRequest {
        text_blocks: &texts,
        whole,
        block_bytes: 512,
        bytes: 800 * 512,
        prompt_tokens: 100_000,
        cached_tokens: Some(0),
    };
    let chain = RequestChain {
        parent: None,
        first_depth: 0,
        blocks: hashes,
    };
    let alignment = index.align(&request, &chain, BLOCK_SIZE as u32).unwrap();
    index.learn(&alignment);
    let text = PromptText {
        blocks: &texts,
        whole,
    };
    let rounds = 500;
    let mut batches = [0.0; 41];
    for batch in &mut batches {
        let began = clock::now();
        for _ in 0..rounds {
            let mut lookup = PromptLookup::new(black_box(text), &index);
            for contents in &caches {
                black_box(lookup.cached(text, &index, contents));
            }
        }
        *batch = seconds(began) / f64::from(rounds) * 1e6;
    }
    // The median ignores slow batches, in which another program used the core.
    batches.sort_unstable_by(f64::total_cmp);
    let micros = batches[batches.len() / 2];
    println!("{micros:.2} µs for 16 backends and a prompt of 100,000 tokens");
    assert!(micros <= 2.0, "{micros}");
}
