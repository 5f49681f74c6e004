//! The latest diagnosis, shared with its readers.

use super::verdict::Diagnosis;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The latest diagnosis. It is empty until the first diagnosis is stored.
#[derive(Debug, Default)]
pub struct LatestDiagnosis(ArcSwap<Diagnosis>);

impl LatestDiagnosis {
    /// Returns the latest diagnosis.
    pub fn latest(&self) -> Arc<Diagnosis> {
        self.0.load_full()
    }

    /// Replaces the latest diagnosis.
    pub fn put(&self, diagnosis: Diagnosis) {
        self.0.store(Arc::new(diagnosis));
    }
}
