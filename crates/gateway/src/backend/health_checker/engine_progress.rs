//! Detects a stuck engine: an engine that has requests, while nothing on its metrics page shows work. The
//! backend of a stuck engine still answers `/health` with 200 and still serves `/metrics`.
//!
//! A change of any value on the page counts as progress, including metrics that the gateway does not know.
//! Output in a response through this gateway also counts as progress, because the page may be cached or belong
//! to another process of the backend.

use std::time::{Duration, Instant};
use tokenweir_engine::dialect::{EngineLoad, TokenCounts};

/// The progress of one engine from scrape to scrape.
#[derive(Debug, Default)]
pub(super) struct EngineProgress {
    /// The current standstill. `None`: no scrape yet, or the last scrape reported no requests or no token
    /// counts.
    standstill: Option<Standstill>,
}

/// Successive scrapes in which the engine has requests and its values do not change. The standstill
/// lasts from the first to the last of these scrapes. A failed scrape does not prolong it, because it
/// does not show that the engine stands still.
#[derive(Debug, Clone, Copy)]
struct Standstill {
    /// The engine's counters of prompt tokens and of generation tokens.
    token_counts: TokenCounts,
    /// A hash of the other values of the engine. `None`: not computed, because the token counts have changed
    /// since the previous page.
    values: Option<u64>,
    first_scrape_at: Instant,
    last_scrape_at: Instant,
}

impl EngineProgress {
    /// Records the load of a successful scrape that started at `scraped_at`. `values`: a hash of the values of
    /// the engine, present if the token counts have not changed since the previous page. `has_output`: whether
    /// a response had output since the last scrape.
    pub(super) fn record_load(
        &mut self,
        load: &EngineLoad,
        values: Option<u64>,
        has_output: bool,
        scraped_at: Instant,
    ) {
        self.standstill = load.token_counts_if_busy().map(|token_counts| {
            let is_same = |previous: &Standstill| {
                let moved = previous
                    .values
                    .zip(values)
                    .is_some_and(|(before, now)| before != now);
                previous.token_counts == token_counts && !moved && !has_output
            };
            let previous = self.standstill.filter(is_same);
            let first_scrape_at = previous.map_or(scraped_at, |previous| previous.first_scrape_at);
            Standstill {
                token_counts,
                values,
                first_scrape_at,
                last_scrape_at: scraped_at,
            }
        });
    }

    /// How long the engine has had requests without progress: the time from the first to the last scrape of the
    /// standstill. Zero without a standstill.
    pub(super) fn standstill_duration(&self) -> Duration {
        let duration = |standstill: Standstill| {
            standstill
                .last_scrape_at
                .saturating_duration_since(standstill.first_scrape_at)
        };
        self.standstill.map(duration).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the standstill in seconds after scrapes at intervals of one second. Each scrape has the count of
    /// generation tokens, the hash of the values, and whether a response had output since the previous scrape.
    fn standstill(waiting: f64, scrapes: &[(Option<f64>, Option<u64>, bool)]) -> u64 {
        let mut progress = EngineProgress::default();
        let start = clock::now();
        for ((generation_tokens, values, has_output), second) in scrapes.iter().copied().zip(0..) {
            let load = EngineLoad {
                running: Some(0.0),
                waiting: Some(waiting),
                prompt_tokens: Some(10.0),
                generation_tokens,
                ..EngineLoad::default()
            };
            progress.record_load(&load, values, has_output, start + second * SECOND);
        }
        progress.standstill_duration().as_secs()
    }

    #[test]
    fn unchanged_metrics_and_output_are_a_standstill() {
        let same = (Some(7.0), Some(1), false);
        assert_eq!(standstill(3.0, &[(Some(7.0), None, false), same, same]), 2);
        for moved in [
            (Some(8.0), None, false),
            (Some(7.0), Some(2), false),
            (Some(7.0), Some(1), true),
        ] {
            assert_eq!(standstill(3.0, &[same, same, moved]), 0, "{moved:?}");
        }
        assert_eq!(
            standstill(3.0, &[same, (Some(7.0), Some(1), true), same, same]),
            2
        );
        assert_eq!(standstill(0.0, &[same, same]), 0, "it is idle");
        assert_eq!(
            standstill(3.0, &[(None, None, false); 3]),
            0,
            "it reports no token counts"
        );
    }
}
