//! Learns two properties of a backend's streams: whether events contain usage that the client did
//! not request, and how many tokens an event contains.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokenweir_core::record::{ObservedResponse, UsageEventOutcome};

/// The learned properties. Concurrent updates may lose a sample, which is tolerated.
#[derive(Debug, Default)]
pub(super) struct StreamProfile {
    usage_mode: AtomicU8,
    /// Exponentially weighted means over streams, as bits of an `f64`. Both are 0 before the first
    /// stream. The ratio of the two means weighs each stream by its length.
    mean_tokens: AtomicU64,
    mean_events: AtomicU64,
}

/// Not learned yet.
const USAGE_UNKNOWN: u8 = 0;
/// Streams contain usage only if the request asks for it.
const USAGE_ON_REQUEST: u8 = 1;
/// Streams always contain usage (vLLM with `--enable-force-include-usage`).
const USAGE_FORCED: u8 = 2;
/// The gateway cannot remove the usage from events.
const USAGE_UNREMOVABLE: u8 = 3;

/// Weight of a new stream in the means.
const EWMA_WEIGHT: f64 = 0.1;
/// Bounds of the tokens per event. The lower bound is below 1 because a server may send several
/// events per token, such as the first events of a tool call.
const TOKENS_PER_EVENT_RANGE: std::ops::RangeInclusive<f64> = 0.25..=1024.0;

impl StreamProfile {
    /// Learns from a response that has ended.
    pub(super) fn on_response_ended(&self, observed: &ObservedResponse) {
        let usage = match observed.usage_event {
            // If the gateway requested usage in every event, forced usage looks the same.
            Some(UsageEventOutcome::Stripped) if !observed.has_continuous_usage => {
                Some(USAGE_ON_REQUEST)
            }
            Some(UsageEventOutcome::AlwaysSent) => Some(USAGE_FORCED),
            Some(UsageEventOutcome::NotRemoved) => Some(USAGE_UNREMOVABLE),
            _ => None,
        };
        if let Some(usage) = usage
            && self.usage_mode.load(Ordering::Relaxed) != USAGE_UNREMOVABLE
        {
            self.usage_mode.store(usage, Ordering::Relaxed);
        }
        if let Some((tokens, events)) = observed.exact_tokens_and_output_events() {
            let is_first = load_f64(&self.mean_events) <= 0.0;
            let weight = if is_first { 1.0 } else { EWMA_WEIGHT };
            update_ewma(&self.mean_tokens, tokens as f64, weight);
            update_ewma(&self.mean_events, events as f64, weight);
        }
    }

    /// The server process restarted, possibly with other flags.
    pub(super) fn on_restart(&self) {
        self.usage_mode.store(USAGE_UNKNOWN, Ordering::Relaxed);
    }

    /// Whether streams contain usage only if the request asks for it.
    pub(super) fn has_usage_on_request_only(&self) -> bool {
        self.usage_mode.load(Ordering::Relaxed) == USAGE_ON_REQUEST
    }

    /// Mean tokens per event with output. 1 before the first stream with exact token counts.
    pub(super) fn tokens_per_event(&self) -> f64 {
        let (tokens, events) = (load_f64(&self.mean_tokens), load_f64(&self.mean_events));
        let ratio = if events > 0.0 { tokens / events } else { 1.0 };
        ratio.clamp(*TOKENS_PER_EVENT_RANGE.start(), *TOKENS_PER_EVENT_RANGE.end())
    }
}

fn load_f64(mean: &AtomicU64) -> f64 {
    f64::from_bits(mean.load(Ordering::Relaxed))
}

