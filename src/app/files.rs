//! How the file descriptors that the process may have open are shared out, so that they suffice for
//! everything at the same time.

use tokenweir_net::descriptors::for_watching;

/// The shares. They add up to the limit at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Files {
    /// Connections of clients, and connections to backends for requests and for watching them.
    pub(crate) traffic: Option<usize>,
    /// Connections to the admin port.
    pub(crate) admin: usize,
    /// Connections that are told why they are refused.
    pub(crate) refusals: usize,
}

/// Least share of the gateway itself: standard streams, the runtime, both listeners, log and capture
/// files, files that are read now and then, collectors, and a few connections in the moment in which
/// they are accepted or closed.
const LEAST_OWN: usize = 24;
/// Most of it: more collectors and sources of backends than this are not expected.
const MOST_OWN: usize = 128;
/// Most of the admin port, and of refused connections.
const MOST_BESIDE: usize = 64;
/// Least of each.
const LEAST_BESIDE: usize = 4;
/// With fewer files than this the gateway warns at the start.
const FEW: usize = 1_024;

impl Files {
    /// The shares of a limit. `None`: the limit is not known, or there is none.
    pub(crate) fn of(limit: Option<usize>) -> Self {
        let Some(limit) = limit else {
            return Self { traffic: None, admin: MOST_BESIDE, refusals: MOST_BESIDE };
        };
        let own = (limit / 8).clamp(LEAST_OWN, MOST_OWN);
        let beside = (limit / 16).clamp(LEAST_BESIDE, MOST_BESIDE);
        // Each of the two accepts one connection before it knows that there is no room for it.
        let traffic = limit.saturating_sub(own + 2 * (beside + 1)).max(2);
        Self { traffic: Some(traffic), admin: beside, refusals: beside }
    }

    /// How many connections clients may have, each with a request at a backend, while so many
    /// backends are watched.
    pub(crate) fn clients(&self, backends: usize) -> usize {
        let Some(traffic) = self.traffic else { return usize::MAX };
        (traffic.saturating_sub(for_watching(backends, traffic)) / 2).max(1)
    }

    /// Warns if the limit allows few connections only.
    pub(crate) fn warn_if_few(&self, limit: Option<usize>, backends: usize) {
        if let Some(limit) = limit.filter(|limit| *limit < FEW) {
            let connections = self.clients(backends);
            tracing::warn!(
                limit,
                connections,
                "the limit of open files is low, so few clients can connect; raise it \
                 (LimitNOFILE, ulimit -n)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_never_add_up_to_more_than_the_limit() {
        for limit in 64..5_000 {
            let files = Files::of(Some(limit));
            let traffic = files.traffic.unwrap();
            let own = (limit / 8).clamp(LEAST_OWN, MOST_OWN);
            assert!(traffic + files.admin + files.refusals + 2 + own <= limit, "{limit}");
            for backends in [0, 1, 8, 100, 1_000] {
                let watched = for_watching(backends, traffic);
                assert!(2 * files.clients(backends) + watched <= traffic, "{limit} {backends}");
            }
        }
        assert!(Files::of(Some(64)).clients(8) >= 8, "a small limit is enough for a few clients");
        assert_eq!(Files::of(Some(1_024)).traffic, Some(1_024 - 128 - 2 * 65));
    }

    #[test]
    fn without_a_known_limit_there_is_none() {
        assert_eq!((Files::of(None).traffic, Files::of(None).clients(9)), (None, usize::MAX));
    }
}
