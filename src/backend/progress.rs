//! Whether an engine that has requests gets on with them. One that is stuck still answers
//! `/health` with 200 and still tells its metrics; only its counters stand still.

use std::time::{Duration, Instant};
use tokenweir_core::dialect::Load;

/// The progress of one engine, from page to page.
#[derive(Debug, Default)]
pub(super) struct Progress {
    standing: Option<Standing>,
}

/// Pages in a row on which the engine has requests and the same counts of tokens. Only pages can
/// prove a standstill, so its length ends with the last page: the time after it, in which pages
/// may have failed, does not count.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// Tokens that it has computed and made.
    tokens: [u64; 2],
    /// When the first page was asked for.
    since: Instant,
    /// When the last page was asked for.
    until: Instant,
}

impl Progress {
    /// A page that was asked for at this moment has this load.
    pub(super) fn on_load(&mut self, load: &Load, at: Instant) {
        let tokens = load.prompt_tokens.zip(load.generation_tokens);
        let tokens = tokens.map(|(computed, made)| [computed as u64, made as u64]);
        let has_some = |count: Option<f64>| count.is_some_and(|count| count >= 1.0);
        let has_requests = has_some(load.running) || has_some(load.waiting);
        self.standing = tokens.filter(|_| has_requests).map(|tokens| match self.standing {
            Some(before) if before.tokens == tokens => Standing { until: at, ..before },
            _ => Standing { tokens, since: at, until: at },
        });
    }

    /// How long it has had requests and made no token, from the first to the last page of a row.
    pub(super) fn standstill(&self) -> Duration {
        let length = |it: Standing| it.until.saturating_duration_since(it.since);
        self.standing.map(length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn load(running: f64, made: Option<f64>) -> Load {
        Load {
            running: Some(running),
            prompt_tokens: Some(10.0),
            generation_tokens: made,
            ..Load::default()
        }
    }

    #[test]
    fn an_engine_stands_still_while_it_has_requests_and_its_counters_do_not_move() {
        let (mut progress, now) = (Progress::default(), clock::now());
        for second in 0..5 {
            progress.on_load(&load(2.0, Some(7.0)), now + second * SECOND);
        }
        assert_eq!(progress.standstill(), 4 * SECOND, "only pages prove a standstill");
        progress.on_load(&load(2.0, Some(8.0)), now + 9 * SECOND);
        assert_eq!(progress.standstill(), Duration::ZERO);
    }

    #[test]
    fn requests_that_only_wait_do_so_in_vain_as_well() {
        let (mut progress, now) = (Progress::default(), clock::now());
        let waiting = Load { waiting: Some(3.0), ..load(0.0, Some(7.0)) };
        progress.on_load(&waiting, now);
        progress.on_load(&waiting, now + 60 * SECOND);
        assert_eq!(progress.standstill(), 60 * SECOND);
    }

    #[test]
    fn an_engine_that_is_idle_or_does_not_tell_is_not_stuck() {
        for load in [load(0.0, Some(7.0)), load(2.0, None)] {
            let (mut progress, now) = (Progress::default(), clock::now());
            progress.on_load(&load, now);
            progress.on_load(&load, now + 60 * SECOND);
            assert_eq!(progress.standstill(), Duration::ZERO);
        }
    }
}
