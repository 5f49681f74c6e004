//! Request and token rates, computed from the totals of several snapshots of the gateway.

use std::collections::VecDeque;
use tokenweir_api::GatewaySnapshot;
use tokenweir_api::RequestTotals;

/// The request and token totals of the snapshots of the last seconds, each with the uptime of the gateway in
/// seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TotalRates(VecDeque<(f64, RequestTotals)>);

/// Time over which rates are averaged, in seconds.
const RATE_WINDOW_SECONDS: f64 = 5.0;
/// Minimum time between the first and the last snapshot that a rate needs, in seconds.
const MIN_RATE_SPAN_SECONDS: f64 = 0.5;

impl TotalRates {
    /// Adds the totals of a snapshot.
    pub(super) fn on_document(&mut self, document: &GatewaySnapshot) {
        let now = document.uptime_seconds;
        if self.0.back().is_some_and(|(before, _)| *before > now) {
            // A smaller uptime means that the gateway was restarted.
            self.0.clear();
        }
        self.0.push_back((now, document.totals));
        let max_age = RATE_WINDOW_SECONDS + MIN_RATE_SPAN_SECONDS;
        while self.0.pop_front_if(|(then, _)| now - *then > max_age).is_some() {}
    }

    /// The number of ended requests and of output tokens per second. The rates are means over the last
    /// seconds. While the snapshots cover less than half a second, they are means over the last minute.
    /// `None`: the gateway has just started.
    pub(super) fn per_second(&self, document: &GatewaySnapshot) -> [Option<f64>; 2] {
        let first_and_last = self.0.front().zip(self.0.back());
        let totals = first_and_last.map(|(first, last)| (last.0 - first.0, first.1, last.1));
        let (elapsed, growth) = match totals {
            Some((elapsed, before, now)) if elapsed >= MIN_RATE_SPAN_SECONDS => (
                elapsed,
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
        growth.map(|growth| (elapsed > 0.0).then(|| growth as f64 / elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::LastMinute;

    fn snapshot_at(uptime_seconds: f64, requests: u64) -> GatewaySnapshot {
        let last_minute =
            LastMinute { seconds: 10.0, requests: 50, output_tokens: 70, ..LastMinute::default() };
        let totals = RequestTotals { requests, output_tokens: 10 * requests };
        GatewaySnapshot { uptime_seconds, totals, last_minute, ..GatewaySnapshot::default() }
    }

    #[test]
    fn a_rate_is_a_mean_over_the_last_seconds_or_over_the_last_minute_with_one_snapshot() {
        let mut rates = TotalRates::default();
        let first = snapshot_at(100.0, 1_000);
        rates.on_document(&first);
        assert_eq!(rates.per_second(&first), [Some(5.0), Some(7.0)]);
        for second in 1..=10 {
            let requests = 1_000 + 4 * u64::from(second as u32);
            rates.on_document(&snapshot_at(100.0 + f64::from(second), requests));
        }
        assert_eq!(rates.per_second(&snapshot_at(110.0, 1_040)), [Some(4.0), Some(40.0)]);
        assert!(rates.0.len() <= 6);
    }

    #[test]
    fn a_restarted_gateway_has_no_negative_rate() {
        let mut rates = TotalRates::default();
        rates.on_document(&snapshot_at(100.0, 1_000));
        rates.on_document(&snapshot_at(1.0, 3));
        rates.on_document(&snapshot_at(2.0, 5));
        assert_eq!(rates.per_second(&snapshot_at(2.0, 5))[0], Some(2.0));
    }
}
