//! Trace capture: writes finished requests without their text to a file, one JSON object per line.
//!
//! A line has the arrival time, the lengths of the prompt and the response, and IDs of the blocks
//! of the prompt. Equal blocks have equal IDs. `tokenweir-lab replay` reads the file.
//!
//! The block hashes that routing uses are not written, because each hash is the seed of the next hash: a
//! reader who has two consecutive hashes could test guesses of the text between them. The IDs are
//! `SipHash` values of the block hashes instead. The key of `SipHash` is random, is drawn when the
//! capture starts and never leaves the process. So the gateway needs no table of IDs, but IDs of
//! different captures cannot be compared. IDs have 53 bits, which every JSON reader preserves. A
//! reader of the file who can also send requests to this gateway can still test a guess of a text, by
//! sending the text and comparing the IDs.
//!
//! Requests that failed because of the client are not captured, because no engine computed them.

pub mod rows;
mod section;

pub use section::TraceCaptureConfig;

use rows::TraceCaptureStatus;
use serde::Serialize;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::io;
use std::path::Path;
use std::time::SystemTime;
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::telemetry::access_log::millis;
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_gateway::telemetry::non_blocking_writer::NonBlockingWriter;
use tokenweir_gateway::telemetry::rotating_file::{
    FileRecordCounts, RotatingFile, RotatingFileCounters,
};
use tokenweir_gateway::telemetry::sanitize;
use tokenweir_option::prelude::*;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord};
use tokenweir_routing::{PromptFingerprint, mix, unit};

/// The sink that writes captured requests to a file. A thread of its own writes the file.
pub struct TraceCapture {
    writer: NonBlockingWriter,
    /// Share of requests that are captured, from 0 to 1.
    share: f64,
    /// Random key of the hash function for the anonymous IDs.
    hash_key: RandomState,
    file_counters: Arc<RotatingFileCounters>,
}

/// Guard of the thread that writes the trace capture. Dropping the guard waits until the remaining
/// lines are written, but at most 1 s.
pub type TraceCaptureGuard = BatchWorkerGuard;

/// The line of one request. The first four fields are those of the trace format of Mooncake.
#[derive(Serialize)]
struct CapturedRequest<'a> {
    /// The time of arrival, in milliseconds since the Unix epoch.
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    /// One ID for each complete block of the prompt.
    hash_ids: Vec<u64>,
    block_bytes: u32,
    input_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    /// The number of output tokens after which the client disconnected.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_after: Option<u64>,
    input_source: &'static str,
    output_source: &'static str,
    cached_tokens: Option<u64>,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a str>,
    api: &'static str,
    backend: Option<&'a str>,
    status: Option<u16>,
    outcome: &'static str,
    ttft_ms: Option<f64>,
    e2e_ms: f64,
}

/// Typical number of bytes per token of English text. The prompt tokens are estimated with it if the engine
/// did not report their number.
const ESTIMATED_BYTES_PER_TOKEN: u64 = 4;
/// HTTP status 429, which a backend returns when it is overloaded.
const TOO_MANY_REQUESTS_STATUS: u16 = 429;

impl TraceCapture {
    /// Starts a capture that appends `share` of the requests, from 0 to 1, to `file`. The file is rotated at half of `max_bytes`, so that
    /// the file and the rotated file `<file>.old` together have at most `max_bytes`. Fails if
    /// `file` is not a regular file or cannot be opened for writing.
    pub fn start(file: &Path, max_bytes: u64, share: f64) -> io::Result<(Self, TraceCaptureGuard)> {
        let file_counters = Arc::new(RotatingFileCounters::default());
        let file = RotatingFile::open(file, max_bytes / 2, file_counters.clone())?;
        let (writer, guard) = NonBlockingWriter::start("trace capture", file);
        Ok((
            Self {
                writer,
                share,
                hash_key: RandomState::new(),
                file_counters,
            },
            guard,
        ))
    }

    /// Returns the numbers of requests that were written to the file and that were dropped since
    /// the start of the capture.
    pub fn counts(&self) -> FileRecordCounts {
        self.file_counters.record_counts(self.writer.dropped())
    }

