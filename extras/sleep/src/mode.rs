//! Sleep mode of all engines of a pool.

use crate::facet::SleepFacet;
use crate::rows;
use crate::settings::{Section, SleepSettings};
use std::sync::{Arc, Mutex};
use tokenweir_gateway::backend::facets::PoolFacet;
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_option::{GatewayOption, OptionParts};
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

impl GatewayOption for SleepMode {
    type Section = Section;
    type Settings = SleepSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;

    fn new(settings: &SleepSettings) -> Self {
        Self {
            settings: Arc::new(Mutex::new(*settings)),
            permits: Arc::new(Semaphore::new(1)),
        }
    }

    fn configure(&self, settings: &SleepSettings) {
        *lock(&self.settings) = *settings;
    }

    fn attach(self: &Arc<Self>, parts: &mut OptionParts) {
        parts.facets.push(Box::new(|| Box::<SleepFacet>::default()));
        parts.pool_facets.push(self.clone());
        parts.drivers.push(self.clone());
    }
}

impl PoolFacet for SleepMode {
    fn can_activate(&self, availability: Availability) -> bool {
        availability == Availability::Asleep && lock(&self.settings).wake
    }
}
