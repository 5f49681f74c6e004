//! Validation of `log.payloads`.

use crate::config::violation::{RuleViolation, broken};
use crate::telemetry::payload_log::PayloadLogSettings;
use http::Uri;

/// Maximum of `max_bytes`, the bytes of one logged text.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Minimum size of the file, so that a full file contains several of the longest lines.
pub(super) const MIN_FILE_BYTES: usize = 1 << 20;

/// Minimum number of lines of the maximum text size that the file holds, including JSON escapes.
pub(super) const MIN_LINES_PER_FILE: usize = 32;

/// Returns the first violation.
pub(super) fn check(content: &PayloadLogSettings) -> Result<(), RuleViolation> {
    let fail = |key: &str, problem: &str| Err(broken(&format!("log.payloads.{key}"), problem));
    if content.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return fail("file", "write the path of a file, or null");
    }
    if !(content.sample > 0.0 && content.sample <= 1.0) {
        return fail("sample", "this must be more than 0 and at most 1");
    }
    if !(1..=MAX_TEXT_BYTES).contains(&content.max_bytes) {
        return fail("max_bytes", "this must be between 1 and 1MiB");
    }
    if content.max_file_bytes < MIN_FILE_BYTES.max(MIN_LINES_PER_FILE * content.max_bytes) {
        return fail(
            "max_file_bytes",
            "this must be at least 1MiB and at least 32 times max_bytes",
        );
    }
    if content.command.as_ref().is_some_and(|line| line.first().is_none_or(String::is_empty)) {
        return fail("command", "write a program and its arguments, or null");
    }
    match &content.url {
        Some(_) if content.command.is_some() => {
            fail("url", "log.payloads.command is set too: remove one of the two")
        }
        Some(url) if !is_http(url) => {
            fail("url", "write http://host:port/path, without a user name")
        }
        _ => Ok(()),
    }
}

/// Whether this is an `http://` URL without a user name.
pub(super) fn is_http(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.is_some_and(|uri| {
        let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
        uri.scheme_str() == Some("http") && !has_user
    })
}