    /// Returns an ID for a value. The value cannot be computed from the ID. Equal values have equal IDs
    /// within this capture only.
    fn anonymous_id(&self, value: impl Hash) -> u64 {
        self.hash_key.hash_one(value) >> 11
    }

    fn build_line(&self, record: &RequestRecord, prompt: &PromptFingerprint) -> String {
        let observed = &*record.observed;
        let since_1970 = record
            .started
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let input_tokens = observed.usage.input;
        let estimated = prompt.bytes.div_ceil(ESTIMATED_BYTES_PER_TOKEN);
        let block_ids = prompt
            .blocks
            .iter()
            .map(|it| self.anonymous_id(("block", it)));
        let tier = record.tier.as_str();
        let line = CapturedRequest {
            timestamp: millis(since_1970),
            input_length: input_tokens.unwrap_or(estimated),
            output_length: record.output_tokens().unwrap_or(0),
            hash_ids: block_ids.collect(),
            block_bytes: prompt.block_bytes,
            input_bytes: prompt.bytes,
            session: record
                .session_hash
                .map(|it| self.anonymous_id(("session", it))),
            left_after: record.tokens_before_disconnect(),
            input_source: if input_tokens.is_some() {
                "exact"
            } else {
                "estimated"
            },
            output_source: observed.usage_source.as_str(),
            cached_tokens: observed.usage.cached,
            model: record.model.known_name(),
            tier: if tier.is_empty() { None } else { Some(tier) },
            api: record.api.map_or("none", Api::as_str),
            backend: record.backend().map(BackendId::as_str),
            status: record.status,
            outcome: record.outcome.as_str(),
            ttft_ms: record.ttft().map(millis),
            e2e_ms: millis(record.duration()),
        };
        // All values can be written as JSON, so this does not fail.
        let mut line = sanitize::json(serde_json::to_string(&line).unwrap_or_default());
        line.push('\n');
        line
    }
}

impl Sink for TraceCapture {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let Some(prompt) = &record.fingerprint else {
                continue;
            };
            if is_client_error(record) {
                continue;
            }
            if is_sampled(self.share, record.session_hash, fastrand::u64(..)) {
                self.writer.give(self.build_line(record, prompt));
            }
        }
    }
}

/// Whether a request is captured. Either all requests of a session are captured or none, so that the capture
/// shows the prompt prefixes that these requests share. `random` decides for a request without a session.
fn is_sampled(share: f64, session: Option<u64>, random: u64) -> bool {
    unit(session.map_or(random, mix)) < share
}

/// Whether the backend or the gateway rejected the request because of an error of the client, such as an
/// unknown model. Status 429 means overload and does not count as an error of the client.
fn is_client_error(record: &RequestRecord) -> bool {
    matches!(record.outcome, Outcome::ClientError | Outcome::Rejected)
        && record
            .status
            .is_some_and(|status| (400..500).contains(&status))
        && record.status != Some(TOO_MANY_REQUESTS_STATUS)
}

/// The trace capture as an option. Empty without a configured file.
#[derive(Default)]
pub struct TraceCaptureOption(OnceLock<Arc<TraceCapture>>);

impl GatewayOption for TraceCaptureOption {
    type Settings = TraceCaptureConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;

    fn start(
        self: &Arc<Self>,
        settings: TraceCaptureConfig,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        let Some(file) = &settings.file else {
            return Ok(());
        };
        let name = file.display();
        let problem = format!("cannot write the capture file {name} (trace_capture.file)");
        let started = TraceCapture::start(file, context.max_file_bytes, settings.sample);
        let (capture, guard) = started.map_err(in_part(problem))?;
        let _ = self.0.set(parts.add_sink(capture, guard));
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        let counts = self.0.get().map(|capture| capture.counts());
        status
            .blocks
            .add(TraceCaptureStatus(counts.unwrap_or_default()));
    }

    fn output(settings: &TraceCaptureConfig) -> Option<OutputTarget> {
        let target = settings.file.as_ref()?.display().to_string();
        Some(OutputTarget {
            key: "trace_capture",
            name: "capture",
            text: format!("to {target}, without texts of requests"),
            target,
        })
    }
}

#[cfg(test)]
mod tests;
