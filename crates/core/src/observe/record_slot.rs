//! The slot that holds the record of an exchange while the exchange is open.

use crate::record::RequestRecord;
use std::ops::{Deref, DerefMut};

/// Holds the record of an exchange. When the exchange ends, it takes the record out of the slot.
pub(super) struct RecordSlot(Option<Box<RequestRecord>>);

impl RecordSlot {
    pub(super) fn new(record: RequestRecord) -> Self {
        Self(Some(Box::new(record)))
    }

    /// Takes the record. The slot must not be dereferenced afterwards.
    pub(super) fn take(&mut self) -> Option<Box<RequestRecord>> {
        self.0.take()
    }
}

#[expect(clippy::expect_used, reason = "the record is taken only when its exchange is dropped")]
impl Deref for RecordSlot {
    type Target = RequestRecord;

    fn deref(&self) -> &RequestRecord {
        self.0.as_ref().expect("the exchange has not ended")
    }
}

#[expect(clippy::expect_used, reason = "the record is taken only when its exchange is dropped")]
impl DerefMut for RecordSlot {
    fn deref_mut(&mut self) -> &mut RequestRecord {
        self.0.as_mut().expect("the exchange has not ended")
    }
}
