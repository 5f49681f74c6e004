//! Learns two properties of the streams of a backend: whether they contain usage that the request
//! did not ask for, and the mean number of tokens per event.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tokenweir_core::record::{ObservedResponse, UsageEventOutcome};

/// The learned properties of the streams of a backend. Two updates at the same time may lose one
/// sample, which is tolerated.
#[derive(Debug, Default)]
pub(super) struct StreamProfile {
    /// One of the `USAGE_` constants.
    usage_mode: AtomicU8,
    /// Exponentially weighted mean of the output tokens of a stream, as bits of an `f64`. 0 before
    /// the first stream. The ratio of `mean_tokens` and `mean_events` weighs each stream by its
    /// length.
    mean_tokens: AtomicU64,
    /// Exponentially weighted mean of the output events of a stream, as bits of an `f64`. 0 before
    /// the first stream.
    mean_events: AtomicU64,
}

/// Usage mode: not learned yet.
const USAGE_UNKNOWN: u8 = 0;
/// Usage mode: streams contain usage only if the request asks for usage.
const USAGE_ON_REQUEST: u8 = 1;
/// Usage mode: streams always contain usage (vLLM with `--enable-force-include-usage`).
const USAGE_FORCED: u8 = 2;
/// Usage mode: the gateway cannot remove usage from the events of this backend.
const USAGE_UNREMOVABLE: u8 = 3;

/// Weight of a new stream in the exponentially weighted means.
const EWMA_WEIGHT: f64 = 0.1;
/// Lower and upper bound of the learned tokens per event. The lower bound is below 1 because a
/// server may send several events per token, such as the first events of a tool call.
const TOKENS_PER_EVENT_RANGE: std::ops::RangeInclusive<f64> = 0.25..=1024.0;

impl StreamProfile {
    /// Learns from a response that has ended.
    pub(super) fn on_response_ended(&self, observed: &ObservedResponse) {
        let usage = match observed.usage_event {
            // If the gateway requested usage in every event, a server that always sends usage
            // cannot be told apart, so nothing is learned.
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

    /// Forgets the learned usage mode, because the server process restarted, possibly with other
    /// flags.
    pub(super) fn on_restart(&self) {
        self.usage_mode.store(USAGE_UNKNOWN, Ordering::Relaxed);
    }

    /// Whether a stream has shown that the backend sends usage only if the request asks for usage.
    pub(super) fn has_usage_on_request_only(&self) -> bool {
        self.usage_mode.load(Ordering::Relaxed) == USAGE_ON_REQUEST
    }

    /// Mean number of tokens per event with output. 1 before the first stream with an exact token
    /// count.
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

    /// The estimated tokens of a stream that was truncated after `events` events.
    fn estimate_truncated_stream(profile: &StreamProfile, events: u64) -> u64 {
        let mut truncated = ObservedResponse {
            usage: Usage::default(),
            usage_source: UsageSource::Estimated,
            ..counted_stream(0, events)
        };
        truncated.scale_estimated_tokens(profile.tokens_per_event());
        truncated.estimated_tokens
    }

    #[test]
    fn an_event_counts_as_one_token_before_the_first_exact_stream_and_as_learned_after_it() {
        let profile = StreamProfile::default();
        assert_eq!(estimate_truncated_stream(&profile, 70), 70);
        profile.on_response_ended(&counted_stream(281, 70));
        assert!((252..=308).contains(&estimate_truncated_stream(&profile, 70)));
        assert_eq!(
            estimate_truncated_stream(&StreamProfile::default(), 70),
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
        let non_stream = ObservedResponse { is_stream: false, ..counted_stream(400, 100) };
        let not_exact =
            ObservedResponse { usage_source: UsageSource::Continuous, ..counted_stream(400, 100) };
        let without_events = counted_stream(400, 0);
        for observed in [non_stream, not_exact, without_events] {
            profile.on_response_ended(&observed);
        }
        assert_eq!(profile.tokens_per_event().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn a_final_token_without_text_does_not_count_towards_the_tokens_per_event() {
        let response = ObservedResponse { estimated_tokens: 11, ..counted_stream(41, 10) };
        assert_eq!(response.exact_tokens_and_output_events(), Some((40, 10)));
    }

    #[test]
    fn an_exact_count_is_not_scaled() {
        let mut exact = counted_stream(7, 7);
        exact.scale_estimated_tokens(4.0);
        assert_eq!(exact.estimated_tokens, 7);
    }

    #[test]
    fn usage_in_every_event_is_requested_only_where_it_is_not_forced_and_can_be_removed() {
        let response_with_usage = |usage_event, has_continuous_usage| ObservedResponse {
            usage_event: Some(usage_event),
            has_continuous_usage,
            ..ObservedResponse::default()
        };
        let profile = StreamProfile::default();
        let is_on_request = |observed| {
            profile.on_response_ended(&observed);
            profile.has_usage_on_request_only()
        };
        assert!(!is_on_request(response_with_usage(UsageEventOutcome::Missing, false)));
        assert!(is_on_request(response_with_usage(UsageEventOutcome::Stripped, false)));
        assert!(is_on_request(response_with_usage(UsageEventOutcome::Stripped, true)));
        assert!(!is_on_request(response_with_usage(UsageEventOutcome::AlwaysSent, false)));
        assert!(
            !is_on_request(response_with_usage(UsageEventOutcome::Stripped, true)),
            "forced usage looks the same"
        );
        assert!(
            is_on_request(response_with_usage(UsageEventOutcome::Stripped, false)),
            "it restarted without the flag"
        );
        assert!(!is_on_request(response_with_usage(UsageEventOutcome::NotRemoved, true)));
        assert!(!is_on_request(response_with_usage(UsageEventOutcome::Stripped, false)));
        profile.on_restart();
        profile.on_response_ended(&response_with_usage(UsageEventOutcome::Stripped, false));
        assert!(profile.has_usage_on_request_only());
    }
}
