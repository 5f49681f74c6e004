//! The samples of quality monitoring, and the numbers of samples by result.

use serde::Serialize;
use std::sync::{Arc, Mutex};
use tokenweir_gateway::telemetry::rotating_file::RotatingFileCounters;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::openai::{FinishReason, TextExcerpt};
use tokenweir_redaction::{PayloadJob, RedactedPayload};
use tokenweir_request::record::RequestRecord;

/// Number of quality samples by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QualitySampleCounts {
    /// Samples that were scored, or written to the file if no judge is configured.
    pub done: u64,
    /// Samples that were dropped because the queue was full, the disk failed or the gateway shut
    /// down.
    pub dropped: u64,
    /// Samples that were not scored because the judge failed or was too slow. Such a sample is
    /// still written to the file if a file is configured.
    pub judge_failed: u64,
}

impl QualitySampleCounts {
    /// Returns the number of samples for each result: first the name of the result, then the
    /// number.
    pub const fn by_result(&self) -> [(&'static str, u64); 3] {
        [
            ("done", self.done),
            ("dropped", self.dropped),
            ("judge_failed", self.judge_failed),
        ]
    }
}

#[derive(Debug, Default)]
pub(super) struct QualitySampleCounters {
    pub(super) done: AtomicCounter,
    pub(super) judge_failed: AtomicCounter,
    /// Why the judge has not scored one of the last samples. `None`: it has scored them, or there is none.
    pub(super) judge_error: Mutex<Option<String>>,
    pub(super) file_counters: Arc<RotatingFileCounters>,
}

/// A quality sample in the queue of the worker thread.
pub(super) struct QualityJob {
    pub(super) texts: PayloadJob,
    pub(super) metadata: ResponseMetadata,
}

/// The finish reasons of a response, its number of output tokens, and whether the model declined to answer.
#[derive(Debug, Serialize)]
pub(super) struct ResponseMetadata {
    /// The finish reason of each choice. `None`: the choice has no finish reason.
    pub(super) finish_reasons: Vec<Option<&'static str>>,
    pub(super) output_tokens: Option<u64>,
    /// Whether the model declined to answer.
    pub(super) refused: bool,
}

/// A redacted quality sample. The judge and the file receive its fields as JSON, in this order.
#[derive(Debug, Serialize)]
pub(super) struct QualitySample<'a> {
    #[serde(flatten)]
    pub(super) payload: RedactedPayload<'a>,
    #[serde(flatten)]
    pub(super) metadata: &'a ResponseMetadata,
    /// The score of the judge. `None`: the sample was not scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) score: Option<f64>,
}

impl QualityJob {
    pub(super) fn from_record(record: &RequestRecord, prompt: TextExcerpt) -> Self {
        let observed = &*record.observed;
        let finish_reasons = observed.finish_reasons.iter();
        let metadata = ResponseMetadata {
            finish_reasons: finish_reasons
                .map(|reason| reason.map(FinishReason::as_str))
                .collect(),
            output_tokens: record.output_tokens(),
            refused: record.is_model_refusal(),
        };
        Self {
            texts: PayloadJob::from_record(record, prompt),
            metadata,
        }
    }
}
