//! How much may be taken, and how much of that is left.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use std::time::Duration;

/// How much a tenant or a key may take. `None`: as much as it likes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests that may begin in a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers in a minute.
    pub tokens_per_minute: Option<u32>,
    /// Requests that may be open at once.
    pub concurrency: Option<u32>,
}

/// What is left of the limits by the minute, of the tenant or of the key, whichever has less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Requests.
    pub requests: Option<Left>,
    /// Tokens.
    pub tokens: Option<Left>,
}

/// What is left of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The limit.
    pub limit: u32,
    /// How much may be taken now.
    pub remaining: u32,
    /// After how long it is the whole limit again.
    pub reset: Duration,
}

/// Limit, remaining, reset, as OpenAI names them.
const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

// === impl Standing ===

impl Standing {
    /// What is left of each, where two limits hold.
    pub(super) fn tighter(self, other: Self) -> Self {
        Self {
            requests: Left::less(self.requests, other.requests),
            tokens: Left::less(self.tokens, other.tokens),
        }
    }

    /// Tells the client.
    pub fn write(&self, headers: &mut HeaderMap) {
        for (names, left) in [(REQUESTS, self.requests), (TOKENS, self.tokens)] {
            let Some(Left { limit, remaining, reset }) = left else { continue };
            let values = [HeaderValue::from(limit), HeaderValue::from(remaining), in_words(reset)];
            for (name, value) in names.into_iter().zip(values) {
                headers.insert(name, value);
            }
        }
    }
}

impl Left {
    fn less(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        a.into_iter().chain(b).min_by_key(|left| left.remaining)
    }
}

/// `0s`, `250ms`, `1.5s`, `6m0s`: as Go writes a duration, which is how OpenAI does.
fn in_words(duration: Duration) -> HeaderValue {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let text = match seconds / 60 {
        0 if seconds == 0 && millis > 0 => format!("{millis}ms"),
        0 if millis > 0 => format!("{seconds}.{millis:03}s"),
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    };
    // Digits and letters are always a header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_in_the_headers_of_openai() {
        let left = |remaining, millis| {
            Some(Left { limit: 60, remaining, reset: Duration::from_millis(millis) })
        };
        let tenant = Standing { requests: left(5, 55_000), tokens: None };
        let key = Standing { requests: left(2, 1_500), tokens: left(9, 361_000) };
        let mut headers = HeaderMap::new();
        tenant.tighter(key).write(&mut headers);
        for (name, value) in [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "2"),
            ("x-ratelimit-reset-requests", "1.500s"),
            ("x-ratelimit-remaining-tokens", "9"),
            ("x-ratelimit-reset-tokens", "6m1s"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
    }

    #[test]
    fn what_has_no_limit_is_not_told() {
        let mut headers = HeaderMap::new();
        Standing::default().write(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn a_short_time_is_told_in_milliseconds() {
        let words = |millis| in_words(Duration::from_millis(millis));
        assert_eq!([0, 250, 1_000, 60_000].map(words), ["0s", "250ms", "1s", "1m0s"]);
    }
}
