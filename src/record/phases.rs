//! Where the time of a request went. Some phases the gateway measures, some only the engine knows:
//! it tells them with the answer, or they are estimated from what its other requests took.

use super::{RecentTimes, RequestRecord};
use std::time::Duration;

/// A part of the life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The gateway had it: request body read → handed to a connection, for the last time.
    Gateway,
    /// On the way to the engine and back: (sent → first output) − queue − prefill.
    Network,
    /// It waited in the engine.
    Queue,
    /// Scheduled → first token.
    Prefill,
    /// First output → last output.
    Decode,
}

/// How long a phase was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The phase.
    pub phase: Phase,
    /// Its length.
    pub took: Duration,
    /// It rests on what other requests took, not on this one.
    pub is_estimated: bool,
}

/// The phases of one request that are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases([Option<Span>; Phase::ALL.len()]);

// === impl Phase ===

impl Phase {
    /// All of them, in the order of time (the network is before and after the engine).
    pub const ALL: [Self; 5] =
        [Self::Gateway, Self::Network, Self::Queue, Self::Prefill, Self::Decode];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Network => "network",
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

// === impl Phases ===

impl Phases {
    /// The phases of a request.
    pub fn of(record: &RequestRecord) -> Self {
        let engine = record.observed.engine.unwrap_or_default();
        let mut phases = Self::default();
        phases.put(Phase::Gateway, record.overhead(), false);
        phases.put(Phase::Decode, engine.decode.or_else(|| record.decode()), false);
        let first = record.upstream_ttft();
        let (times, is_estimated) = match (engine.queue, engine.prefill, first) {
            // llama.cpp tells no queue: what is left is network.
            (queue, Some(prefill), _) => (Some((queue.unwrap_or_default(), prefill)), false),
            (_, None, Some(first)) => (shared(&record.recent, first), true),
            _ => (None, true),
        };
        let Some((queue, prefill)) = times else { return phases };
        phases.put(Phase::Queue, Some(queue), is_estimated);
        phases.put(Phase::Prefill, Some(prefill), is_estimated);
        let network = first.map(|first| first.saturating_sub(queue + prefill));
        phases.put(Phase::Network, network, is_estimated);
        phases
    }

    /// One phase, if it is known.
    pub fn get(&self, phase: Phase) -> Option<Span> {
        self.0[phase as usize]
    }

    /// Those that are known.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().flatten().copied()
    }

    fn put(&mut self, phase: Phase, took: Option<Duration>, is_estimated: bool) {
        self.0[phase as usize] = took.map(|took| Span { phase, took, is_estimated });
    }
}

/// Queue and prefill of a request whose first output came after `first`, as the replica's other
/// requests divided theirs: never longer than `first` together.
fn shared(recent: &RecentTimes, first: Duration) -> Option<(Duration, Duration)> {
    let (queue, prefill) = (recent.queue?, recent.prefill?);
    let sum = queue + prefill;
    if sum <= first {
        return Some((queue, prefill));
    }
    let queue = first.mul_f64(queue.as_secs_f64() / sum.as_secs_f64());
    Some((queue, first.saturating_sub(queue)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_other_requests_took_is_never_more_than_this_one_did() {
        let recent = RecentTimes { queue: Some(ms(30)), prefill: Some(ms(10)) };
        assert_eq!(shared(&recent, ms(100)), Some((ms(30), ms(10))));
        assert_eq!(shared(&recent, ms(20)), Some((ms(15), ms(5))));
        assert_eq!(shared(&RecentTimes::default(), ms(20)), None);
    }
}
