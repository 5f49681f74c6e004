//! Metrics of prefill legs.

use crate::note::{PrefillNote, PrefillSkip};
use tokenweir_gateway::metric::prelude::*;

/// The metrics of prefill legs.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_prefill_legs_total",
        "Requests whose prompt another backend computed, by whether the decode backend got its KV blocks.",
        &[fixed("result", &["used", "unused", "failed"])],
        Record(|record, emit| {
            let mut is_used = record.has_remote_prompt;
            for leg in record.attempts_apart.iter().rev() {
                let is_failed = leg.failure.is_some();
                let result = if is_failed {
                    "failed"
                } else if is_used {
                    "used"
                } else {
                    "unused"
                };
                is_used &= is_failed;
                emit(&[result], 1.0);
            }
        }),
    ),
    row(
        "tokenweir_prefill_legs_skipped_total",
        "Requests whose decode backend computed the prompt itself, by reason.",
        &[fixed("reason", PrefillSkip::NAMES)],
        RecordEvent(|record| {
            record
                .notes
                .get::<PrefillNote>()?
                .skipped
                .map(PrefillSkip::as_str)
        }),
    ),
];
