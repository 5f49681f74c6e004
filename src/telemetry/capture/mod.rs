//! The traffic without its text, one JSON object a line: when requests came, how long they were
//! and which blocks of their prompts were equal. `tokenweir replay` reads it.
//!
//! Equal blocks have equal numbers, and nothing else can be learned from a number. The hashes that
//! routing works with would tell more: each is the seed of the next, so whoever has two of them in
//! a row could try guesses of the text between them. So what is written is a `SipHash` of those,
//! whose key is drawn when the capture starts and never leaves the process. That takes no table of
//! numbers, which would have to forget; the price is that numbers of two runs have nothing in
//! common. They have 53 bits, which every reader of JSON keeps. Whoever can both read the file and
//! send requests to this gateway can still try a guess, by sending it.
//!
//! Requests that were at fault are left out: no engine computed anything for them.

use super::access_log::millis;
use super::batched::{Batched, Writing};
use super::bounded_file::{Bounded, Tally};
use serde::Serialize;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{BackendId, Captured, Outcome, RequestRecord};

/// The sink that writes the lines, from a thread of its own.
pub struct Capture {
    writer: Batched,
    key: RandomState,
    counts: Counter,
}

/// Counts what became of records, while they are written.
#[derive(Clone)]
pub struct Counter {
    tally: Arc<Tally>,
    writer: Batched,
}

/// What became of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// In the file.
    pub written: u64,
    /// Not in the file: the disk was too slow, or failed.
    pub dropped: u64,
}

/// Writes what is left when it is dropped.
pub struct Running(#[expect(dead_code, reason = "it is there to be dropped")] Writing);

/// Bytes of a prompt for one token, where nobody has told: English text.
const BYTES_PER_TOKEN: u64 = 4;
/// The status of a server that is full.
const TOO_MANY_REQUESTS: u16 = 429;

/// The fields of a line. The first ones are those of Mooncake's traces.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// Arrival, in milliseconds since 1970.
    timestamp: f64,
    /// Tokens of the prompt.
    input_length: u64,
    /// Tokens of the answer; 0 if there was none.
    output_length: u64,
    /// One for each whole block of the prompt.
    hash_ids: Vec<u64>,
    /// Bytes in a block.
    block_bytes: u32,
    /// Bytes of the prompt.
    input_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_after: Option<u64>,
    /// `exact`, or `estimated` from the bytes.
    input_source: &'static str,
    /// As [`tokenweir_core::record::UsageSource::as_str`].
    output_source: &'static str,
    cached_tokens: Option<u64>,
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tier: &'a str,
    api: &'static str,
    backend: Option<&'a str>,
    status: Option<u16>,
    outcome: &'static str,
    ttft_ms: Option<f64>,
    e2e_ms: f64,
}

// === impl Capture ===

impl Capture {
    /// Appends to `file`. It and the one before it, `file` with `.old` at its end, never have more
    /// than `max_bytes` together. Fails if the file cannot be written or is none.
    pub fn start(file: &Path, max_bytes: u64) -> io::Result<(Self, Running)> {
        let tally = Arc::new(Tally::default());
        let file = Bounded::open(file, max_bytes / 2, tally.clone())?;
        let (writer, writing) = Batched::start(file);
        let counts = Counter { tally, writer: writer.clone() };
        Ok((Self { writer, key: RandomState::new(), counts }, Running(writing)))
    }

    /// What counts the records.
    pub fn counter(&self) -> Counter {
        self.counts.clone()
    }

    /// The number that stands for something, in this capture.
    fn number(&self, of: impl Hash) -> u64 {
        self.key.hash_one(of) >> 11
    }

    fn line<'a>(&self, record: &'a RequestRecord, captured: &Captured) -> Line<'a> {
        let observed = &record.observed;
        let since_1970 = record.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let told = observed.usage.input;
        Line {
            timestamp: millis(since_1970),
            input_length: told.unwrap_or(captured.bytes.div_ceil(BYTES_PER_TOKEN)),
            output_length: record.output_tokens().unwrap_or(0),
            hash_ids: captured.blocks.iter().map(|block| self.number(("block", block))).collect(),
            block_bytes: captured.block_bytes,
            input_bytes: captured.bytes,
            session: captured.session.map(|session| self.number(("session", session))),
            left_after: record.left_after(),
            input_source: if told.is_some() { "exact" } else { "estimated" },
            output_source: observed.usage_source.as_str(),
            cached_tokens: observed.usage.cached,
            model: record.model.name(),
            tier: record.tier.as_str(),
            api: record.api.map_or("none", tokenweir_core::openai::Api::as_str),
            backend: record.backend().map(BackendId::as_str),
            status: record.status,
            outcome: record.outcome.as_str(),
            ttft_ms: record.ttft().map(millis),
            e2e_ms: millis(record.duration()),
        }
    }
}

impl Sink for Capture {
    fn finished(&self, record: &RequestRecord) {
        let Some(captured) = record.captured.as_ref().filter(|_| !is_at_fault(record)) else {
            return;
        };
        // A struct of texts and numbers always has a JSON form.
        let mut line = serde_json::to_string(&self.line(record, captured)).unwrap_or_default();
        line.push('\n');
        self.writer.give(line);
    }
}

/// Turned away for what it is, not because there was no room for it.
fn is_at_fault(record: &RequestRecord) -> bool {
    record.outcome == Outcome::ClientError && record.status != Some(TOO_MANY_REQUESTS)
}

// === impl Counter ===

impl Counter {
    /// So far.
    pub fn counts(&self) -> Counts {
        let failed = self.tally.failed.load(Ordering::Relaxed);
        Counts {
            written: self.tally.written.load(Ordering::Relaxed),
            dropped: failed + self.writer.dropped(),
        }
    }
}

#[cfg(test)]
mod tests;
