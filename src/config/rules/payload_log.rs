//! Validation of `log.payloads`.

use crate::config::sections::settings::LogConfig;
use crate::config::violation::{RuleViolation, require, violation_of};
use http::Uri;

/// Maximum of `log.payloads.max_bytes`, the maximum length of one logged text.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Minimum of `log.max_file_bytes`, so that a full file contains several of the longest lines.
const MIN_FILE_BYTES: usize = 1 << 20;

/// Minimum of `log.max_file_bytes` as a multiple of `log.payloads.max_bytes`. A line contains several
/// texts, and JSON escapes lengthen them.
const MIN_TEXTS_PER_FILE: usize = 32;

/// Checks the rules of `log.payloads` and `log.max_file_bytes`, and returns the first violation.
pub(super) fn check(log: &LogConfig) -> Result<(), RuleViolation> {
    let payloads = &log.payloads;
    let is_length = (1..=MAX_TEXT_BYTES).contains(&payloads.max_bytes);
    require(is_length, "log.payloads.max_bytes", "this must be between 1 and 1MiB")?;
    if log.max_file_bytes < MIN_FILE_BYTES.max(MIN_TEXTS_PER_FILE * payloads.max_bytes) {
        let problem = "this must be at least 1MiB and at least 32 times log.payloads.max_bytes";
        return Err(violation_of(["log.max_file_bytes", "log.payloads.max_bytes"], problem));
    }
    Ok(())
}

/// Whether the text is an `http://` URL without a user name.
pub(super) fn is_http(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.is_some_and(|uri| {
        let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
        uri.scheme_str() == Some("http") && !has_user
    })
}
