//! The phases of a request's time. The gateway measures some of them. For the other phases, the
//! engine reports its times in the response, or the gateway estimates them from the mean times of
//! recent requests.

use crate::record::{RecentEngineTimes, RequestRecord};
use std::time::Duration;

/// A phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// In the admission queue of the gateway.
    GatewayQueue,
    /// In the gateway: request body read → handed to the connection of the last attempt, minus the
    /// time in the admission queue and in failed attempts.
    Gateway,
    /// In the attempts before the last one, which failed.
    FailedAttempts,
    /// Network and other overhead: (sent → first output) − engine queue − prefill.
    Network,
    /// In the queue of the engine.
    EngineQueue,
    /// Prefill: scheduled → first token.
    Prefill,
    /// Decode: first output → last output.
    Decode,
}

/// The duration of one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseDuration {
    /// The phase.
    pub phase: RequestPhase,
    /// Duration of the phase.
    pub took: Duration,
    /// The duration is an estimate from the times of other requests.
    pub is_estimated: bool,
}

/// The known phases of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestPhases([Option<PhaseDuration>; RequestPhase::ALL.len()]);

// === impl RequestPhase ===

impl RequestPhase {
    /// All phases in order of time. The time of the network phase is both before and after the
    /// phases of the engine.
    pub const ALL: [Self; 7] = [
        Self::GatewayQueue,
        Self::Gateway,
        Self::FailedAttempts,
        Self::Network,
        Self::EngineQueue,
        Self::Prefill,
        Self::Decode,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GatewayQueue => "gateway_queue",
            Self::Gateway => "gateway",
            Self::FailedAttempts => "failed_attempts",
            Self::Network => "network",
            Self::EngineQueue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

// === impl RequestPhases ===

impl RequestPhases {
    /// The known phases of a request.
    pub fn from_record(record: &RequestRecord) -> Self {
        let engine = record.observed.engine_times.unwrap_or_default();
        let mut phases = Self::default();
        phases.set(RequestPhase::GatewayQueue, record.gateway_queue_wait(), false);
        phases.set(RequestPhase::Gateway, record.overhead(), false);
        phases.set(RequestPhase::FailedAttempts, record.failed_attempts(), false);
        phases.set(RequestPhase::Decode, engine.decode.or_else(|| record.decode()), false);
        let ttft = record.upstream_ttft();
        let (times, is_estimated) = match (engine.queue, engine.prefill, ttft) {
            // llama.cpp reports no queue time, so the queue time counts as network.
            (queue, Some(prefill), _) => (Some((queue.unwrap_or_default(), prefill)), false),
            (_, None, Some(ttft)) => (estimate_queue_and_prefill(&record.recent, ttft), true),
            _ => (None, true),
        };
        let Some((queue, prefill)) = times else { return phases };
        phases.set(RequestPhase::EngineQueue, Some(queue), is_estimated);
        phases.set(RequestPhase::Prefill, Some(prefill), is_estimated);
        let network = ttft.map(|ttft| ttft.saturating_sub(queue + prefill));
        phases.set(RequestPhase::Network, network, is_estimated);
        phases
    }

    /// One phase. `None`: its duration is unknown.
    pub fn get(&self, phase: RequestPhase) -> Option<PhaseDuration> {
        self.0[phase as usize]
    }

    /// The known phases.
    pub fn iter(&self) -> impl Iterator<Item = PhaseDuration> + '_ {
        self.0.iter().flatten().copied()
    }

    fn set(&mut self, phase: RequestPhase, duration: Option<Duration>, is_estimated: bool) {
        self.0[phase as usize] = duration.map(|took| PhaseDuration { phase, took, is_estimated });
    }
}

/// Estimates queue and prefill time from the backend's recent requests. If the sum of the two
/// exceeds `ttft`, both are scaled down so that the sum equals `ttft`.
fn estimate_queue_and_prefill(
    recent: &RecentEngineTimes,
    ttft: Duration,
) -> Option<(Duration, Duration)> {
    let (queue, prefill) = (recent.queue?, recent.prefill?);
    let sum = queue + prefill;
    if sum <= ttft {
        return Some((queue, prefill));
    }
    let queue = ttft.mul_f64(queue.as_secs_f64() / sum.as_secs_f64());
    Some((queue, ttft.saturating_sub(queue)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::EngineTimes;
    use crate::record::fixtures::{at, streamed};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Name of the phase, milliseconds, and whether they are estimated.
    fn phase_rows(record: &RequestRecord) -> Vec<(&'static str, u128, bool)> {
        let row =
            |span: PhaseDuration| (span.phase.as_str(), span.took.as_millis(), span.is_estimated);
        RequestPhases::from_record(record).iter().map(row).collect()
    }

    #[test]
    fn engine_times_are_exact_and_the_rest_of_the_wait_is_network() {
        let mut record = streamed();
        record.recent = RecentEngineTimes { queue: Some(ms(1)), prefill: Some(ms(1)) };
        record.observed.engine_times =
            Some(EngineTimes { queue: Some(ms(40)), prefill: Some(ms(45)), decode: Some(ms(299)) });
        let expected = [
            ("gateway", 8, false),
            ("network", 5, false),
            ("queue", 40, false),
            ("prefill", 45, false),
            ("decode", 299, false),
        ];
        assert_eq!(phase_rows(&record), expected);
    }

    #[test]
    fn a_wait_for_a_backend_with_capacity_is_not_gateway_time() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.queued = Some(at(accepted, 2));
        record.timings.dequeued = Some(at(accepted, 8));
        let expected = [("gateway_queue", 6, false), ("gateway", 2, false), ("decode", 300, false)];
        assert_eq!(phase_rows(&record), expected);
    }

    #[test]
    fn the_time_of_failed_attempts_is_not_gateway_time() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        let mut failed = record.attempts[0].clone();
        failed.started = at(accepted, 3);
        failed.ended = Some(at(accepted, 9));
        record.attempts.insert(0, failed);
        let expected =
            [("gateway", 2, false), ("failed_attempts", 6, false), ("decode", 300, false)];
        assert_eq!(phase_rows(&record), expected);
    }

    #[test]
    fn without_engine_times_the_times_of_other_requests_are_an_estimate() {
        let mut record = streamed();
        record.recent = RecentEngineTimes { queue: Some(ms(30)), prefill: Some(ms(10)) };
        let expected = [
            ("gateway", 8, false),
            ("network", 50, true),
            ("queue", 30, true),
            ("prefill", 10, true),
            ("decode", 300, false),
        ];
        assert_eq!(phase_rows(&record), expected);
    }

    #[test]
    fn without_engine_times_and_estimates_only_gateway_phases_are_known() {
        assert_eq!(phase_rows(&streamed()), [("gateway", 8, false), ("decode", 300, false)]);
        let mut record = streamed();
        record.timings.sent = None;
        record.timings.first_output = None;
        assert_eq!(phase_rows(&record), []);
    }

    #[test]
    fn without_a_queue_time_the_wait_counts_as_network() {
        let mut record = streamed();
        record.observed.engine_times =
            Some(EngineTimes { prefill: Some(ms(70)), ..EngineTimes::default() });
        let phases = RequestPhases::from_record(&record);
        let took = |phase| phases.get(phase).map(|span| span.took);
        assert_eq!(
            (took(RequestPhase::Network), took(RequestPhase::Prefill)),
            (Some(ms(20)), Some(ms(70)))
        );
        assert_eq!(
            (took(RequestPhase::EngineQueue), took(RequestPhase::Decode)),
            (Some(ms(0)), Some(ms(300)))
        );
    }

    #[test]
    fn a_response_that_is_no_stream_has_the_phases_of_its_engine() {
        let mut record = streamed();
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.observed.engine_times =
            Some(EngineTimes { queue: Some(ms(4)), prefill: Some(ms(5)), decode: Some(ms(6)) });
        let expected = [
            ("gateway", 8, false),
            ("queue", 4, false),
            ("prefill", 5, false),
            ("decode", 6, false),
        ];
        assert_eq!(phase_rows(&record), expected);
    }

    #[test]
    fn estimated_phases_never_exceed_the_time_to_first_output() {
        let recent = RecentEngineTimes { queue: Some(ms(30)), prefill: Some(ms(10)) };
        assert_eq!(estimate_queue_and_prefill(&recent, ms(100)), Some((ms(30), ms(10))));
        assert_eq!(estimate_queue_and_prefill(&recent, ms(20)), Some((ms(15), ms(5))));
        assert_eq!(estimate_queue_and_prefill(&RecentEngineTimes::default(), ms(20)), None);
    }
}
