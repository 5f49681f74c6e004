//! The notes that options write into the record of a request. The record, its figures and the sinks use only
//! this contract, and no option directly.

use serde::Serialize;
use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::time::Instant;

/// The note of one option in the record of a request. Each method except `copy` has a default.
pub trait RecordNote: Any + Debug + Send + Sync {
    /// Clones the note for a copy of the record.
    fn copy(&self) -> Box<dyn RecordNote>;

    /// The field that follows the field `_after` in an access log line. `None`: no field.
    fn log_field(&self, _after: LogPlace) -> Option<NoteAttribute> {
        None
    }

    /// The attribute for the inference span. `None`: no attribute.
    fn span_attribute(&self) -> Option<NoteAttribute> {
        None
    }

    /// The events for the span of an attempt. An attempt with an event is no retry.
    fn attempt_events(&self, _span_id: u64) -> Vec<NoteEvent> {
        Vec::new()
    }

    /// The name that the client requested, if another model serves the request as a version of that name.
    fn requested_model(&self) -> Option<&str> {
        None
    }

    /// Number of tokens that engines computed again. `prompt`: number of tokens of the prompt.
    fn recomputed_tokens(&self, _prompt: u64) -> u64 {
        0
    }

    /// Whether the request continues if its client loses the connection.
    fn outlives_connection(&self) -> bool {
        false
    }

    /// Called at the end of an unsuccessful request.
    fn on_failed(&self) {}
}

/// The notes in one record, at most one of each type.
#[derive(Debug, Default)]
pub struct RecordNotes(Vec<Box<dyn RecordNote>>);

/// A place in an access log line: after which field an option may add one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogPlace {
    /// The field follows the cause of slowness.
    SlowCause,
    /// The field follows the number of attempts.
    Attempts,
}

/// A field of a log line, or an attribute of a span.
#[derive(Debug, Clone)]
pub struct NoteAttribute {
    /// The name of the field or attribute.
    pub name: &'static str,
    /// The value of the attribute.
    pub value: NoteValue,
}

/// An event of a span, with the time at which it happened.
#[derive(Debug, Clone)]
pub struct NoteEvent {
    /// The name in traces.
    pub name: &'static str,
    /// Time of the event.
    pub at: Instant,
    /// Further data of the event.
    pub attributes: Vec<NoteAttribute>,
}

/// A value that logs, spans and reports show.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum NoteValue {
    /// A name from a closed set.
    Text(&'static str),
    /// A text of a client or a backend, whose length the option limits.
    Foreign(String),
    /// A count of things, such as tokens.
    Count(u64),
    /// A duration in seconds.
    Seconds(f64),
}

impl RecordNotes {
    /// The note of type `N`. `None`: the option wrote none.
    pub fn get<N: RecordNote>(&self) -> Option<&N> {
        self.0.iter().find_map(|note| {
            let note: &dyn Any = &**note;
            note.downcast_ref()
        })
    }

    /// Writes a note, and replaces an earlier one of its type.
    pub fn set<N: RecordNote + Default>(&mut self, note: N) {
        self.update(|old| *old = note);
    }

    /// Changes the note of type `N`. The first change starts from the default.
    pub fn update<N: RecordNote + Default>(&mut self, change: impl FnOnce(&mut N)) {
        let found = self.0.iter_mut().find_map(|note| {
            let note: &mut dyn Any = &mut **note;
            note.downcast_mut()
        });
        if let Some(note) = found {
            return change(note);
        }
        let mut note = N::default();
        change(&mut note);
        self.0.push(Box::new(note));
    }

    /// The name that the client requested. `None`: it equals the model in the record.
    pub fn requested_model(&self) -> Option<&str> {
        self.iter().find_map(RecordNote::requested_model)
    }

    /// All notes, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &dyn RecordNote> {
        self.0.iter().map(|note| &**note)
    }
}

impl Clone for RecordNotes {
    fn clone(&self) -> Self {
        Self(self.iter().map(RecordNote::copy).collect())
    }
}

impl Display for NoteValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Foreign(text) => f.write_str(text),
            Self::Count(count) => write!(f, "{count}"),
            Self::Seconds(seconds) => write!(f, "{seconds}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    struct First(u32);

    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    struct Second(u32);

    impl RecordNote for First {
        fn copy(&self) -> Box<dyn RecordNote> {
            Box::new(*self)
        }
    }

    impl RecordNote for Second {
        fn copy(&self) -> Box<dyn RecordNote> {
            Box::new(*self)
        }
    }

    #[test]
    fn each_note_is_found_by_its_type() {
        let mut notes = RecordNotes::default();
        assert_eq!(notes.get::<First>(), None);
        notes.set(First(1));
        notes.update(|Second(count)| *count += 2);
        notes.update(|Second(count)| *count += 2);
        let copy = notes.clone();
        notes.set(First(9));
        assert_eq!(
            (notes.get(), notes.get()),
            (Some(&First(9)), Some(&Second(4)))
        );
        assert_eq!((copy.get(), copy.iter().count()), (Some(&First(1)), 2));
    }
}
