//! The note in the record of a request about the split of its model.

use super::split::Split;
use serde_json::{Value, json};
use std::sync::Arc;
use tokenweir_gateway::telemetry::decision_log::DecisionLogEntry;
use tokenweir_request::record::RecordNote;

/// The version that serves a request. A record has the note only if the model of the request is split.
#[derive(Debug, Clone, Default)]
pub(super) struct SplitNote {
    pub(super) split: Arc<Split>,
    pub(super) version: Arc<str>,
    pub(super) conversation: u64,
}

impl RecordNote for SplitNote {
    fn copy(&self) -> Box<dyn RecordNote> {
        Box::new(self.clone())
    }

    fn requested_model(&self) -> Option<&str> {
        Some(&self.split.name)
    }
}

/// Adds the version of the model of a request to the JSON of its decision.
pub(crate) fn add_to_decision(entry: &DecisionLogEntry, detail: &mut Value) {
    if let Some(note) = entry.notes.get::<SplitNote>() {
        detail["split"] = json!({ "model": *note.split.name, "version": *note.version });
    }
}
