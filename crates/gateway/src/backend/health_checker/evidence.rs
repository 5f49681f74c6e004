//! The rule that decides when a backend is down. The evidence comes from probes (requests for `/health` and the
//! metrics page) and from the requests of clients.
//!
//! - An explicit answer decides at once: a refused connection, or a 500, 502 or 503 from `/health`. The process
//!   or its engine is dead, or the server drains.
//! - Silence does not decide at once. A probe that is late, breaks off or gets another answer does not show
//!   whether the engine is dead or busy. The backend is down after [`UNANSWERED_PROBES`] such probes in a row
//!   over at least [`MIN_SILENCE`], without a sign of life in between: output of any response, or a readable
//!   metrics page.
//! - A backend that is down by silence is only suspected. It gets the requests that no other backend can serve,
//!   and is up again at its first sign of life.

use http::StatusCode;
use std::time::{Duration, Instant};
use tokenweir_net::client;
use tokenweir_net::page_fetcher::FetchError;

/// The result of a health check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HealthAnswer {
    Healthy,
    /// No process accepts connections. The text is the error.
    Refused(String),
    /// The backend answers that it cannot serve. The text names the status.
    Failing(String),
    /// No response came in time. The text is the error.
    Silent(String),
    /// The response is inconclusive: another status, or an early end. The text names it.
    Unclear(String),
    /// The gateway lacked sockets or ports, so no request was sent. The text names the problem.
    NotSent(String),
}

/// The meaning of a scrape for the process of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) enum ScrapeResult {
    /// The metrics page of an engine arrived.
    Readable,
    /// A response arrived that is not the metrics page of an engine.
    Unreadable,
    /// No complete response arrived.
    Unanswered,
    /// No request was sent, because the last scrape was slow.
    Skipped,
}

/// The run of consecutive probes that got no usable answer.
#[derive(Debug, Default)]
pub(super) struct Silence {
    unanswered: u32,
    /// When the first of these probes was sent. `None`: the last probe got a usable answer.
    since: Option<Instant>,
    is_down: bool,
}

/// Number of probes without answer after which a silent backend is down.
const UNANSWERED_PROBES: u32 = 3;
/// Time without a sign of life after which a silent backend is down. Responses of an engine can be seconds
/// apart, and probes can fail at once, so their number alone does not suffice.
const MIN_SILENCE: Duration = Duration::from_secs(5);

impl HealthAnswer {
    /// Reads the result of a request for `path`.
    pub(super) fn of(path: &str, result: Result<StatusCode, FetchError>) -> Self {
        match result {
            Ok(status) if status.is_success() => Self::Healthy,
            Ok(status) => {
                let reason = format!("{path} answered {}", status.as_u16());
                let is_failing = matches!(status.as_u16(), 500 | 502 | 503);
                if is_failing {
                    Self::Failing(reason)
                } else {
                    Self::Unclear(reason)
                }
            }
            Err(FetchError::Exhausted(problem)) => Self::NotSent(problem),
            Err(FetchError::Connect(reason)) if client::is_connect_timeout(&reason) => {
                Self::Silent(reason)
            }
            Err(FetchError::Connect(reason)) => Self::Refused(reason),
            Err(error) => {
                let reason = format!("{path}: {}", error.describe());
                let is_late = matches!(error, FetchError::Timeout { .. });
                if is_late {
                    Self::Silent(reason)
                } else {
                    Self::Unclear(reason)
                }
            }
        }
    }
}

impl Silence {
    /// Records at `now` that a probe sent at `sent_at` got no usable answer. `last_output_at`: when a response
    /// of the backend last had output.
    pub(super) fn on_unanswered(
        &mut self,
        sent_at: Instant,
        last_output_at: Option<Instant>,
        now: Instant,
    ) {
        if last_output_at.is_some_and(|at| at >= sent_at) {
            *self = Self::default();
            return;
        }
        if self
            .since
            .is_none_or(|since| last_output_at.is_some_and(|at| at > since))
        {
            *self = Self {
                since: Some(sent_at),
                ..Self::default()
            };
        }
        self.unanswered = self.unanswered.saturating_add(1);
        let silence = self.since.map(|since| now.saturating_duration_since(since));
        self.is_down |= self.unanswered >= UNANSWERED_PROBES && silence >= Some(MIN_SILENCE);
    }

