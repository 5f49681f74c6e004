//! Validation of `quality`.

use super::payload_log::is_http;
use crate::config::violation::{RuleViolation, require};
use tokenweir_payload_log::PayloadLogSettings;
use tokenweir_quality::QualitySettings;

/// Maximum of `quality.sample`, the share of requests that are sampled.
const MAX_SAMPLE_RATIO: f64 = 0.05;

/// Checks the rules of `quality` and returns the first violation. `payloads` configures the
/// redaction of quality samples too.
pub(super) fn check(
    quality: &QualitySettings,
    payloads: &PayloadLogSettings,
) -> Result<(), RuleViolation> {
    let is_sample = (0.0..=MAX_SAMPLE_RATIO).contains(&quality.sample);
    let problem = "this must be between 0 and 0.05, which is 5 % of all requests";
    require(is_sample, "quality.sample", problem)?;
    let is_other = quality.file.is_none() || quality.file != payloads.file;
    let problem = "log.payloads.file is the same file: write another path";
    require(is_other, "quality.file", problem)?;
    let is_judge = quality.judge.as_ref().is_none_or(|url| is_http(url));
    require(is_judge, "quality.judge", "write http://host:port/path, without a user name")?;
    require(!quality.window.is_zero(), "quality.window", "this must be more than 0s")?;
    let is_redacted = quality.share() <= 0.0 || !payloads.redact.is_empty();
    let problem = "quality samples need redaction: set log.payloads.redact";
    require(is_redacted, "log.payloads.redact", problem)
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
