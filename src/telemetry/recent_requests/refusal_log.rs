//! Logs the start and the end of each wave of refused requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokenweir_request::record::{Outcome, RequestRecord};

/// Logs waves of refused requests: one line for the first refused request, and one line with the
/// counts after the last one.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// The current wave of refused requests. `None`: no request was refused in the last
    /// [`WAVE_QUIET_PERIOD`].
    wave: Option<RefusalWave>,
}

/// A period in which requests are refused.
#[derive(Debug)]
struct RefusalWave {
    began_at: Instant,
    last_refusal_at: Instant,
    /// Number of requests that ended since the wave began.
    requests: u64,
    /// Number of requests that were refused since the wave began.
    refused: u64,
    /// Number of refused requests by reason.
    refused_by_reason: BTreeMap<&'static str, u64>,
}

/// The counts of a wave that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndedWave {
    pub(super) seconds: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The number of refused requests by reason, such as `no_backend 3, saturated 12`.
    pub(super) reasons: String,
}

/// A wave ends when no request was refused for this time.
const WAVE_QUIET_PERIOD: Duration = Duration::from_secs(10);

impl RefusalLog {
    /// Counts an ended request. Logs the first refused request of a wave. Returns whether the
    /// request is the first one of a wave.
    pub(super) fn record(&mut self, record: &RequestRecord, ended_at: Instant) -> bool {
        let is_refused = record.outcome == Outcome::Rejected;
        let is_first = is_refused && self.wave.is_none();
        let reason = record.refusal.unwrap_or("unknown");
        if is_first {
            let request_id = record.request_id.as_str();
            tracing::warn!(reason, request_id, "requests are refused: this is the first one");
            self.wave = Some(RefusalWave {
                began_at: ended_at,
                last_refusal_at: ended_at,
                requests: 0,
                refused: 0,
                refused_by_reason: BTreeMap::new(),
            });
        }
        if let Some(wave) = &mut self.wave {
            wave.requests += 1;
            if is_refused {
                wave.refused += 1;
                wave.last_refusal_at = wave.last_refusal_at.max(ended_at);
                *wave.refused_by_reason.entry(reason).or_default() += 1;
            }
        }
        is_first
    }

    /// Logs the end of the wave if no request was refused for [`WAVE_QUIET_PERIOD`]. Returns the
    /// counts of the ended wave. `None`: no wave has ended.
    pub(super) fn end_wave(&mut self, now: Instant) -> Option<EndedWave> {
        let is_over = |wave: &mut RefusalWave| {
            now.saturating_duration_since(wave.last_refusal_at) >= WAVE_QUIET_PERIOD
        };
        let ended = self.wave.take_if(is_over)?.into_ended();
        let EndedWave { seconds, requests, refused, reasons } = &ended;
        tracing::info!(seconds, requests, refused, reasons, "requests are not refused any more");
        Some(ended)
    }
}

impl RefusalWave {
    fn into_ended(self) -> EndedWave {
        let reasons =
            self.refused_by_reason.iter().map(|(reason, count)| format!("{reason} {count}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let duration = self.last_refusal_at.saturating_duration_since(self.began_at);
        let (requests, refused) = (self.requests, self.refused);
        EndedWave { seconds: duration.as_secs(), requests, refused, reasons }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn a_wave_has_one_line_at_its_begin_and_one_with_counts_at_its_end() {
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
        let ended = EndedWave { seconds: 9, requests: 4, refused: 3, reasons };
        assert_eq!((log.end_wave(at(20)), log.end_wave(at(40))), (Some(ended), None));
        assert!(log.record(&refused("shed"), at(41)), "a new wave");
    }
}
