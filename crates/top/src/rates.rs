//! How fast totals grow, from what the gateway said at several moments.

use std::collections::VecDeque;
use tokenweir_api::Document;
use tokenweir_api::Totals;

/// The last moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rates(VecDeque<(f64, Totals)>);

/// Seconds over which rates are means.
const WINDOW: f64 = 5.0;
/// Moments nearer to each other say nothing.
const LEAST: f64 = 0.5;

impl Rates {
    /// The gateway said this.
    pub(super) fn on_document(&mut self, document: &Document) {
        let now = document.uptime_seconds;
        if self.0.back().is_some_and(|(before, _)| *before > now) {
            // It has been started again.
            self.0.clear();
        }
        self.0.push_back((now, document.totals));
        while self.0.front().is_some_and(|(then, _)| now - then > WINDOW + LEAST) {
            self.0.pop_front();
        }
    }

    /// Requests that ended and output tokens, in a second: lately, or in the last minute as long
    /// as only one moment is known.
    pub(super) fn of(&self, document: &Document) -> [Option<f64>; 2] {
        let ends = self.0.front().zip(self.0.back());
        let known = ends.map(|(first, last)| (last.0 - first.0, first.1, last.1));
        let (passed, grown) = match known {
            Some((passed, before, now)) if passed >= LEAST => (
                passed,
                [
                    now.requests.saturating_sub(before.requests),
                    now.output_tokens.saturating_sub(before.output_tokens),
                ],
            ),
            _ => {
                let minute = &document.last_minute;
                (minute.seconds, [minute.requests, minute.output_tokens])
            }
        };
        grown.map(|grown| (passed > 0.0).then(|| grown as f64 / passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::LastMinute;

    fn at(uptime_seconds: f64, requests: u64) -> Document {
        let last_minute =
            LastMinute { seconds: 10.0, requests: 50, output_tokens: 70, ..LastMinute::default() };
        let totals = Totals { requests, output_tokens: 10 * requests };
        Document { uptime_seconds, totals, last_minute, ..Document::default() }
    }

    #[test]
    fn a_rate_is_of_the_last_seconds_and_before_two_moments_that_of_the_minute() {
        let mut rates = Rates::default();
        let first = at(100.0, 1_000);
        rates.on_document(&first);
        assert_eq!(rates.of(&first), [Some(5.0), Some(7.0)]);
        for second in 1..=10 {
            rates.on_document(&at(100.0 + f64::from(second), 1_000 + 4 * u64::from(second as u32)));
        }
        assert_eq!(rates.of(&at(110.0, 1_040)), [Some(4.0), Some(40.0)]);
        assert!(rates.0.len() <= 6);
    }

    #[test]
    fn a_gateway_that_was_started_again_has_no_negative_rate() {
        let mut rates = Rates::default();
        rates.on_document(&at(100.0, 1_000));
        rates.on_document(&at(1.0, 3));
        rates.on_document(&at(2.0, 5));
        assert_eq!(rates.of(&at(2.0, 5))[0], Some(2.0));
    }
}
