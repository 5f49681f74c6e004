//! Label values of a finished request: the HTTP status, and the error type of its metrics.

use crate::record::{Outcome, RequestRecord};

impl RequestRecord {
    /// The OpenTelemetry attribute `error.type`, of low cardinality. `None` for a success and for a
    /// client that disconnected.
    pub fn error_type(&self) -> Option<&str> {
        match self.outcome {
            Outcome::Ok | Outcome::Cancelled => None,
            _ if self.refusal.is_some() => self.refusal,
            Outcome::ClientError | Outcome::UpstreamError => {
                Some(self.status_code().unwrap_or("_OTHER"))
            }
            Outcome::StreamError => Some("stream_error"),
            Outcome::Truncated => Some("incomplete_stream"),
            Outcome::Aborted => Some("aborted"),
            Outcome::Timeout => Some("timeout"),
            Outcome::Shutdown => Some("shutdown"),
            Outcome::Rejected => Some("rejected"),
        }
    }

    /// The error type in metrics, empty only for a success. [`RequestRecord::error_type`] is also absent for a
    /// client disconnect, because the span of a disconnect has no error.
    pub fn error_type_label(&self) -> &str {
        let is_cancelled = self.outcome == Outcome::Cancelled;
        self.error_type().unwrap_or(if is_cancelled {
            Outcome::Cancelled.as_str()
        } else {
            ""
        })
    }

    /// The HTTP status that the client received, from a closed set. `_OTHER`: another status. `None`: the
    /// client received no response head.
    pub fn status_code(&self) -> Option<&'static str> {
        let text = status_text(self.status?);
        Some(text.unwrap_or("_OTHER"))
    }
}

/// Text of the status codes that the gateway and inference servers usually send, without allocation. `None`:
/// another code.
const fn status_text(status: u16) -> Option<&'static str> {
    Some(match status {
        200 => "200",
        201 => "201",
        202 => "202",
        204 => "204",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        415 => "415",
        422 => "422",
        429 => "429",
        431 => "431",
        500 => "500",
        501 => "501",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;

    #[test]
    fn success_has_an_empty_error_type() {
        for outcome in Outcome::ALL {
            let record = RequestRecord {
                outcome,
                ..streamed()
            };
            assert_eq!(
                record.error_type_label().is_empty(),
                outcome == Outcome::Ok,
                "{outcome:?}"
            );
        }
        let left = RequestRecord {
            outcome: Outcome::Cancelled,
            ..streamed()
        };
        assert_eq!(
            (left.error_type(), left.error_type_label()),
            (None, "cancelled")
        );
    }

    #[test]
    fn status_codes_are_a_closed_set() {
        let code = |status| {
            RequestRecord {
                status,
                ..streamed()
            }
            .status_code()
        };
        assert_eq!(
            [Some(200), Some(599), None].map(code),
            [Some("200"), Some("_OTHER"), None]
        );
    }
}
