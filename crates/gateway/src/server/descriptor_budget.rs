//! Divides the file descriptor limit of the process among traffic, the admin listener, rejected connections and
//! internal use, so that no use can exhaust the descriptors of another.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokenweir_net::file_descriptors::max_probe_descriptors;

/// The shares of the file descriptor limit, in numbers of descriptors. Together with the descriptors for
/// internal use they are at most the limit, unless the limit is very low.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorBudget {
    /// Maximum number of descriptors for client connections and backend connections. Health checks use backend
    /// connections too. `None`: no limit.
    pub traffic: Option<usize>,
    /// Maximum number of descriptors for connections to the admin listener.
    pub admin: usize,
    /// Maximum number of descriptors for client connections that get an error response on rejection.
    pub refusals: usize,
}

/// Minimum number of file descriptors for internal use: standard streams, the runtime, both
/// listeners, log and capture files, configuration files, OTLP collectors, and connections that are
/// being accepted or closed.
const MIN_INTERNAL_DESCRIPTORS: usize = 24;
/// Maximum number of file descriptors for internal use, sufficient for the expected number of OTLP collectors
/// and discovery sources.
const MAX_INTERNAL_DESCRIPTORS: usize = 128;
/// Maximum number of file descriptors for admin connections, and separately for rejected client connections.
const MAX_AUXILIARY_CONNECTIONS: usize = 64;
/// Minimum number of file descriptors for admin connections, and separately for rejected client connections.
const MIN_AUXILIARY_CONNECTIONS: usize = 4;
/// File descriptor limit below which the gateway logs a warning at its start.
const LOW_FILE_LIMIT: usize = 1_024;

/// Raises the soft limit of open files of the process to the hard limit, because every request in flight needs
/// two file descriptors. Returns the new limit. `None`: unknown.
pub fn raise_file_limit() -> Option<usize> {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files: using the current limit");
            before.current
        }
    };
    tracing::debug!(limit, "limit of open files");
    limit.and_then(|limit| usize::try_from(limit).ok())
}

impl DescriptorBudget {
    /// The budget for this file descriptor limit. `None`: unknown or unlimited.
    pub fn from_limit(limit: Option<usize>) -> Self {
        let Some(limit) = limit else {
            return Self {
                traffic: None,
                admin: MAX_AUXILIARY_CONNECTIONS,
                refusals: MAX_AUXILIARY_CONNECTIONS,
            };
        };
        let internal = (limit / 8).clamp(MIN_INTERNAL_DESCRIPTORS, MAX_INTERNAL_DESCRIPTORS);
        let auxiliary = (limit / 16).clamp(MIN_AUXILIARY_CONNECTIONS, MAX_AUXILIARY_CONNECTIONS);
        // Each listener accepts one connection beyond its budget before it detects that the budget is
        // exhausted.
        let traffic = limit.saturating_sub(internal + 2 * (auxiliary + 1)).max(2);
        Self {
            traffic: Some(traffic),
            admin: auxiliary,
            refusals: auxiliary,
        }
    }

    /// Maximum number of client connections in the traffic budget, at least 1. The descriptors for the health
    /// checks of `backends` backends are subtracted first. Half of the rest remains, because each client
    /// connection also needs a backend connection. `usize::MAX`: no limit.
    pub fn clients(&self, backends: usize) -> usize {
        let Some(traffic) = self.traffic else {
            return usize::MAX;
        };
        (traffic.saturating_sub(max_probe_descriptors(backends, traffic)) / 2).max(1)
    }

    /// Logs a warning if the file descriptor limit is low.
    pub fn warn_if_low(&self, limit: Option<usize>, backends: usize) {
        if let Some(limit) = limit.filter(|limit| *limit < LOW_FILE_LIMIT) {
            let connections = self.clients(backends);
            tracing::warn!(
                limit,
                connections,
                "the limit of open files is low and allows few client connections: raise it \
                 (LimitNOFILE, ulimit -n)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_never_exceeds_the_limit() {
        for limit in 64..5_000 {
            let budget = DescriptorBudget::from_limit(Some(limit));
            let traffic = budget.traffic.unwrap();
            let internal = (limit / 8).clamp(MIN_INTERNAL_DESCRIPTORS, MAX_INTERNAL_DESCRIPTORS);
            assert!(
                traffic + budget.admin + budget.refusals + 2 + internal <= limit,
                "{limit}"
            );
            for backends in [0, 1, 8, 100, 1_000] {
                let probes = max_probe_descriptors(backends, traffic);
                assert!(
                    2 * budget.clients(backends) + probes <= traffic,
                    "{limit} {backends}"
                );
            }
        }
        assert!(
            DescriptorBudget::from_limit(Some(64)).clients(8) >= 8,
            "a small limit is enough for a few clients"
        );
        assert_eq!(
            DescriptorBudget::from_limit(Some(1_024)).traffic,
            Some(1_024 - 128 - 2 * 65)
        );
    }

    #[test]
    fn without_a_limit_connections_are_unlimited() {
        let budget = DescriptorBudget::from_limit(None);
        assert_eq!((budget.traffic, budget.clients(9)), (None, usize::MAX));
    }
}
