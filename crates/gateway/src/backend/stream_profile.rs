//! Learns three properties of the streams of a backend: whether they contain usage (token counts) that
//! the request did not ask for, the fingerprint of the server, and the mean number of tokens per event.

use bytes::Bytes;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use tokenweir_protocol::atomic::AtomicF64;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::record::{ObservedResponse, UsageEventOutcome, UsageLayout};

/// The learned properties of the streams of a backend. Two concurrent updates may lose one sample, which is
/// tolerable.
#[derive(Debug, Default)]
pub(super) struct StreamProfile {
    /// The usage mode of each API with `stream_options`, such as [`USAGE_ON_REQUEST`]. The APIs of
    /// one server can differ: old versions of vLLM write `null` only into the events of
    /// completions.
    usage_modes: [AtomicU8; 2],
    /// The `system_fingerprint` in the usage events of the backend, with its quotes. Empty: the events
    /// have no fingerprint. `None`: unknown.
    fingerprint: Mutex<Option<Bytes>>,
    /// Exponentially weighted mean of the output tokens of a stream. 0 before the first
    /// stream. `mean_tokens ÷ mean_events` is the mean number of tokens per event, in which
    /// longer streams have more weight.
    mean_tokens: AtomicF64,
    /// Exponentially weighted mean of the output events of a stream. 0 before the first
    /// stream.
    mean_events: AtomicF64,
}

/// Usage mode: not learned yet.
const USAGE_UNKNOWN: u8 = 0;
/// Usage mode: the events contain usage only if the request asks for continuous usage (token counts in every
/// event).
const USAGE_ON_REQUEST: u8 = 1;
/// Usage mode: the events have a `usage` member even if the request does not ask for continuous usage. Its
/// value is `null`, or counts (vLLM with `--enable-force-include-usage`).
const USAGE_ALWAYS: u8 = 2;
/// Usage mode: the gateway could not remove continuous usage from an event of this backend, so it no longer
/// requests continuous usage. Until a restart, only [`EVENT_UNREMOVABLE`] replaces this mode.
const COUNTS_UNREMOVABLE: u8 = 3;
/// Usage mode: the gateway could not remove a usage event of this backend, so it requests no usage until a
/// restart.
const EVENT_UNREMOVABLE: u8 = 4;

/// Weight of a new stream in the exponentially weighted means.
const EWMA_WEIGHT: f64 = 0.1;
/// Mean output of the streams, in tokens, above which the gateway requests continuous usage for fewer streams.
/// With a reasoning parser, vLLM's Python front end counts all reasoning tokens again for every event with
/// usage. So the cost of a stream grows with the square of its length.
const LONG_OUTPUT_TOKENS: f64 = 1_000.0;
/// Lower and upper bound of the learned tokens per event. The lower bound is below 1 because a
/// server may send several events per token, such as the first events of a tool call.
const TOKENS_PER_EVENT_RANGE: std::ops::RangeInclusive<f64> = 0.25..=1024.0;

impl StreamProfile {
    /// Updates the learned properties with a response of `api` that has ended.
    pub(super) fn on_response_ended(&self, api: Option<Api>, observed: &ObservedResponse) {
        let is_unremovable = observed.usage_event == Some(UsageEventOutcome::NotRemoved);
        let usage = match observed.usage_layout {
            _ if is_unremovable && observed.has_continuous_usage => Some(COUNTS_UNREMOVABLE),
            _ if is_unremovable => Some(EVENT_UNREMOVABLE),
            Some(UsageLayout::AtEnd) => Some(USAGE_ON_REQUEST),
            Some(UsageLayout::Nulls | UsageLayout::EveryEvent) => Some(USAGE_ALWAYS),
            // In a response to a request for continuous usage, usage in the events does not show whether the
            // server always sends it.
            None => None,
        };
        if let (Some(usage), Some(mode)) = (usage, self.usage_mode(api))
            && (usage > mode.load(Ordering::Relaxed)
                || mode.load(Ordering::Relaxed) < COUNTS_UNREMOVABLE)
        {
            mode.store(usage, Ordering::Relaxed);
        }
        if let Some(member) = &observed.fingerprint {
            *lock(&self.fingerprint) = Some(member.clone());
        }
        if let Some((tokens, events)) = observed.exact_tokens_and_output_events() {
            let is_first = self.mean_events.get() <= 0.0;
            let weight = if is_first { 1.0 } else { EWMA_WEIGHT };
            self.mean_tokens.average_in(tokens as f64, weight);
            self.mean_events.average_in(events as f64, weight);
        }
    }

