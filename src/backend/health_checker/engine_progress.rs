//! Detects a stuck engine: the engine has requests, and its token counters do not change. The
//! backend of a stuck engine still responds to `/health` with 200 and still serves `/metrics`.

use std::time::{Duration, Instant};
use tokenweir_core::dialect::EngineLoad;

/// The progress of one engine from scrape to scrape.
#[derive(Debug, Default)]
pub(super) struct EngineProgress {
    /// `None`: the last scrape reported no requests or no token counts, or there was no scrape.
    standstill: Option<Standstill>,
}

/// A series of scrapes in which the engine has requests and the same token counts. The standstill
/// ends at the last successful scrape, because a failed scrape after it does not show that the
/// engine stands still.
#[derive(Debug, Clone, Copy)]
struct Standstill {
    /// The engine's counters of prompt tokens and of generation tokens.
    token_counts: [u64; 2],
    /// Start of the first scrape of the series.
    first_scrape_at: Instant,
    /// Start of the last scrape of the series.
    last_scrape_at: Instant,
}

impl EngineProgress {
    /// Records the load of a successful scrape that started at `scraped_at`.
    pub(super) fn record_load(&mut self, load: &EngineLoad, scraped_at: Instant) {
        let token_counts = load.prompt_tokens.zip(load.generation_tokens);
        let token_counts =
            token_counts.map(|(prompt, generated)| [prompt as u64, generated as u64]);
        let is_nonzero = |count: Option<f64>| count.is_some_and(|count| count >= 1.0);
        let has_requests = is_nonzero(load.running) || is_nonzero(load.waiting);
        let token_counts = token_counts.filter(|_| has_requests);
        self.standstill = token_counts.map(|token_counts| match self.standstill {
            Some(previous) if previous.token_counts == token_counts => {
                Standstill { last_scrape_at: scraped_at, ..previous }
            }
            _ => {
                Standstill { token_counts, first_scrape_at: scraped_at, last_scrape_at: scraped_at }
            }
        });
    }

    /// How long the engine has had requests without progress: the time from the first to the last
    /// scrape of the standstill. Zero if the engine does not stand still.
    pub(super) fn standstill_duration(&self) -> Duration {
        let duration = |standstill: Standstill| {
            standstill.last_scrape_at.saturating_duration_since(standstill.first_scrape_at)
        };
        self.standstill.map(duration).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn load(running: f64, generation_tokens: Option<f64>) -> EngineLoad {
        EngineLoad {
            running: Some(running),
            prompt_tokens: Some(10.0),
            generation_tokens,
            ..EngineLoad::default()
        }
    }

    #[test]
    fn an_engine_stands_still_while_it_has_requests_and_its_counters_do_not_move() {
        let (mut progress, now) = (EngineProgress::default(), clock::now());
        for second in 0..5 {
            progress.record_load(&load(2.0, Some(7.0)), now + second * SECOND);
        }
        assert_eq!(progress.standstill_duration(), 4 * SECOND, "from the first to the last scrape");
        progress.record_load(&load(2.0, Some(8.0)), now + 9 * SECOND);
        assert_eq!(progress.standstill_duration(), Duration::ZERO);
    }

    #[test]
    fn an_engine_with_only_waiting_requests_and_no_progress_stands_still() {
        let (mut progress, now) = (EngineProgress::default(), clock::now());
        let waiting = EngineLoad { waiting: Some(3.0), ..load(0.0, Some(7.0)) };
        progress.record_load(&waiting, now);
        progress.record_load(&waiting, now + 60 * SECOND);
        assert_eq!(progress.standstill_duration(), 60 * SECOND);
    }

    #[test]
    fn an_engine_that_is_idle_or_reports_no_token_counts_is_not_stuck() {
        for load in [load(0.0, Some(7.0)), load(2.0, None)] {
            let (mut progress, now) = (EngineProgress::default(), clock::now());
            progress.record_load(&load, now);
            progress.record_load(&load, now + 60 * SECOND);
            assert_eq!(progress.standstill_duration(), Duration::ZERO);
        }
    }
}
