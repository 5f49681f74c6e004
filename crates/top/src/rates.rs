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
    pub(super) fn on_document(&mut self, document: &GatewaySnapshot) {
        let now = document.uptime_seconds;
        if self.0.back().is_some_and(|(before, _)| *before > now) {
            // A smaller uptime means that the gateway was restarted.
            self.0.clear();
        }
        self.0.push_back((now, document.totals));
        let max_age = RATE_WINDOW_SECONDS + MIN_RATE_SPAN_SECONDS;
        while self
            .0
            .pop_front_if(|(then, _)| now - *then > max_age)
            .is_some()
        {}
    }

    /// The number of ended requests and of output tokens per second, as means over the last seconds. While the
    /// snapshots cover less than half a second, the means are over the last minute. `None`: the gateway has
    /// just started.
    pub(super) fn per_second(&self, document: &GatewaySnapshot) -> Option<Rates> {
        if let Some((then, before)) = self.0.front()
            && let Some((now, last)) = self.0.back()
            && now - then >= MIN_RATE_SPAN_SECONDS
        {
            let requests = last.requests.saturating_sub(before.requests);
            let output_tokens = last.output_tokens.saturating_sub(before.output_tokens);
            return Rates::new(requests, output_tokens, now - then);
        }
        let minute = &document.last_minute;
        Rates::new(minute.requests, minute.output_tokens, minute.seconds)
    }
}

/// Rates per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) output_tokens: f64,
}

impl Rates {
    fn new(requests: u64, output_tokens: u64, elapsed: f64) -> Option<Self> {
        (elapsed > 0.0).then(|| Self {
            requests: requests as f64 / elapsed,
            output_tokens: output_tokens as f64 / elapsed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::LastMinute;

    fn snapshot_at(uptime_seconds: f64, requests: u64) -> GatewaySnapshot {
        let last_minute = LastMinute {
            seconds: 10.0,
            requests: 50,
            output_tokens: 70,
            ..LastMinute::default()
        };
        let totals = RequestTotals {
            requests,
            output_tokens: 10 * requests,
        };
        GatewaySnapshot {
            uptime_seconds,
            totals,
            last_minute,
            ..GatewaySnapshot::default()
        }
    }

    #[test]
    fn one_snapshot_gives_the_last_minute() {
        let mut rates = TotalRates::default();
        let first = snapshot_at(100.0, 1_000);
        rates.on_document(&first);
        assert_eq!(
            rates.per_second(&first),
            Some(Rates {
                requests: 5.0,
                output_tokens: 7.0
            })
        );
        for second in 1..=10 {
            let requests = 1_000 + 4 * u64::from(second as u32);
            rates.on_document(&snapshot_at(100.0 + f64::from(second), requests));
        }
        let last = rates.per_second(&snapshot_at(110.0, 1_040));
        assert_eq!(
            last,
            Some(Rates {
                requests: 4.0,
                output_tokens: 40.0
            })
        );
        assert!(rates.0.len() <= 6);
    }

    #[test]
    fn a_restarted_gateway_has_no_negative_rate() {
        let mut rates = TotalRates::default();
        rates.on_document(&snapshot_at(100.0, 1_000));
        rates.on_document(&snapshot_at(1.0, 3));
        rates.on_document(&snapshot_at(2.0, 5));
        let rates = rates.per_second(&snapshot_at(2.0, 5)).unwrap();
        assert!((rates.requests - 2.0).abs() < 1e-9);
    }
}