    /// Forgets properties that depend on the version and the flags of the server. Called after a restart of its
    /// process.
    pub(super) fn on_restart(&self) {
        for mode in &self.usage_modes {
            mode.store(USAGE_UNKNOWN, Ordering::Relaxed);
        }
        *lock(&self.fingerprint) = None;
    }

    /// Whether a stream of this API has shown that the backend writes usage into events only if the
    /// request asks for continuous usage.
    pub(super) fn has_usage_on_request_only(&self, api: Option<Api>) -> bool {
        let mode = self.usage_mode(api);
        mode.is_some_and(|mode| mode.load(Ordering::Relaxed) == USAGE_ON_REQUEST)
    }

    /// Whether the gateway can remove the usage that it requests from the streams of this API.
    pub(super) fn can_remove_usage(&self, api: Option<Api>) -> bool {
        let mode = self.usage_mode(api);
        mode.is_none_or(|mode| mode.load(Ordering::Relaxed) != EVENT_UNREMOVABLE)
    }

    /// The `system_fingerprint` in the usage events of the server. Empty: the events have no
    /// fingerprint. `None`: unknown.
    pub(super) fn fingerprint(&self) -> Option<Bytes> {
        lock(&self.fingerprint).clone()
    }

    /// The usage mode of an API. `None`: the API has no `stream_options`.
    fn usage_mode(&self, api: Option<Api>) -> Option<&AtomicU8> {
        match api {
            Some(Api::Chat) => Some(&self.usage_modes[0]),
            Some(Api::Completions) => Some(&self.usage_modes[1]),
            _ => None,
        }
    }

    /// The share of the streams for which the gateway requests continuous usage. It is below the configured
    /// share if the streams of the backend are long. A configured share of 1 is not reduced.
    pub(super) fn sampled_share(&self, configured: f64) -> f64 {
        if configured >= 1.0 {
            return configured;
        }
        configured * (LONG_OUTPUT_TOKENS / self.mean_tokens.get().max(LONG_OUTPUT_TOKENS))
    }

    /// Whether outputs are so long that counting tokens in every event is expensive for vLLM.
    pub(super) fn has_long_outputs(&self) -> bool {
        self.mean_tokens.get() > LONG_OUTPUT_TOKENS
    }