fn update_ewma(mean: &AtomicU64, value: f64, weight: f64) {
    let previous = load_f64(mean);
    mean.store((previous + weight * (value - previous)).to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::openai::Usage;
    use tokenweir_core::record::UsageSource;

    /// A stream of `events` events and `output` tokens, with the engine's exact token count.
    fn counted_stream(output: u64, events: u64) -> ObservedResponse {
        ObservedResponse {
            is_stream: true,
            output_events: events,
            uncounted_events: events,
            estimated_tokens: events,
            usage: Usage { output: Some(output), ..Usage::default() },
            usage_source: UsageSource::Exact,
            ..ObservedResponse::default()
        }
    }

    /// The estimated tokens of a stream that broke off after `events` events.
    fn estimate_cut_stream(profile: &StreamProfile, events: u64) -> u64 {
        let mut cut = ObservedResponse {
            usage: Usage::default(),
            usage_source: UsageSource::Estimated,
            ..counted_stream(0, events)
        };
        cut.scale_estimated_tokens(profile.tokens_per_event());
        cut.estimated_tokens
    }

    #[test]
    fn an_event_counts_as_one_token_before_the_first_exact_stream_and_as_learned_after_it() {
        let profile = StreamProfile::default();
        assert_eq!(estimate_cut_stream(&profile, 70), 70);
        profile.on_response_ended(&counted_stream(281, 70));
        assert!((252..=308).contains(&estimate_cut_stream(&profile, 70)));
        assert_eq!(
            estimate_cut_stream(&StreamProfile::default(), 70),
            70,
            "another backend learned nothing"
        );
    }

    #[test]
    fn long_streams_weigh_more_than_short_ones_and_the_mean_follows_changes() {
        let profile = StreamProfile::default();
        for _ in 0..20 {
            profile.on_response_ended(&counted_stream(400, 100));
            profile.on_response_ended(&counted_stream(1, 1));
        }
        assert!((3.8..=4.0).contains(&profile.tokens_per_event()));
        (0..60).for_each(|_| profile.on_response_ended(&counted_stream(100, 100)));
        assert!((1.0..=1.05).contains(&profile.tokens_per_event()));
    }

    #[test]
    fn responses_without_an_exact_count_or_without_a_stream_are_not_learned_from() {
        let profile = StreamProfile::default();
        let whole = ObservedResponse { is_stream: false, ..counted_stream(400, 100) };
        let cut =
            ObservedResponse { usage_source: UsageSource::Continuous, ..counted_stream(400, 100) };
        let empty = counted_stream(400, 0);
        for observed in [whole, cut, empty] {
            profile.on_response_ended(&observed);
        }
        assert_eq!(profile.tokens_per_event().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn a_final_token_without_text_does_not_count_towards_the_tokens_per_event() {
        let stopped = ObservedResponse { estimated_tokens: 11, ..counted_stream(41, 10) };
        assert_eq!(stopped.exact_tokens_and_output_events(), Some((40, 10)));
    }

    #[test]
    fn an_exact_count_is_not_scaled() {
        let mut exact = counted_stream(7, 7);
        exact.scale_estimated_tokens(4.0);
        assert_eq!(exact.estimated_tokens, 7);
    }

    #[test]
    fn usage_in_every_event_is_requested_only_where_it_is_not_forced_and_can_be_removed() {
        let with = |usage_event, has_continuous_usage| ObservedResponse {
            usage_event: Some(usage_event),
            has_continuous_usage,
            ..ObservedResponse::default()
        };
        let profile = StreamProfile::default();
        let is_on_request = |observed| {
            profile.on_response_ended(&observed);
            profile.has_usage_on_request_only()
        };
        assert!(!is_on_request(with(UsageEventOutcome::Missing, false)));
        assert!(is_on_request(with(UsageEventOutcome::Stripped, false)));
        assert!(is_on_request(with(UsageEventOutcome::Stripped, true)));
        assert!(!is_on_request(with(UsageEventOutcome::AlwaysSent, false)));
        assert!(
            !is_on_request(with(UsageEventOutcome::Stripped, true)),
            "forced usage looks the same"
        );
        assert!(
            is_on_request(with(UsageEventOutcome::Stripped, false)),
            "it restarted without the flag"
        );
        assert!(!is_on_request(with(UsageEventOutcome::NotRemoved, true)));
        assert!(!is_on_request(with(UsageEventOutcome::Stripped, false)));
        profile.on_restart();
        profile.on_response_ended(&with(UsageEventOutcome::Stripped, false));
        assert!(profile.has_usage_on_request_only());
    }
}
