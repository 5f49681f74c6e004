//! Logs the start and the end of each wave of refused requests. A wave is a period in which the gateway refuses
//! requests. The wave ends when no request has been refused for ten seconds.

use std::collections::BTreeMap;
use std::time::Instant;
use tokenweir_protocol::event_period::EventPeriod;
use tokenweir_request::record::{Outcome, RequestRecord};

/// Logs waves of refused requests: one line for the first refused request of a wave, and one line
/// with the counts at the end of the wave.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// The start of the current wave of refused requests, and the time of its last refusal.
    period: EventPeriod,
    /// Number of all requests, refused or not, that ended since the current wave of refused
    /// requests began.
    requests: u64,
    /// Number of refused requests of the current wave, by the reason of the refusal.
    refused_by_reason: BTreeMap<&'static str, u64>,
}

/// The counts of a wave of refused requests that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndedWave {
    pub(super) seconds: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The number of refused requests by reason, such as `no_backend 3, saturated 12`.
    pub(super) reasons: String,
}

impl RefusalLog {
    /// Counts an ended request. If it is the first refused request of a wave, logs the wave and returns true.
    pub(super) fn record(&mut self, record: &RequestRecord, ended_at: Instant) -> bool {
        let is_refused = record.outcome == Outcome::Rejected;
        let is_first = is_refused && self.period.record(ended_at);
        let reason = record.refusal.unwrap_or("unknown");
        if is_first {
            let request_id = record.request_id.as_str();
            tracing::warn!(reason, request_id, "the gateway begins to refuse requests");
        }
        self.requests += u64::from(self.period.is_current());
        if is_refused {
            *self.refused_by_reason.entry(reason).or_default() += 1;
        }
        is_first
    }

    /// Logs the end of the wave if no request was refused for ten seconds. Returns the counts of the ended
    /// wave. `None`: no wave has ended.
    pub(super) fn end_wave(&mut self, now: Instant) -> Option<EndedWave> {
        let seconds = self.period.end(now)?.as_secs();
        let Self {
            requests,
            refused_by_reason,
            ..
        } = std::mem::take(self);
        let refused = refused_by_reason.values().sum();
        let reasons = refused_by_reason
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        tracing::info!(
            seconds,
            requests,
            refused,
            reasons,
            "the gateway stops refusing requests"
        );
        Some(EndedWave {
            seconds,
            requests,
            refused,
            reasons,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn start_and_end_of_refusals_are_logged() {
        let refused = |reason| RequestRecord {
            outcome: Outcome::Rejected,
            refusal: Some(reason),
            ..streamed()
        };
        let start = streamed().timings.ended.unwrap();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut log = RefusalLog::default();
        assert!(!log.record(&streamed(), at(0)) && log.end_wave(at(0)).is_none());
        assert!(log.record(&refused("saturated"), at(1)));
        assert!(!log.record(&refused("saturated"), at(9)));
        assert!(!log.record(&refused("no_backend"), at(10)) && !log.record(&streamed(), at(15)));
        assert_eq!(log.end_wave(at(19)), None);
        let reasons = "no_backend 1, saturated 2".to_owned();
        let ended = EndedWave {
            seconds: 9,
            requests: 4,
            refused: 3,
            reasons,
        };
        assert_eq!(
            (log.end_wave(at(20)), log.end_wave(at(40))),
            (Some(ended), None)
        );
        assert!(log.record(&refused("shed"), at(41)), "a new wave");
    }
}
