//! Where the latest diagnosis hangs for whoever wants to read it.

use super::verdict::Diagnosis;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The latest diagnosis. An empty one, until the first look.
#[derive(Debug, Default)]
pub struct Board(ArcSwap<Diagnosis>);

impl Board {
    /// What was said last.
    pub fn latest(&self) -> Arc<Diagnosis> {
        self.0.load_full()
    }

    /// Says something else from now on.
    pub fn put(&self, diagnosis: Diagnosis) {
        self.0.store(Arc::new(diagnosis));
    }
}
