//! The LoRA adapters of a backend, as hashes of their names. The hashes keep an
//! [`EngineLoad`](super::EngineLoad) small and `Copy`.

use super::metric_sample::{MetricSample, parse_number};

/// The LoRA adapters of the running and waiting requests of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoraAdapters {
    hashes: [u64; MAX_ADAPTERS],
    /// Number of entries of `hashes` that are set.
    count: u8,
    max_loras: Option<u32>,
}

/// Maximum number of adapters that are read from a metrics page. Further adapters are ignored.
pub const MAX_ADAPTERS: usize = 32;

/// The 64-bit FNV-1a hash of an adapter name, which is the `model` that clients request.
pub fn adapter_hash(name: &str) -> u64 {
    fnv1a(name.as_bytes())
}

fn fnv1a(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl LoraAdapters {
    /// Whether a running or waiting request of the backend uses the adapter with this
    /// [`adapter_hash`].
    pub fn has(&self, adapter_hash: u64) -> bool {
        self.hashes().contains(&adapter_hash)
    }

    /// The hashes of the adapter names, with the adapters of running requests before the others.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes[..usize::from(self.count)]
    }

    /// Maximum number of adapters in one batch of the engine (`--max-loras`). `None`: the page does not
    /// report this number.
    pub fn max_loras(&self) -> Option<u32> {
        self.max_loras
    }

    /// Parses the labels of a sample of `vllm:lora_requests_info`.
    pub(super) fn read(sample: &MetricSample<'_>) -> Self {
        let mut adapters = Self::default();
        for label in ["running_lora_adapters", "waiting_lora_adapters"] {
            let names = sample.label(label).unwrap_or_default();
            names
                .split(|byte| *byte == b',')
                .for_each(|name| adapters.add(name.trim_ascii()));
        }
        let max_loras = sample.label("max_lora").and_then(parse_number);
        adapters.max_loras = max_loras.filter(|max| *max >= 1.0).map(|max| max as u32);
        adapters
    }

    fn add(&mut self, name: &[u8]) {
        let hash = fnv1a(name);
        let index = usize::from(self.count);
        if !name.is_empty() && index < MAX_ADAPTERS && !self.has(hash) {
            self.hashes[index] = hash;
            self.count += 1;
        }
    }
}
