//! The record of an exchange while the exchange lasts.

use crate::record::RequestRecord;
use std::ops::{Deref, DerefMut};

/// The record of an exchange, which is given away when that ends.
pub(super) struct OnRecord(pub(super) Option<Box<RequestRecord>>);

// === impl OnRecord ===

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
