//! What the streams of a backend taught about its events: whether they have usage that nobody
//! asked for, and how many tokens an event has.

use super::Backend;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokenweir_core::dialect::Server;
use tokenweir_core::record::{Observed, UsageEvent};

/// What was learned. Threads that learn at the same time may lose an observation.
#[derive(Debug, Default)]
pub(super) struct StreamEvents {
    /// The configured share of streams for which the counts of every event are asked for, as bits
    /// of an `f64`.
    share: AtomicU64,
    usage: AtomicU8,
    /// Exponentially weighted means over streams, as bits of an `f64`; both 0 before the first
    /// stream. Their ratio weighs each stream by its length.
    tokens: AtomicU64,
    events: AtomicU64,
}

/// Nothing is known of the usage in events.
const UNKNOWN: u8 = 0;
/// Clients that do not ask for usage get none.
const ON_REQUEST: u8 = 1;
/// Events have usage whether it was asked for or not (`--enable-force-include-usage`).
const FORCED: u8 = 2;
/// The usage in events cannot be removed.
const UNREMOVABLE: u8 = 3;

/// How much of a mean one stream makes.
const STEP: f64 = 0.1;
/// An event of a stream has so many tokens at least and at most. Below one: a server may send
/// several events for a token, such as the first ones of a tool call.
const TOKENS_PER_EVENT: std::ops::RangeInclusive<f64> = 0.25..=1024.0;

impl Backend {
    /// The share of its streams, from 0 to 1, for which the counts of every event are asked for too.
    pub fn with_continuous_usage(self, share: f64) -> Self {
        self.stream_events.share.store(share.to_bits(), Ordering::Relaxed);
        self
    }

    /// The share of streams for which it is asked for the counts of every event, where it is asked
    /// for usage at all. 0 for servers other than vLLM, and until a stream has shown that clients
    /// who do not ask for usage get none: what must be removed is not known before.
    pub fn continuous_usage(&self) -> f64 {
        let is_known = self.stream_events.has_usage_on_request_only();
        let is_vllm = || self.server() == Some(Server::Vllm);
        if is_known && is_vllm() { get(&self.stream_events.share) } else { 0.0 }
    }
}

