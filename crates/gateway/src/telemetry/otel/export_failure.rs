//! Derives the reason why a collector does not accept spans from the error text of the exporter.

use opentelemetry_sdk::error::OTelSdkError;

/// The reason for 429, 503 and `RESOURCE_EXHAUSTED`.
const THROTTLED: &str = "it takes no more spans at present";
/// The reason for a timeout.
const SLOW: &str = "it answers too late";
/// The reason if no connection or response was possible.
const UNREACHABLE: &str = "it cannot be reached";
/// The reason if the collector rejects the request, for example because of a missing header.
const REFUSED: &str = "it refuses the requests";

/// Returns why an export failed, in words for the operator. The function searches the error text, because the
/// SDK gives the collector's status code only there.
pub(super) fn describe_failure(error: &OTelSdkError) -> &'static str {
    let text = error.to_string();
    let has_one_of = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has_one_of(&["status code: 429", "status code: 503", "ResourceExhausted"]) {
        THROTTLED
    } else if has_one_of(&["status code: 504", "DeadlineExceeded", "Cancelled"])
        || matches!(error, OTelSdkError::Timeout(_))
    {
        SLOW
    } else if has_one_of(&["network error", "Unavailable", "status code: 502"]) {
        UNREACHABLE
    } else {
        REFUSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_follows_from_the_sdk_error() {
        for (text, expected) in [
            ("HTTP export failed with status code: 429", THROTTLED),
            ("HTTP export failed with status code: 503", THROTTLED),
            ("export failed with gRPC code: ResourceExhausted", THROTTLED),
            ("HTTP export failed with status code: 504", SLOW),
            ("export failed with gRPC code: DeadlineExceeded", SLOW),
            (
                "export failed with gRPC code: Cancelled: Timeout expired",
                SLOW,
            ),
            ("HTTP export failed: network error", UNREACHABLE),
            (
                "export failed with gRPC code: Unavailable: transport",
                UNREACHABLE,
            ),
            ("HTTP export failed with status code: 401", REFUSED),
            ("export failed with gRPC code: Unauthenticated", REFUSED),
            ("something new", REFUSED),
        ] {
            let error = OTelSdkError::InternalFailure(text.to_owned());
            assert_eq!(describe_failure(&error), expected, "{text}");
        }
    }
}
