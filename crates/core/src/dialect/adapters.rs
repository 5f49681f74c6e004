//! The LoRA adapters of a replica, as hashes of their names, so that what a replica said stays
//! small and is copied without a heap.

use super::line::Sample;
use super::table::number;

/// Adapters that a replica has loaded for requests that run, or will load for those that wait.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Adapters {
    hashes: [u64; MAX_ADAPTERS],
    count: u8,
    most: Option<u32>,
}

/// Most adapters that are kept of a page; more are left out.
pub const MAX_ADAPTERS: usize = 32;

/// The hash of an adapter's name (64 bits of FNV-1a), which is the `model` that clients ask for.
pub fn adapter_hash(name: &str) -> u64 {
    hash(name.as_bytes())
}

fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Adapters {
    /// Whether it has an adapter, by [`adapter_hash`] of its name.
    pub fn has(&self, adapter: u64) -> bool {
        self.hashes().contains(&adapter)
    }

    /// The hashes, those of running requests first.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes[..usize::from(self.count)]
    }

    /// How many adapters can be in a batch (`--max-loras`).
    pub fn most(&self) -> Option<u32> {
        self.most
    }

    /// Reads the labels of `vllm:lora_requests_info`.
    pub(super) fn read(sample: &Sample<'_>) -> Self {
        let mut adapters = Self::default();
        for label in ["running_lora_adapters", "waiting_lora_adapters"] {
            let names = sample.label(label).unwrap_or_default();
            names.split(|byte| *byte == b',').for_each(|name| adapters.add(name.trim_ascii()));
        }
        let most = sample.label("max_lora").and_then(number);
        adapters.most = most.filter(|most| *most >= 1.0).map(|most| most as u32);
        adapters
    }

    fn add(&mut self, name: &[u8]) {
        let (hash, at) = (hash(name), usize::from(self.count));
        if !name.is_empty() && at < MAX_ADAPTERS && !self.has(hash) {
            self.hashes[at] = hash;
            self.count += 1;
        }
    }
}