    /// Mean number of tokens per event with output. 1 before the first stream with an exact token
    /// count.
    pub(super) fn tokens_per_event(&self) -> f64 {
        let tokens = self.mean_tokens.get();
        let events = self.mean_events.get();
        let ratio = if events > 0.0 { tokens / events } else { 1.0 };
        ratio.clamp(
            *TOKENS_PER_EVENT_RANGE.start(),
            *TOKENS_PER_EVENT_RANGE.end(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::openai::Usage;
    use tokenweir_request::record::UsageSource;

    /// A stream of `events` events and `output` tokens with the engine's exact token count.
    fn counted_stream(output: u64, events: u64) -> ObservedResponse {
        ObservedResponse {
            is_stream: true,
            output_events: events,
            uncounted_events: events,
            estimated_tokens: events,
            usage: Usage {
                output: Some(output),
                ..Usage::default()
            },
            usage_source: UsageSource::Exact,
            ..ObservedResponse::default()
        }
    }

    #[test]
    fn long_streams_weigh_more_in_tokens_per_event() {
        let profile = StreamProfile::default();
        for _ in 0..20 {
            profile.on_response_ended(None, &counted_stream(400, 100));
            profile.on_response_ended(None, &counted_stream(1, 1));
        }
        assert!((3.8..=4.0).contains(&profile.tokens_per_event()));
        (0..60).for_each(|_| profile.on_response_ended(None, &counted_stream(100, 100)));
        assert!((1.0..=1.05).contains(&profile.tokens_per_event()));
    }

    #[test]
    fn tokens_per_event_need_exact_counts() {
        let profile = StreamProfile::default();
        let non_stream = ObservedResponse {
            is_stream: false,
            ..counted_stream(400, 100)
        };
        let not_exact = ObservedResponse {
            usage_source: UsageSource::Continuous,
            ..counted_stream(400, 100)
        };
        let without_events = counted_stream(400, 0);
        for observed in [non_stream, not_exact, without_events] {
            profile.on_response_ended(None, &observed);
        }
        assert_eq!(profile.tokens_per_event().to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn a_final_token_without_text_is_ignored() {
        let response = ObservedResponse {
            estimated_tokens: 11,
            ..counted_stream(41, 10)
        };
        assert_eq!(response.exact_tokens_and_output_events(), Some((40, 10)));
    }

    #[test]
    fn an_exact_count_is_not_scaled() {
        let mut exact = counted_stream(7, 7);
        exact.scale_estimated_tokens(4.0);
        assert_eq!(exact.estimated_tokens, 7);
    }

    #[test]
    fn continuous_usage_must_be_removable() {
        let api = Some(Api::Chat);
        let with_layout = |usage_layout| ObservedResponse {
            usage_layout,
            usage_event: Some(UsageEventOutcome::Stripped),
            ..ObservedResponse::default()
        };
        let profile = StreamProfile::default();
        let is_on_request = |observed| {
            profile.on_response_ended(api, &observed);
            profile.has_usage_on_request_only(api)
        };
        assert!(!is_on_request(with_layout(None)));
        assert!(is_on_request(with_layout(Some(UsageLayout::AtEnd))));
        assert!(is_on_request(with_layout(None)));
        for always in [UsageLayout::EveryEvent, UsageLayout::Nulls] {
            assert!(!is_on_request(with_layout(Some(always))), "{always:?}");
            assert!(
                !is_on_request(with_layout(None)),
                "forced usage looks the same"
            );
            assert!(
                is_on_request(with_layout(Some(UsageLayout::AtEnd))),
                "without the flag"
            );
        }
        assert!(
            !profile.has_usage_on_request_only(Some(Api::Completions)),
            "another API"
        );
        for has_continuous_usage in [true, false] {
            assert!(!is_on_request(ObservedResponse {
                usage_event: Some(UsageEventOutcome::NotRemoved),
                has_continuous_usage,
                ..ObservedResponse::default()
            }));
            assert!(!is_on_request(with_layout(Some(UsageLayout::AtEnd))));
            assert_eq!(profile.can_remove_usage(api), has_continuous_usage);
        }
        profile.on_restart();
        assert!(is_on_request(with_layout(Some(UsageLayout::AtEnd))));
        assert!(profile.can_remove_usage(api));
    }

    #[test]
    fn long_streams_request_less_continuous_usage() {
        for (tokens, expected) in [(100, 0.05), (1_000, 0.05), (10_000, 0.005)] {
            let profile = StreamProfile::default();
            profile.on_response_ended(None, &counted_stream(tokens, 50));
            assert!(
                (profile.sampled_share(0.05) - expected).abs() < 1e-9,
                "{tokens} tokens"
            );
            assert!((profile.sampled_share(1.0) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn the_fingerprint_is_that_of_the_last_stream() {
        let profile = StreamProfile::default();
        for (observed, expected) in [
            (None, None),
            (Some("a"), Some("a")),
            (None, Some("a")),
            (Some(""), Some("")),
        ] {
            let fingerprint = observed.map(|member: &'static str| Bytes::from(member));
            profile.on_response_ended(
                Some(Api::Chat),
                &ObservedResponse {
                    fingerprint,
                    ..ObservedResponse::default()
                },
            );
            assert_eq!(
                profile.fingerprint().as_deref(),
                expected.map(str::as_bytes)
            );
        }
        profile.on_restart();
        assert_eq!(profile.fingerprint(), None);
    }
}
