//! Rules about the content log.

use super::rules::{Broken, broken};
use crate::telemetry::content::Settings;
use http::Uri;

/// Most bytes of a text.
const MAX_TEXT: usize = 1 << 20;

/// Fewest bytes of the file: when it is full it has room for several of the longest lines.
pub(super) const MIN_FILE: usize = 1 << 20;

/// How many of the longest lines a file has room for, escapes included.
pub(super) const LINES: usize = 32;

/// The first rule that is broken.
pub(super) fn check(content: &Settings) -> Result<(), Broken> {
    let wrong = |key: &str, problem: &str| Err(broken(&format!("log.content.{key}"), problem));
    if content.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return wrong("file", "write the path of a file, or null");
    }
    if !(content.sample > 0.0 && content.sample <= 1.0) {
        return wrong("sample", "a share is more than 0 and at most 1");
    }
    if !(1..=MAX_TEXT).contains(&content.max_bytes) {
        return wrong("max_bytes", "this must be between 1 and 1MiB");
    }
    if content.max_file_bytes < MIN_FILE.max(LINES * content.max_bytes) {
        return wrong("max_file_bytes", "this must be 1MiB or more, and 32 times max_bytes");
    }
    if content.command.as_ref().is_some_and(|line| line.first().is_none_or(String::is_empty)) {
        return wrong("command", "write a program and its arguments, or null");
    }
    match &content.url {
        Some(_) if content.command.is_some() => wrong("url", "there is a command already"),
        Some(url) if !is_http(url) => wrong("url", "write http://host:port/path, without a user"),
        _ => Ok(()),
    }
}

pub(super) fn is_http(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.is_some_and(|uri| {
        let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
        uri.scheme_str() == Some("http") && !has_user
    })
}
