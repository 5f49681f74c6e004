//! Decides whether a share of harmed requests is significant, even if few requests were counted.

use tokenweir_protocol::openai::EngineError;
use tokenweir_request::record::BY_PROXY;
use tokenweir_request::significance::is_share_above;

/// Harm to clients is critical if significantly more than this share of the requests fails, is refused or is
/// late.
pub const HARMED_SHARE: f64 = 0.05;
/// Minimum number of harmed requests for critical harm.
const MIN_HARMED: u64 = 5;

/// Whether the harm is critical: at least five of `total` requests are harmed, and significantly more than
/// [`HARMED_SHARE`].
pub fn is_critical_harm(harmed: u64, total: u64) -> bool {
    harmed >= MIN_HARMED && is_share_above(harmed, total, HARMED_SHARE)
}

/// Whether an error response of this origin is the fault of a server and not of the client. This is true for a
/// proxy in front of the engines, and for an engine without a working chat template or tool parser.
pub fn is_fault_of_servers(source: &str) -> bool {
    source.contains(BY_PROXY) || source.ends_with(EngineError::Template.as_str())
}
