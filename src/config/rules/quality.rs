//! Validation of `quality`.

use super::payload_log::is_http;
use crate::config::violation::{RuleViolation, violation_at};
use tokenweir_gateway::telemetry::payload_log;
use tokenweir_gateway::telemetry::quality::QualitySettings;

/// Maximum of `quality.sample`, the share of requests that are sampled.
const MAX_SAMPLE_RATIO: f64 = 0.05;

/// Checks the rules of `quality` and returns the first violation. `payloads` configures the
/// redaction of quality samples too.
pub(super) fn check(
    quality: &QualitySettings,
    payloads: &payload_log::PayloadLogSettings,
) -> Result<(), RuleViolation> {
    let fail = |key: &str, problem: &str| Err(violation_at(&format!("quality.{key}"), problem));
    if !(0.0..=MAX_SAMPLE_RATIO).contains(&quality.sample) {
        return fail("sample", "this must be between 0 and 0.05, which is 5 % of all requests");
    }
    if quality.file.is_some() && quality.file == payloads.file {
        return fail("file", "log.payloads.file is the same file: write another path");
    }
    if quality.judge.as_ref().is_some_and(|url| !is_http(url)) {
        return fail("judge", "write http://host:port/path, without a user name");
    }
    if quality.window.is_zero() {
        return fail("window", "this must be more than 0s");
    }
    if quality.share() > 0.0 && payloads.redact.is_empty() {
        let problem = "quality samples need redaction: set log.payloads.redact";
        return Err(violation_at("log.payloads.redact", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::tests;

    /// The problem of a configuration with these keys. `None`: the configuration is valid.
    fn problem(quality: &str, log: &str) -> Option<String> {
        tests::problem(&format!("quality: {{ {quality} }}\nlog: {{ payloads: {{ {log} }} }}\n"))
    }

    #[test]
    fn invalid_quality_settings_are_reported() {
        const SAMPLE: &str = "this must be between 0 and 0.05, which is 5 % of all requests";
        assert_eq!(problem("", ""), None);
        let valid = "enabled: true, sample: 0.05, file: a, judge: 'http://judge:1/score'";
        assert_eq!(problem(valid, ""), None);
        assert_eq!(problem("enabled: true, sample: 0, window: 1m", ""), None);
        for (quality, log, expected) in [
            ("sample: 0.06", "", SAMPLE),
            ("sample: 2", "", SAMPLE),
            ("sample: -0.01", "", SAMPLE),
            ("sample: .nan", "", SAMPLE),
            ("file: ''", "", "write the path of a file, or null"),
            ("file: a", "file: a", "log.payloads.file is the same file: write another path"),
            ("judge: 'https://a'", "", "write http://host:port/path, without a user name"),
            ("judge: 'http://u:p@a'", "", "write http://host:port/path, without a user name"),
            ("window: 0s", "", "this must be more than 0s"),
            (
                "enabled: true, judge: 'http://a'",
                "redact: []",
                "quality samples need redaction: set log.payloads.redact",
            ),
        ] {
            assert_eq!(problem(quality, log).as_deref(), Some(expected), "{quality} {log}");
        }
        assert_eq!(problem("enabled: true", "redact: []"), None, "no destination gets any text");
    }
}
