//! Prompt tokens that one backend still has to compute for other gateways, as these gateways report them.

use super::limits::MAX_COUNT;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir_protocol::atomic::AtomicF64;

/// Prompt tokens that one backend still has to compute for other gateways. Memory for a gateway is allocated
/// with its first report.
#[derive(Debug, Default)]
pub(super) struct OtherBacklogs {
    backlogs: OnceLock<Box<[OtherBacklog; MAX_PEERS]>>,
    /// Number of leading entries of `backlogs` in use.
    used: AtomicUsize,
}

/// The last report of one gateway.
#[derive(Debug, Default)]
struct OtherBacklog {
    tokens: AtomicF64,
    /// Time at which the report arrived, in seconds since the start of the
    /// [`LoadEstimator`](super::LoadEstimator).
    at: AtomicF64,
}

/// Maximum number of other gateways whose reports are stored.
pub const MAX_PEERS: usize = 32;
/// Age in seconds above which a report is ignored, because a gateway that has ended does not replace its last
/// report.
const MAX_AGE_SECONDS: f64 = 30.0;

impl OtherBacklogs {
    /// Records that the backend still has to compute `tokens` prompt tokens for gateway number `peer`. A `peer`
    /// of [`MAX_PEERS`] or above is ignored.
    pub(super) fn set(&self, peer: usize, tokens: u64, now: f64) {
        let backlogs = self.backlogs.get_or_init(Box::default);
        if let Some(backlog) = backlogs.get(peer) {
            backlog.tokens.set((tokens as f64).min(MAX_COUNT));
            backlog.at.set(now);
            self.used.fetch_max(peer + 1, Ordering::Relaxed);
        }
    }

    /// Prompt tokens that the backend still has to compute for the other gateways, at `per_token` seconds per
    /// token. The number falls with time, so a lost report about a first output has no lasting
    /// effect. `now`: see `OtherBacklog::at`.
    pub(super) fn tokens(&self, per_token: f64, now: f64) -> f64 {
        let Some(backlogs) = self.backlogs.get() else {
            return 0.0;
        };
        let remaining = |backlog: &OtherBacklog| {
            let age = (now - backlog.at.get()).max(0.0);
            if age < MAX_AGE_SECONDS {
                (backlog.tokens.get() - age / per_token).max(0.0)
            } else {
                0.0
            }
        };
        backlogs[..self.used.load(Ordering::Relaxed)]
            .iter()
            .map(remaining)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_backlog_falls_until_its_report() {
        let backlogs = OtherBacklogs::default();
        let tokens = |per_token, seconds| backlogs.tokens(per_token, seconds).round() as u32;
        assert_eq!(tokens(0.001, 0.0), 0);
        backlogs.set(1, 1_000, 1.0);
        backlogs.set(2, 400, 1.0);
        backlogs.set(MAX_PEERS, 400, 1.0);
        assert_eq!(
            (tokens(0.001, 1.0), tokens(0.001, 1.5), tokens(0.001, 9.0)),
            (1_400, 500, 0)
        );
        backlogs.set(1, 0, 1.0);
        assert_eq!(tokens(0.001, 1.0), 400);
    }

    #[test]
    fn a_report_counts_for_30_seconds() {
        let backlogs = OtherBacklogs::default();
        backlogs.set(0, u64::MAX, 0.0);
        let has_tokens = |seconds| backlogs.tokens(1e-3, seconds) > 0.0;
        assert!(has_tokens(29.0) && !has_tokens(30.0));
    }
}
