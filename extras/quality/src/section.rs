//! The section `quality`: monitoring of the quality of responses.

use crate::settings::QualitySettings;
use http::Uri;
use tokenweir_engine::address::has_valid_port;
use tokenweir_payload_log::PayloadLogSettings;
use tokenweir_settings::{CheckResult, ConfigSection, OutputFile, ReloadClass, file_path, require};

/// Maximum of `quality.sample`, the share of requests that are sampled.
const MAX_SAMPLE_RATIO: f64 = 0.05;

impl<C: AsRef<PayloadLogSettings>> ConfigSection<C> for QualitySettings {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    // The payload log configures the redaction of quality samples too.
    fn check(quality: &QualitySettings, config: &C) -> CheckResult {
        let payloads = config.as_ref();
        file_path("quality.file", quality.file.as_deref())?;
        let is_sample = (0.0..=MAX_SAMPLE_RATIO).contains(&quality.sample);
        let problem = "this must be between 0 and 0.05, which is 5 % of all requests";
        require(is_sample, "quality.sample", problem)?;
        let is_other = quality.file.is_none() || quality.file != payloads.file;
        let problem = "log.payloads.file is the same file: write another path";
        require(is_other, "quality.file", problem)?;
        let is_judge = quality.judge.as_deref().is_none_or(is_http);
        require(
            is_judge,
            "quality.judge",
            "write http://host:port/path, without a user name",
        )?;
        require(
            !quality.window.is_zero(),
            "quality.window",
            "this must be more than 0s",
        )?;
        let is_redacted = quality.share() <= 0.0 || !payloads.redact.is_empty();
        let problem = "quality samples need redaction: set log.payloads.redact";
        require(is_redacted, "log.payloads.redact", problem)
    }

    fn output_file(quality: &QualitySettings) -> Option<OutputFile<'_>> {
        if quality.share() <= 0.0 {
            return None;
        }
        OutputFile::new("quality.file", quality.file.as_deref())
    }
}

/// Whether the text is an `http://` URL without a user name.
fn is_http(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else {
        return false;
    };
    let has_user = uri
        .authority()
        .is_none_or(|authority| authority.as_str().contains('@'));
    uri.scheme_str() == Some("http") && !has_user && has_valid_port(&uri)
}
