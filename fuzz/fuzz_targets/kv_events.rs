//! Fuzz target of KV events. Any payload is decoded without a panic, and what the gateway stores about the
//! prefix cache stays within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_kv_events::correlation::TextIndex;
use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::residency::CacheContents;

/// Maximum number of KV cache blocks that `CacheContents` may store for one medium.
const MAX_BLOCKS: usize = 64;
/// Maximum number of bytes that `CacheContents` allocates: two media (GPU and offloaded), each with a hash
/// table of twice the needed size.
const MAX_BYTES: usize = 2 * MAX_BLOCKS * 2 * (12 + 1 + 24) + 1024;

fuzz_target!(|input: &[u8]| {
    let mut contents = CacheContents::new(MAX_BLOCKS, 1);
    let mut index = TextIndex::new(16, 16, 1);
    // Parses each half of the input as a batch of events, and then the whole input, so that events of one
    // batch refer to blocks of another.
    for payload in [&input[..input.len() / 2], &input[input.len() / 2..], input] {
        let Ok(batch) = EventBatch::parse(payload) else {
            continue;
        };
        let mut count = 0;
        for event in batch {
            count += 1;
            assert!(count <= payload.len(), "an event has at least one byte");
            let Ok(event) = event else { break };
            let Ok(chain) = contents.apply(&event) else {
                break;
            };
            if let Some(chain) = chain {
                index.on_stored(&chain);
            }
            if let KvEvent::Stored(stored) = &event {
                assert_eq!(
                    stored.block_hashes.iter().count(),
                    stored.block_hashes.len()
                );
                assert!(stored.block_hashes.len() <= payload.len());
            }
            assert!(contents.len() <= MAX_BLOCKS && contents.bytes() <= MAX_BYTES);
        }
    }
});
