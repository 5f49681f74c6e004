//! The note in the record of a request about its prefill legs.

use serde_json::{Value, json};
use tokenweir_gateway::telemetry::decision_log::{
    DecisionLogEntry, attempt_to_json, round_significant,
};
use tokenweir_protocol::named_enum;
use tokenweir_request::record::{NoteAttribute, NoteValue, RecordNote};

named_enum! {
    /// Why a request to a decode backend has no prefill leg. The decode backend computes the prompt
    /// itself.
    #[derive(Hash)]
    pub enum PrefillSkip {
        /// The gateway makes no prefill legs for the API of the request.
        Api = "api",
        /// A field of the request rules out a prefill leg, or the request may have side effects.
        Field = "field",
        /// A request header has a digest of the body, so the gateway must not edit the body.
        SignedBody = "signed_body",
        /// No prefill backend is available.
        NoBackend = "no_backend",
        /// The gateway expects that the first output would not come earlier with a prefill leg.
        NotFaster = "not_faster",
        /// The request bodies in the gateway leave no memory for the bodies of two legs.
        Memory = "memory",
        /// All prefill legs failed, or the decode backend did not receive the KV blocks.
        Failed = "failed",
    }
}

/// The prefill legs of a request. A record has the note only if an attempt went to a backend that serves decode
/// legs.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefillNote {
    /// The prediction for the last prefill leg that was considered. `None`: nothing was predicted.
    pub predicted: Option<PredictedTtfts>,
    /// Why the last attempt had no prefill leg. `None`: the last attempt had a prefill leg.
    pub skipped: Option<PrefillSkip>,
}

/// Predicted times from a request to its first output, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedTtfts {
    /// The prediction for a prefill leg and a decode leg.
    pub with_leg: f64,
    /// The prediction for the decode backend alone.
    pub alone: f64,
}

impl RecordNote for PrefillNote {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(*self)
    }

    fn span_attribute(&self) -> Option<NoteAttribute> {
        let value = NoteValue::Text(self.skipped?.as_str());
        Some(NoteAttribute {
            name: "tokenweir.prefill_leg.skipped",
            value,
        })
    }
}

/// Adds the prefill legs of a request to the JSON of its decision.
pub(crate) fn add_to_decision(entry: &DecisionLogEntry, detail: &mut Value) {
    let Some(note) = entry.notes.get::<PrefillNote>() else {
        detail["prefill_legs"] = Value::Null;
        return;
    };
    detail["prefill_legs"] = json!({
        "sent": entry.attempts_apart.iter().map(attempt_to_json).collect::<Vec<_>>(),
        "used": entry.has_remote_prompt,
        "skipped": note.skipped.map(PrefillSkip::as_str),
        "predicted_ttft_seconds": note.predicted.map(|ttft| round_significant(ttft.with_leg)),
        "predicted_ttft_seconds_without": note.predicted.map(|ttft| round_significant(ttft.alone)),
    });
}
