//! The result of a request with an `Idempotency-Key`: whether its client returned, or why it could not.

use crate::record::{LogPlace, NoteAttribute, NoteValue, RecordNote, RequestRecord};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::limits::memory_charge::ExceededLimit;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The result of a request with an `Idempotency-Key`.
    #[derive(Default)]
    pub enum RunOutcome {
        /// The gateway kept the response, but the client did not return before the end of the request.
        #[default]
        Kept = "kept",
        /// The client returned to the response before the end of the request.
        Returned = "resumed",
        /// The request got the response of an earlier request.
        Attached = "attached",
        /// The client disconnected and did not return in time, so the request was aborted.
        Abandoned = "abandoned",
        /// The client disconnected while too many requests continued without their clients, so the request was
        /// aborted.
        AbsentLimit = "absent_limit",
        /// The client lacks the permission `resume`.
        NotAllowed = "not_allowed",
        /// The client has no identity: no API key and no `Authorization`.
        NoIdentity = "no_identity",
        /// The `Idempotency-Key` is empty or longer than 255 bytes, or there are several.
        InvalidKey = "invalid_key",
        /// The response exceeds the memory that one response may take.
        RunMemory = "response_memory",
        /// The responses of the tenant, or of the address, take all memory that one party may take.
        TenantMemory = "tenant_memory",
        /// The responses of all clients take all memory of `streams.resume.memory`.
        TotalMemory = "total_memory",
    }
}

/// The present result of a request with an `Idempotency-Key`. The record of the request reads it at the end of
/// the response.
#[derive(Debug, Default)]
pub struct RunNote {
    outcome: AtomicU8,
    has_failed: AtomicFlag,
}

impl From<ExceededLimit> for RunOutcome {
    fn from(limit: ExceededLimit) -> Self {
        match limit {
            ExceededLimit::One => Self::RunMemory,
            ExceededLimit::Party => Self::TenantMemory,
            ExceededLimit::Total => Self::TotalMemory,
        }
    }
}

impl RecordNote for Arc<RunNote> {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(Arc::new(RunNote::new(self.get())))
    }

    fn log_field(&self, after: LogPlace) -> Option<NoteAttribute> {
        let value = NoteValue::Text(self.get().as_str());
        (after == LogPlace::SlowCause).then_some(NoteAttribute {
            name: "resume",
            value,
        })
    }

    fn span_attribute(&self) -> Option<NoteAttribute> {
        let value = NoteValue::Text(self.get().as_str());
        Some(NoteAttribute {
            name: "tokenweir.resume",
            value,
        })
    }

    fn outlives_connection(&self) -> bool {
        self.get() == RunOutcome::Kept
    }

    /// Marks the run as failed, so that a returning client's request is sent to a backend again.
    fn on_failed(&self) {
        self.has_failed.set(true);
    }
}

impl RunNote {
    /// The name of a request's result in metrics and reports. `None`: the request has no `Idempotency-Key`, or
    /// `streams.resume` is off.
    pub fn outcome_of(record: &RequestRecord) -> Option<&'static str> {
        record
            .notes
            .get::<Arc<Self>>()
            .map(|note| note.get().as_str())
    }

    /// A result with this outcome, for a request that has not failed.
    pub fn new(outcome: RunOutcome) -> Self {
        let note = Self::default();
        note.set(outcome);
        note
    }

    /// Replaces the outcome, for example when the client has returned.
    pub fn set(&self, outcome: RunOutcome) {
        self.outcome.store(outcome as u8, Ordering::Relaxed);
    }

    /// The outcome so far.
    pub fn get(&self) -> RunOutcome {
        let index = usize::from(self.outcome.load(Ordering::Relaxed));
        RunOutcome::ALL.get(index).copied().unwrap_or_default()
    }

    /// Whether the request was not successful.
    pub fn has_failed(&self) -> bool {
        self.has_failed.get()
    }
}
