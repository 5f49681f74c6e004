//! Recently removed backends.
//!
//! Their series stay on the metrics page, so that a scrape still reads their last values. Series of
//! backends removed earlier are deleted, so that a pool that changes constantly does not accumulate
//! series.

use std::collections::VecDeque;

/// The last removed backends.
#[derive(Debug, Default)]
pub(super) struct RetiredBackends {
    names: VecDeque<String>,
    has_forgotten: bool,
}

/// Removed backends whose series are retained.
const MAX_RETIRED_BACKENDS: usize = 8;

impl RetiredBackends {
    /// Updates the list: the pool had the backends `before` and has the backends `now`.
    pub(super) fn on_change(&mut self, before: &[String], now: &[String]) {
        self.names.retain(|name| !now.contains(name));
        self.names.extend(before.iter().filter(|name| !now.contains(name)).cloned());
        while self.names.len() > MAX_RETIRED_BACKENDS {
            self.names.pop_front();
            self.has_forgotten = true;
        }
    }

    /// Whether series of backends may exist that are neither in this list nor in the pool: a
    /// request on a backend that was removed long ago can end late.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// Whether the backend is one of the last removed ones.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend_names(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| format!("vllm-{number}")).collect()
    }

    #[test]
    fn latest_removed_backends_are_retained_and_returned_ones_are_not() {
        let mut retired = RetiredBackends::default();
        retired.on_change(&backend_names(0..8), &backend_names(4..8));
        assert!(retired.has("vllm-0") && retired.has("vllm-3") && !retired.has("vllm-4"));
        retired.on_change(&backend_names(4..8), &backend_names(0..1));
        assert!(!retired.has("vllm-0") && retired.has("vllm-7") && !retired.has_forgotten());
        retired.on_change(&backend_names(20..29), &[]);
        let names = backend_names(0..40);
        let retained = names.iter().filter(|name| retired.has(name));
        assert_eq!(retained.count(), MAX_RETIRED_BACKENDS);
        assert!(!retired.has("vllm-20") && retired.has("vllm-28") && retired.has_forgotten());
    }
}
