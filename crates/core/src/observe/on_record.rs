//! The record of an exchange while the exchange is open.

use crate::record::RequestRecord;
use std::ops::{Deref, DerefMut};

/// The record of an exchange, which is given away when that ends.
pub(super) struct OnRecord(Option<Box<RequestRecord>>);

impl OnRecord {
    pub(super) fn new(record: RequestRecord) -> Self {
        Self(Some(Box::new(record)))
    }

    /// Gives the record away. It must not be read after that.
    pub(super) fn take(&mut self) -> Option<Box<RequestRecord>> {
        self.0.take()
    }
}

#[expect(clippy::expect_used, reason = "it is given away when its exchange is dropped")]
impl Deref for OnRecord {
    type Target = RequestRecord;

    fn deref(&self) -> &RequestRecord {
        self.0.as_ref().expect("the exchange has not ended")
    }
}

#[expect(clippy::expect_used, reason = "it is given away when its exchange is dropped")]
impl DerefMut for OnRecord {
    fn deref_mut(&mut self) -> &mut RequestRecord {
        self.0.as_mut().expect("the exchange has not ended")
    }
}