impl StreamEvents {
    /// Takes the configured share of another one.
    pub(super) fn take_share(&self, other: &Self) {
        self.share.store(other.share.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Learns from an answer that has ended.
    pub(super) fn on_answer(&self, observed: &Observed) {
        let usage = match observed.usage_event {
            // With usage in every event on request, one that is forced looks the same.
            Some(UsageEvent::Stripped) if !observed.has_continuous_usage => Some(ON_REQUEST),
            Some(UsageEvent::Forced) => Some(FORCED),
            Some(UsageEvent::Unremoved) => Some(UNREMOVABLE),
            _ => None,
        };
        if let Some(usage) = usage
            && self.usage.load(Ordering::Relaxed) != UNREMOVABLE
        {
            self.usage.store(usage, Ordering::Relaxed);
        }
        if let Some((tokens, events)) = observed.counted_events() {
            let is_first = get(&self.events) <= 0.0;
            let step = if is_first { 1.0 } else { STEP };
            approach(&self.tokens, tokens as f64, step);
            approach(&self.events, events as f64, step);
        }
    }

    /// The server process has started anew, perhaps with other flags.
    pub(super) fn on_restart(&self) {
        self.usage.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Whether clients that do not ask for usage get none.
    pub(super) fn has_usage_on_request_only(&self) -> bool {
        self.usage.load(Ordering::Relaxed) == ON_REQUEST
    }

    /// Tokens in an event with output; 1 before the first stream whose tokens the engine counted.
    pub(super) fn tokens_per_event(&self) -> f64 {
        let (tokens, events) = (get(&self.tokens), get(&self.events));
        let ratio = if events > 0.0 { tokens / events } else { 1.0 };
        ratio.clamp(*TOKENS_PER_EVENT.start(), *TOKENS_PER_EVENT.end())
    }
}

fn get(mean: &AtomicU64) -> f64 {
    f64::from_bits(mean.load(Ordering::Relaxed))
}

fn approach(mean: &AtomicU64, value: f64, step: f64) {
    let before = get(mean);
    mean.store((before + step * (value - before)).to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::openai::Usage;
    use tokenweir_core::record::UsageSource;

    /// A stream of so many events whose tokens the engine counted.
    fn counted(output: u64, events: u64) -> Observed {
        Observed {
            is_stream: true,
            output_events: events,
            uncounted_events: events,
            estimated_tokens: events,
            usage: Usage { output: Some(output), ..Usage::default() },
            usage_source: UsageSource::Exact,
            ..Observed::default()
        }
    }

    /// The estimate of a stream that was cut after so many events.
    fn estimate(learned: &StreamEvents, events: u64) -> u64 {
        let mut cut = Observed {
            usage: Usage::default(),
            usage_source: UsageSource::Estimated,
            ..counted(0, events)
        };
        cut.scale_estimate(learned.tokens_per_event());
        cut.estimated_tokens
    }

    #[test]
    fn an_event_counts_as_one_token_before_a_counted_stream_and_as_learned_after_it() {
        let learned = StreamEvents::default();
        assert_eq!(estimate(&learned, 70), 70);
        learned.on_answer(&counted(281, 70));
        assert!((252..=308).contains(&estimate(&learned, 70)));
        assert_eq!(estimate(&StreamEvents::default(), 70), 70, "another backend learned nothing");
    }

    #[test]
    fn long_streams_weigh_more_than_short_ones_and_change_is_followed() {
        let learned = StreamEvents::default();
        for _ in 0..20 {
            learned.on_answer(&counted(400, 100));
            learned.on_answer(&counted(1, 1));
        }
        assert!((3.8..=4.0).contains(&learned.tokens_per_event()));
        (0..60).for_each(|_| learned.on_answer(&counted(100, 100)));
        assert!((1.0..=1.05).contains(&learned.tokens_per_event()));
    }

    #[test]
    fn an_answer_that_the_engine_did_not_count_or_that_is_no_stream_teaches_nothing() {
        let learned = StreamEvents::default();
        let whole = Observed { is_stream: false, ..counted(400, 100) };
        let cut = Observed { usage_source: UsageSource::Continuous, ..counted(400, 100) };
        let empty = counted(400, 0);
        for observed in [whole, cut, empty] {
            learned.on_answer(&observed);
        }
        assert_eq!(learned.tokens_per_event().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn a_token_without_text_at_the_end_is_not_counted_to_the_events() {
        let stopped = Observed { estimated_tokens: 11, ..counted(41, 10) };
        assert_eq!(stopped.counted_events(), Some((40, 10)));
    }

    #[test]
    fn an_exact_count_is_not_scaled() {
        let mut exact = counted(7, 7);
        exact.scale_estimate(4.0);
        assert_eq!(exact.estimated_tokens, 7);
    }

    #[test]
    fn usage_in_every_event_is_requested_only_where_it_is_not_forced_and_can_be_removed() {
        let with = |usage_event, has_continuous_usage| Observed {
            usage_event: Some(usage_event),
            has_continuous_usage,
            ..Observed::default()
        };
        let learned = StreamEvents::default();
        let is_on_request = |observed| {
            learned.on_answer(&observed);
            learned.has_usage_on_request_only()
        };
        assert!(!is_on_request(with(UsageEvent::Missed, false)));
        assert!(is_on_request(with(UsageEvent::Stripped, false)));
        assert!(is_on_request(with(UsageEvent::Stripped, true)));
        assert!(!is_on_request(with(UsageEvent::Forced, false)));
        assert!(!is_on_request(with(UsageEvent::Stripped, true)), "forced usage looks the same");
        assert!(is_on_request(with(UsageEvent::Stripped, false)), "it restarted without the flag");
        assert!(!is_on_request(with(UsageEvent::Unremoved, true)));
        assert!(!is_on_request(with(UsageEvent::Stripped, false)));
        learned.on_restart();
        learned.on_answer(&with(UsageEvent::Stripped, false));
        assert!(learned.has_usage_on_request_only());
    }
}