    /// Records that the backend is down until a sign of life, regardless of the number of probes.
    pub(super) fn set_down(&mut self) {
        self.is_down = true;
    }

    /// Records a sign of life, which ends the silence.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether the last probe got no usable answer, and no output followed.
    pub(super) const fn has_begun(&self) -> bool {
        self.unanswered > 0
    }

    /// Whether enough probes in a row got no usable answer, so that the backend is down.
    pub(super) const fn is_down(&self) -> bool {
        self.is_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    /// Whether a backend is down after `probes` unanswered probes, sent every two seconds and each pending for
    /// two seconds, with outputs at the seconds `outputs`.
    fn is_down_after(probes: u64, outputs: &[u64]) -> bool {
        let at = |second| clock::epoch() + Duration::from_secs(second);
        let mut silence = Silence::default();
        for probe in 0..probes {
            let sent = 2 * probe;
            let last_output = outputs
                .iter()
                .copied()
                .filter(|output| *output <= sent + 2)
                .max();
            silence.on_unanswered(at(sent), last_output.map(at), at(sent + 2));
        }
        silence.is_down()
    }

    #[test]
    fn three_unanswered_probes_without_output_show_an_outage() {
        assert!(!is_down_after(2, &[]));
        assert!(is_down_after(3, &[]));
        assert!(!is_down_after(3, &[1]), "an output during the first probe");
        assert!(!is_down_after(3, &[6]), "an output during the last probe");
        let each_five_seconds: Vec<u64> = (0..=24).map(|index| 5 * index).collect();
        assert!(!is_down_after(60, &each_five_seconds));
        assert!(
            is_down_after(5, &[3]),
            "the output was before the last three probes"
        );
    }

    #[test]
    fn failing_probes_show_an_outage_after_5_s() {
        let mut silence = Silence::default();
        let start = clock::epoch();
        for tenth in 0..60 {
            let now = start + Duration::from_millis(100 * tenth);
            silence.on_unanswered(now, None, now);
            assert_eq!(silence.is_down(), tenth >= 50, "{tenth}");
        }
        silence.on_unanswered(
            start + MIN_SILENCE,
            Some(start + MIN_SILENCE),
            start + MIN_SILENCE,
        );
        assert!(!silence.is_down() && !silence.has_begun());
        silence.set_down();
        assert!(silence.is_down());
    }

    #[test]
    fn only_a_refusal_or_failing_health_shows_death() {
        let of_status = |code| HealthAnswer::of("/health", Ok(StatusCode::from_u16(code).unwrap()));
        for code in [200, 204] {
            assert_eq!(of_status(code), HealthAnswer::Healthy, "{code}");
        }
        for code in [500, 502, 503] {
            assert!(
                matches!(of_status(code), HealthAnswer::Failing(_)),
                "{code}"
            );
        }
        for code in [302, 401, 404, 405, 429, 501, 504] {
            assert!(
                matches!(of_status(code), HealthAnswer::Unclear(_)),
                "{code}"
            );
        }
        let refused = FetchError::Connect("Connection refused (os error 111)".into());
        assert!(matches!(
            HealthAnswer::of("/health", Err(refused)),
            HealthAnswer::Refused(_)
        ));
        let late = HealthAnswer::of(
            "/health",
            Err(FetchError::Timeout {
                has_connected: true,
            }),
        );
        assert!(matches!(late, HealthAnswer::Silent(_)));
        for error in [FetchError::Closed, FetchError::Truncated] {
            assert!(matches!(
                HealthAnswer::of("/health", Err(error)),
                HealthAnswer::Unclear(_)
            ));
        }
    }
}
