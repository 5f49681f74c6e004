//! Decides whether a share of harmed requests is significant, even if few requests were counted.

use tokenweir_protocol::openai::EngineError;
use tokenweir_request::record::BY_PROXY;
use tokenweir_request::significance::is_share_above;

/// Harm to clients is critical if significantly more than this share of the requests fail, are refused or
/// are late.
pub const HARMED_SHARE: f64 = 0.05;
/// Minimum number of harmed requests for critical harm.
const MIN_HARMED: u64 = 5;

/// Whether so many of `total` requests are harmed that the harm is critical: at least five, and
/// significantly more than [`HARMED_SHARE`].
pub fn is_critical_harm(harmed: u64, total: u64) -> bool {
    harmed >= MIN_HARMED && is_share_above(harmed, total, HARMED_SHARE)
}

/// Whether an error response of this origin shows a fault of a server rather than of the client: a proxy in front of the
/// engines made it, or the engine lacks a working chat template or tool parser.
pub fn is_fault_of_servers(source: &str) -> bool {
    source.contains(BY_PROXY) || source.ends_with(EngineError::Template.as_str())
}
