//! Where the time of a request went. Some phases the gateway measures, some only the engine knows:
//! it tells them with the answer, or they are estimated from what its other requests took.

use super::{RecentTimes, RequestRecord};
use std::time::Duration;

/// A part of the life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waited in the gateway for a replica with room.
    GatewayQueue,
    /// The gateway had it: request body read → handed to a connection, for the last time, less
    /// that wait.
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
    pub const ALL: [Self; 6] = [
        Self::GatewayQueue,
        Self::Gateway,
        Self::Network,
        Self::Queue,
        Self::Prefill,
        Self::Decode,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GatewayQueue => "gateway_queue",
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
        phases.put(Phase::GatewayQueue, record.queue_wait(), false);
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
    use crate::openai::EngineTimes;
    use crate::record::sample::{at, streamed};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Phase, milliseconds, and whether they are estimated.
    fn of(record: &RequestRecord) -> Vec<(&'static str, u128, bool)> {
        let told = |span: Span| (span.phase.as_str(), span.took.as_millis(), span.is_estimated);
        Phases::of(record).iter().map(told).collect()
    }

    #[test]
    fn what_the_engine_tells_is_exact_and_the_rest_of_the_wait_is_the_network() {
        let mut record = streamed();
        record.recent = RecentTimes { queue: Some(ms(1)), prefill: Some(ms(1)) };
        record.observed.engine =
            Some(EngineTimes { queue: Some(ms(40)), prefill: Some(ms(45)), decode: Some(ms(299)) });
        let expected = [
            ("gateway", 8, false),
            ("network", 5, false),
            ("queue", 40, false),
            ("prefill", 45, false),
            ("decode", 299, false),
        ];
        assert_eq!(of(&record), expected);
    }

    #[test]
    fn a_wait_for_a_replica_with_room_is_not_the_gateways_own_time() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.queued = Some(at(accepted, 2));
        record.timings.dequeued = Some(at(accepted, 8));
        let expected = [("gateway_queue", 6, false), ("gateway", 2, false), ("decode", 300, false)];
        assert_eq!(of(&record), expected);
    }

    #[test]
    fn without_its_word_what_other_requests_took_is_an_estimate() {
        let mut record = streamed();
        record.recent = RecentTimes { queue: Some(ms(30)), prefill: Some(ms(10)) };
        let expected = [
            ("gateway", 8, false),
            ("network", 50, true),
            ("queue", 30, true),
            ("prefill", 10, true),
            ("decode", 300, false),
        ];
        assert_eq!(of(&record), expected);
    }

    #[test]
    fn where_nobody_tells_only_what_the_gateway_saw_is_known() {
        assert_eq!(of(&streamed()), [("gateway", 8, false), ("decode", 300, false)]);
        let mut record = streamed();
        record.timings.sent = None;
        record.timings.first_output = None;
        assert_eq!(of(&record), []);
    }

    #[test]
    fn a_server_that_tells_no_queue_has_its_wait_in_the_network() {
        let mut record = streamed();
        record.observed.engine =
            Some(EngineTimes { prefill: Some(ms(70)), ..EngineTimes::default() });
        let phases = Phases::of(&record);
        let took = |phase| phases.get(phase).map(|span| span.took);
        assert_eq!((took(Phase::Network), took(Phase::Prefill)), (Some(ms(20)), Some(ms(70))));
        assert_eq!((took(Phase::Queue), took(Phase::Decode)), (Some(ms(0)), Some(ms(300))));
    }

    #[test]
    fn an_answer_that_is_no_stream_has_the_phases_that_its_engine_tells() {
        let mut record = streamed();
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.observed.engine =
            Some(EngineTimes { queue: Some(ms(4)), prefill: Some(ms(5)), decode: Some(ms(6)) });
        let expected = [
            ("gateway", 8, false),
            ("queue", 4, false),
            ("prefill", 5, false),
            ("decode", 6, false),
        ];
        assert_eq!(of(&record), expected);
    }

    #[test]
    fn what_other_requests_took_is_never_more_than_this_one_did() {
        let recent = RecentTimes { queue: Some(ms(30)), prefill: Some(ms(10)) };
        assert_eq!(shared(&recent, ms(100)), Some((ms(30), ms(10))));
        assert_eq!(shared(&recent, ms(20)), Some((ms(15), ms(5))));
        assert_eq!(shared(&RecentTimes::default(), ms(20)), None);
    }
}
