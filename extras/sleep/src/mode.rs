//! Sleep mode of all engines of a pool.

use crate::facet::SleepFacet;
use crate::rows;
use crate::settings::SleepSettings;
use std::sync::Mutex;
use tokenweir_gateway::backend::facets::PoolFacet;
use tokenweir_option::prelude::*;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience::Availability;
use tokio::sync::Semaphore;

/// Sleep mode of all engines of a pool.
#[derive(Debug, Clone)]
pub struct SleepMode {
    pub(crate) settings: Arc<Mutex<SleepSettings>>,
    /// The permit to put an engine to sleep. There is a single permit, so only one engine at a time falls
    /// asleep.
    pub(crate) permits: Arc<Semaphore>,
}

impl GatewayOption for SleepMode {
    type Settings = SleepSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;

    fn start(
        self: &Arc<Self>,
        settings: SleepSettings,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(settings);
        parts.pool_facets.push(self.clone());
        parts.drivers.push(self.clone());
        Ok(())
    }

    fn facet(&self) -> Option<Box<dyn BackendFacet>> {
        Some(Box::<SleepFacet>::default())
    }

    fn configure(&self, settings: SleepSettings) {
        *lock(&self.settings) = settings;
    }
}

impl Default for SleepMode {
    fn default() -> Self {
        Self {
            settings: Arc::default(),
            permits: Arc::new(Semaphore::new(1)),
        }
    }
}

impl PoolFacet for SleepMode {
    fn can_activate(&self, availability: Availability) -> bool {
        availability == Availability::Asleep && lock(&self.settings).wake
    }
}
