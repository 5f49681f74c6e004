//! The canary requests of all backends as an option.

use crate::facet::CanaryFacet;
use crate::rows;
use crate::settings::CanarySettings;
use crate::task::CanaryTask;
use tokenweir_diagnose::DiagnosisSample;
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::health_checker::CheckContext;
use tokenweir_gateway::backend::{Backend, BackendDriver};
use tokenweir_net::supervise::{self, SupervisedTask};
use tokenweir_option::prelude::*;
use tokio::sync::watch;

/// Sends the canary requests of one backend.
const TASK: BackgroundTask = BackgroundTask::new("canary");

/// The canary requests of all backends of a pool.
#[derive(Debug, Default)]
pub struct CanaryRequests {
    settings: watch::Sender<CanarySettings>,
}

impl GatewayOption for CanaryRequests {
    type Settings = CanarySettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: CanarySettings,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(settings);
        parts.drivers.push(self.clone());
        parts.gateway.diagnosis.push(self.clone());
        Ok(())
    }

    fn facet(&self) -> Option<Box<dyn BackendFacet>> {
        Some(Box::<CanaryFacet>::default())
    }

    fn configure(&self, settings: CanarySettings) {
        self.settings.send_if_modified(|current| {
            let is_changed = *current != settings;
            *current = settings;
            is_changed
        });
    }
}

impl BackendDriver for CanaryRequests {
    fn start_for(
        &self,
        backend: &Arc<Backend>,
        context: &Arc<CheckContext>,
    ) -> Option<SupervisedTask> {
        let task = CanaryTask {
            backend: backend.clone(),
            client: context.client.clone(),
            settings: self.settings.subscribe(),
        };
        Some(supervise::spawn(TASK, move || task.clone().run()))
    }
}

impl DiagnosisHooks for CanaryRequests {
    fn complete_samples(
        &self,
        backends: &[Arc<Backend>],
        samples: &mut [(BackendId, DiagnosisSample)],
        now: Instant,
    ) {
        for (backend, (_, sample)) in backends.iter().zip(samples) {
            if let Some(facet) = backend.facets.get::<CanaryFacet>()
                && let Some(gateway) = &mut sample.gateway
            {
                gateway.canary_seconds = facet.silent_seconds(backend, now);
            }
        }
    }
}
