//! The section `log.payloads`: the log of prompts and responses.

use crate::settings::PayloadLogSettings;
use tokenweir_settings::{CheckResult, OutputFile, file_path, require, sample_share, violation_of};

/// Maximum of `log.payloads.max_bytes`, the maximum length of one logged text.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Minimum of `log.max_file_bytes`, so that a full file contains several of the longest lines.
const MIN_FILE_BYTES: usize = 1 << 20;

/// Minimum of `log.max_file_bytes` as a multiple of `log.payloads.max_bytes`. A line contains several
/// texts, and JSON escapes lengthen them.
const MIN_TEXTS_PER_FILE: usize = 32;

/// Returns the first violation of the rules. `max_file_bytes`: the value of `log.max_file_bytes`.
pub fn check(payloads: &PayloadLogSettings, max_file_bytes: usize) -> CheckResult {
    sample_share("log.payloads.sample", payloads.sample)?;
    file_path("log.payloads.file", payloads.file.as_deref())?;
    let is_length = (1..=MAX_TEXT_BYTES).contains(&payloads.max_bytes);
    require(
        is_length,
        "log.payloads.max_bytes",
        "this must be between 1 and 1MiB",
    )?;
    if max_file_bytes < MIN_FILE_BYTES.max(MIN_TEXTS_PER_FILE * payloads.max_bytes) {
        let problem = "this must be at least 1MiB and at least 32 times log.payloads.max_bytes";
        return Err(violation_of(
            ["log.max_file_bytes", "log.payloads.max_bytes"],
            problem,
        ));
    }
    Ok(())
}

/// The file that the gateway writes. `None`: no payload log is configured.
pub fn output_file(payloads: &PayloadLogSettings) -> Option<OutputFile<'_>> {
    OutputFile::new("log.payloads.file", payloads.file.as_deref())
}
