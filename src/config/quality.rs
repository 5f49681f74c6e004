//! Rules about the look at quality.

use super::content::{LINES, MIN_FILE, is_http};
use super::rules::{Broken, broken};
use crate::telemetry::content;
use crate::telemetry::quality::Settings;
use std::time::Duration;

/// The largest share of requests.
const MAX_SAMPLE: f64 = 0.05;

/// The longest that a judge may take.
const MAX_TIMEOUT: Duration = Duration::from_mins(2);

/// The first rule that is broken.
pub(super) fn check(quality: &Settings, texts: &content::Settings) -> Result<(), Broken> {
    let wrong = |key: &str, problem: &str| Err(broken(&format!("quality.{key}"), problem));
    if !(0.0..=MAX_SAMPLE).contains(&quality.sample) {
        return wrong("sample", "a share is from 0 to 0.05: of 5 % of all requests at most");
    }
    if quality.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return wrong("file", "write the path of a file, or null");
    }
    if quality.file.is_some() && quality.file == texts.file {
        return wrong("file", "this is the file of log.content; write another one");
    }
    // A line has a prompt and an answer, and what is known of them.
    if quality.max_file_bytes < MIN_FILE.max(LINES * texts.max_bytes) {
        return wrong(
            "max_file_bytes",
            "this must be 1MiB or more, and 32 times log.content.max_bytes",
        );
    }
    if quality.judge.as_ref().is_some_and(|url| !is_http(url)) {
        return wrong("judge", "write http://host:port/path, without a user");
    }
    if quality.judge_timeout.is_zero() || quality.judge_timeout > MAX_TIMEOUT {
        return wrong("judge_timeout", "this must be more than 0s and at most 2m");
    }
    if quality.recent.is_zero() {
        return wrong("recent", "this must be more than 0s");
    }
    if quality.baseline <= quality.recent {
        return wrong("baseline", "this must be longer than quality.recent");
    }
    let is_treated = !texts.redact.is_empty() || texts.command.is_some() || texts.url.is_some();
    if quality.share() > 0.0 && !is_treated {
        return Err(broken(
            "log.content.redact",
            "quality needs something to be taken out of texts",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};
    use std::path::Path;

    /// What is wrong with this configuration of quality.
    fn problem(quality: &str, log: &str) -> Option<String> {
        let text = format!("quality: {{ {quality} }}\nlog: {{ content: {{ {log} }} }}\n");
        let loaded = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        let text = loaded.err()?.to_string();
        text.lines().next().and_then(|line| line.splitn(4, ':').nth(3)).map(str::to_owned)
    }

    #[test]
    fn a_sample_is_a_twentieth_at_most_and_what_is_wrong_is_said() {
        assert_eq!(problem("", ""), None);
        let whole = "enabled: true, sample: 0.05, file: a, judge: 'http://judge:1/score'";
        assert_eq!(problem(whole, ""), None);
        assert_eq!(problem("enabled: true, sample: 0, recent: 1m, baseline: 2m", ""), None);
        for (quality, log, expected) in [
            ("sample: 0.06", "", " a share is from 0 to 0.05: of 5 % of all requests at most"),
            ("sample: 2", "", " a share is from 0 to 0.05: of 5 % of all requests at most"),
            ("sample: -0.01", "", " a share is from 0 to 0.05: of 5 % of all requests at most"),
            ("sample: .nan", "", " a share is from 0 to 0.05: of 5 % of all requests at most"),
            ("file: ''", "", " write the path of a file, or null"),
            ("file: a", "file: a", " this is the file of log.content; write another one"),
            ("judge: 'https://a'", "", " write http://host:port/path, without a user"),
            ("judge: 'http://u:p@a'", "", " write http://host:port/path, without a user"),
            ("judge_timeout: 3m", "", " this must be more than 0s and at most 2m"),
            ("recent: 0s", "", " this must be more than 0s"),
            ("recent: 2day", "", " this must be longer than quality.recent"),
            (
                "max_file_bytes: 1KiB",
                "",
                " this must be 1MiB or more, and 32 times log.content.max_bytes",
            ),
            (
                "enabled: true, judge: 'http://a'",
                "redact: []",
                " quality needs something to be taken out of texts",
            ),
        ] {
            assert_eq!(problem(quality, log).as_deref(), Some(expected), "{quality} {log}");
        }
        assert_eq!(problem("enabled: true", "redact: []"), None, "nobody gets any text");
        assert_eq!(problem("enabled: true, file: a", "redact: [], command: [/bin/redact]"), None);
    }
}
