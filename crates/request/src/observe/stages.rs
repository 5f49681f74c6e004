//! The stages that the bytes of a response pass between its backend and its client, in this order:
//!
//! 1. [`ResponseStages`]: the splicer, which joins the streams of several backends into one.
//! 2. The observer, which reads what the client gets.
//! 3. The [usage stage](super::usage_filters) of the observer, which removes usage that the gateway requested,
//!    and its `ModelRename`, which writes the name that the client requested into the response.
//! 4. The comments and the error event of this file, which the gateway adds.
//! 5. The producer of a run ([`crate::runs`]), if the client may return. It reads the body of the response.
//!
//! A response without a stage costs one comparison for each chunk. [`Replacement`] holds the end of a response
//! until the decision whether another backend continues it.
//!
//! [`Replacement`]: super::replacement::Replacement

use super::open_streams::{BackendMonitor, StreamEntry};
pub(super) use crate::continuation::InterruptionCause;
use crate::continuation::{Continuations, StreamSplicer};
use crate::record::{Outcome, RecordNote, RequestRecord, Termination};
use bytes::Bytes;
use std::time::Instant;
use tokenweir_protocol::openai::Api;

/// The stages before the observer.
#[derive(Debug, Default)]
pub(super) struct ResponseStages {
    /// Joins the streams of several backends into one. `None`: the stream cannot be continued.
    pub splicer: Option<Box<StreamSplicer>>,
    /// Whether another backend continues the stream but has not sent output yet.
    pub awaits_output: bool,
}

/// SSE comment that the gateway sends while the backend sends nothing, so that proxies between
/// client and gateway do not close an idle connection.
pub const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
const TRUNCATION_MESSAGE: &str = "the backend ended the stream before the response was complete";
const TOTAL_TIMEOUT_MESSAGE: &str =
    "the gateway ended the stream: the request took longer than its total timeout";
const KEY_REVOKED_MESSAGE: &str = "the gateway ended the stream: its API key was removed";
const STALL_MESSAGE: &str = "the gateway ended the stream: the backend sent no output for too long";

impl ResponseStages {
    /// Processes the head of a response. Returns whether its bytes pass a stage. `entry`: its entry among the
    /// open streams.
    pub(super) fn on_head(&mut self, is_success: bool, entry: Option<&StreamEntry>) -> bool {
        let Some(splicer) = &mut self.splicer else {
            return false;
        };
        let Some(entry) = entry else { return false };
        if !is_success || !splicer.is_active() {
            return false;
        }
        splicer.restart();
        entry.set_movable();
        true
    }

    /// Processes a chunk. Returns the bytes to observe, which can be empty.
    pub(super) fn on_data(&mut self, chunk: Bytes) -> Bytes {
        match &mut self.splicer {
            Some(splicer) => splicer.push(chunk),
            None => chunk,
        }
    }

    /// Processes a chunk that had output.
    pub(super) fn on_output(
        &mut self,
        record: &mut RequestRecord,
        backend: Option<&dyn BackendMonitor>,
        now: Instant,
    ) {
        if !std::mem::take(&mut self.awaits_output) {
            return;
        }
        record
            .notes
            .update(|continuations: &mut Continuations| continuations.on_output(now));
        if let Some(backend) = backend {
            backend.on_first_output(now);
        }
    }

    /// Processes the end of a response that ended regularly. Returns the last bytes to observe.
    pub(super) fn on_end(&mut self) -> Bytes {
        match &mut self.splicer {
            Some(splicer) => splicer.finish(),
            None => Bytes::new(),
        }
    }

    /// Processes the end of the exchange, whose record contains its outcome.
    pub(super) fn on_record(&self, record: &mut RequestRecord) {
        if let Some(splicer) = &self.splicer
            && let Some(reason) = splicer.refusal()
            && record.is_broken_stream()
        {
            record
                .notes
                .update(|Continuations { refusal, .. }| *refusal = refusal.or(Some(reason)));
        }
        if record.outcome != Outcome::Ok {
            record.notes.iter().for_each(RecordNote::on_failed);
        }
    }
}

/// The error event that tells the client why its stream ended early.
pub(super) fn error_event(api: Api, termination: Termination) -> Bytes {
    let message = match termination {
        Termination::IdleTimeout => STALL_MESSAGE,
        Termination::TotalTimeout => TOTAL_TIMEOUT_MESSAGE,
        Termination::KeyRevoked => KEY_REVOKED_MESSAGE,
        _ => TRUNCATION_MESSAGE,
    };
    api.error_event(message)
}
