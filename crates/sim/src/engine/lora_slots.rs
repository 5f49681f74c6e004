//! The slots of an engine for LoRA adapters. As in vLLM's scheduler, the sequences of a batch use at most
//! `max_loras` adapters. A sequence with another adapter waits until a slot is free, and later sequences may
//! pass it.

use super::super::sequence::Sequence;
use super::engine_spec::EngineSpec;
use std::time::Duration;

/// The adapters in the memory of the GPU, the least recently used first.
#[derive(Debug, Default)]
pub(super) struct LoraSlots(Vec<u32>);

impl LoraSlots {
    /// Whether a sequence can join the batch: it uses no adapter, or the batch has a slot for its adapter.
    pub(super) fn admit(spec: &EngineSpec, running: &[Sequence], sequence: &Sequence) -> bool {
        let Some(adapter) = sequence.adapter() else {
            return true;
        };
        let mut used: Vec<u32> = running.iter().filter_map(Sequence::adapter).collect();
        used.sort_unstable();
        used.dedup();
        used.contains(&adapter) || used.len() < spec.max_loras as usize
    }

    /// Loads the adapters of a batch that are not in a slot. Returns the time of loading.
    pub(super) fn load(&mut self, spec: &EngineSpec, running: &[Sequence]) -> Duration {
        let mut loaded = 0;
        for adapter in running.iter().filter_map(Sequence::adapter) {
            let known = self.0.iter().position(|other| *other == adapter);
            match known {
                Some(position) => drop(self.0.remove(position)),
                None => loaded += 1,
            }
            self.0.push(adapter);
        }
        let excess = self.0.len().saturating_sub(spec.max_loras as usize);
        self.0.drain(..excess);
        spec.adapter_load * loaded
    }
}
