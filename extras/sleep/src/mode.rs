//! Sleep mode of all engines of a pool.

use crate::settings::SleepSettings;
use std::sync::{Arc, Mutex};
use tokenweir_gateway::backend::facets::PoolFacet;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience::Availability;
use tokio::sync::Semaphore;

/// Sleep mode of all engines of a pool.
#[derive(Debug, Clone)]
pub struct SleepMode {
    pub(crate) settings: Arc<Mutex<SleepSettings>>,
    /// The permit to put an engine to sleep. There is one, so only one engine at a time falls asleep.
    pub(crate) permits: Arc<Semaphore>,
}

impl SleepMode {
    /// The sleep mode with these settings.
    pub fn new(settings: SleepSettings) -> Self {
        Self {
            settings: Arc::new(Mutex::new(settings)),
            permits: Arc::new(Semaphore::new(1)),
        }
    }

    /// Applies the settings of a reload.
    pub fn configure(&self, settings: SleepSettings) {
        *lock(&self.settings) = settings;
    }
}

impl PoolFacet for SleepMode {
    fn can_activate(&self, availability: Availability) -> bool {
        availability == Availability::Asleep && lock(&self.settings).wake
    }
}
