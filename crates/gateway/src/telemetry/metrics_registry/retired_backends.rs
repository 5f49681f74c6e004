//! The list of recently removed backends.
//!
//! The series of these backends stay on the metrics page, so that the next scrape reads their last values. The
//! series of backends that were removed earlier are deleted, so that a pool that changes constantly does not
//! accumulate series.

use std::collections::VecDeque;

/// The names of the backends that were removed from the pool most recently.
#[derive(Debug, Default)]
pub(super) struct RetiredBackends {
    /// Names of the backends, in the order of their removal.
    names: VecDeque<String>,
    /// Whether a full list ever discarded a name. Such a backend may have series although neither this list nor
    /// the pool contains it, because one of its requests can end late and create them.
    pub(super) has_discarded: bool,
}

/// Maximum number of removed backends whose series are retained.
const MAX_RETIRED_BACKENDS: usize = 8;

impl RetiredBackends {
    /// Updates the list after the pool has changed from the backends `previous` to the backends
    /// `current`.
    pub(super) fn update(&mut self, previous: &[String], current: &[String]) {
        self.names.retain(|name| !current.contains(name));
        self.names.extend(
            previous
                .iter()
                .filter(|name| !current.contains(name))
                .cloned(),
        );
        while self.names.len() > MAX_RETIRED_BACKENDS {
            self.names.pop_front();
            self.has_discarded = true;
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
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
    fn returned_backends_leave_the_list() {
        let mut retired = RetiredBackends::default();
        retired.update(&backend_names(0..8), &backend_names(4..8));
        assert!(
            retired.contains("vllm-0") && retired.contains("vllm-3") && !retired.contains("vllm-4")
        );
        retired.update(&backend_names(4..8), &backend_names(0..1));
        assert!(
            !retired.contains("vllm-0") && retired.contains("vllm-7") && !retired.has_discarded
        );
        retired.update(&backend_names(20..29), &[]);
        let names = backend_names(0..40);
        let retained = names.iter().filter(|name| retired.contains(name));
        assert_eq!(retained.count(), MAX_RETIRED_BACKENDS);
        assert!(
            !retired.contains("vllm-20") && retired.contains("vllm-28") && retired.has_discarded
        );
    }
}
