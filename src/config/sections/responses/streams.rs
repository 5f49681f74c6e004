//! The section `streams`: handling of streams.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_request::continuation::ContinuationMode;
use tokenweir_request::observe::{OnTruncation, StreamRules};
#[cfg(feature = "options")]
use tokenweir_resume::ResumeConfig;
use tokenweir_settings::{CheckResult, ConfigSection};
#[cfg(not(feature = "options"))]
use tokenweir_settings::{WITHOUT_OPTIONS, require};

settings! {
    /// Handling of streams.
    #[derive(Copy, Default, Eq)]
    pub struct StreamsConfig {
        /// How the client learns that its stream was truncated.
        pub on_truncation: OnTruncation,
        /// Silence towards the client after which the gateway sends an SSE comment, so that proxies do not
        /// close the connection. A later failure becomes an error event. `null`: no comments.
        #[serde(with = "units::OptionalDuration")]
        pub keep_alive: Option<Duration>,
        /// Requests with an `Idempotency-Key` whose clients may lose their connection and return.
        #[cfg(feature = "options")]
        pub resume: ResumeConfig,
        /// How a stream of chat completions or completions goes on at another backend, if its backend ends
        /// it early, stalls, is drained with `migrate` or is removed.
        pub continuation: ContinuationMode,
        /// Whether only streams with `temperature` 0 are continued. A sampled stream that is continued is
        /// not the one that its first backend would have sent.
        pub continuation_greedy_only: bool,
    }
}

impl StreamsConfig {
    /// The rules of streams for the observation of requests.
    pub(crate) fn rules(&self) -> StreamRules {
        StreamRules {
            on_truncation: self.on_truncation,
            keep_alive: self.keep_alive,
        }
    }
}

/// Values, rules and reload class of the section `streams`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = StreamsConfig;

    #[cfg(feature = "options")]
    fn check(streams: &StreamsConfig, _: &C) -> CheckResult {
        streams.resume.check("streams.resume")
    }

    #[cfg(not(feature = "options"))]
    fn check(streams: &StreamsConfig, _: &C) -> CheckResult {
        let is_off = streams.continuation == ContinuationMode::Off;
        require(is_off, "streams.continuation", WITHOUT_OPTIONS)
    }
}
