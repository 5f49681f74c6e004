//! Why a collector does not take spans, as far as the error of the exporter shows it.

use opentelemetry_sdk::error::OTelSdkError;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The kind of failure of the last export.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ExportFailure {
        /// The collector takes no more at present: 429, 503, `RESOURCE_EXHAUSTED`.
        Throttled = "it takes no more spans at present",
        /// The collector answers too late.
        Slow = "it answers too late",
        /// No connection to the collector, or no answer from it.
        Unreachable = "it cannot be reached",
        /// The collector refuses the request, for example because of a missing header.
        Refused = "it refuses the requests",
    }
}

impl ExportFailure {
    /// The kind of an error. The SDK has the status code of the collector in the text of its errors
    /// only.
    pub(super) fn from_error(error: &OTelSdkError) -> Self {
        let text = error.to_string();
        let has_one_of = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has_one_of(&["status code: 429", "status code: 503", "ResourceExhausted"]) {
            Self::Throttled
        } else if has_one_of(&["status code: 504", "DeadlineExceeded", "Cancelled"])
            || matches!(error, OTelSdkError::Timeout(_))
        {
            Self::Slow
        } else if has_one_of(&["network error", "Unavailable", "status code: 502"]) {
            Self::Unreachable
        } else {
            Self::Refused
        }
    }

    /// A number for [`ExportFailure::from_number`], at least 1.
    pub(super) fn number(self) -> u8 {
        self as u8 + 1
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_failure_is_in_the_error_of_the_exporter() {
        for (text, expected) in [
            ("HTTP export failed with status code: 429", ExportFailure::Throttled),
            ("HTTP export failed with status code: 503", ExportFailure::Throttled),
            ("export failed with gRPC code: ResourceExhausted", ExportFailure::Throttled),
            ("HTTP export failed with status code: 504", ExportFailure::Slow),
            ("export failed with gRPC code: DeadlineExceeded", ExportFailure::Slow),
            ("export failed with gRPC code: Cancelled: Timeout expired", ExportFailure::Slow),
            ("HTTP export failed: network error", ExportFailure::Unreachable),
            ("export failed with gRPC code: Unavailable: transport", ExportFailure::Unreachable),
            ("HTTP export failed with status code: 401", ExportFailure::Refused),
            ("export failed with gRPC code: Unauthenticated", ExportFailure::Refused),
            ("something new", ExportFailure::Refused),
        ] {
            let error = OTelSdkError::InternalFailure(text.to_owned());
            assert_eq!(ExportFailure::from_error(&error), expected, "{text}");
        }
        for failure in ExportFailure::ALL {
            assert_eq!(ExportFailure::from_number(failure.number()), Some(failure));
        }
        assert_eq!(ExportFailure::from_number(0), None);
    }
}
