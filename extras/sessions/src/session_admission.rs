//! The option as a whole: turns the gate on and off, and keeps its capacity up to date.

use super::session_gate::SessionGate;
use super::sessions_status::SessionsStatus;
use super::settings::SessionSettings;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::proxy::ProxyState;
use tokenweir_gateway::proxy::admission::AdmissionController;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// Counts the gateways that share the backends.
pub type GatewayCount = Arc<dyn Fn(Instant) -> u64 + Send + Sync>;

/// Admission by live sessions.
pub struct SessionAdmission {
    pool: Arc<BackendPool>,
    admission: Arc<AdmissionController>,
    gateway_count: GatewayCount,
    running: Mutex<Option<Running>>,
}

/// The gate while the option is on.
struct Running {
    settings: SessionSettings,
    gate: Arc<SessionGate>,
    /// The task ends when it is dropped.
    _task: SupervisedTask,
}

/// Time between two updates of the gate. A request whose longest wait is over can wait that much longer.
const UPDATED_EVERY: Duration = Duration::from_millis(500);

impl SessionAdmission {
    /// Admission without the gate, until [`Self::configure`] turns it on.
    pub fn new(proxy: &ProxyState, gateway_count: GatewayCount) -> Self {
        Self {
            pool: proxy.pool.clone(),
            admission: proxy.admission.clone(),
            gateway_count,
            running: Mutex::default(),
        }
    }

    /// Turns the gate on or off. Requests that wait for it go on when it is off. Must be called inside a Tokio
    /// runtime.
    pub fn configure(&self, settings: SessionSettings) {
        let mut running = lock(&self.running);
        if running
            .as_ref()
            .is_some_and(|running| running.settings == settings)
        {
            return;
        }
        if !settings.enabled {
            *running = None;
            self.admission.set_gate(None);
            return;
        }
        let previous = running.take().map(|running| running.gate);
        let gate = previous.unwrap_or_else(|| Arc::new(SessionGate::new(self.pool.clone())));
        let updated = gate.clone();
        let gateway_count = self.gateway_count.clone();
        let task = supervise::spawn(BackgroundTask::Admission, move || {
            update_always(updated.clone(), settings, gateway_count.clone())
        });
        self.admission.set_gate(Some(gate.clone()));
        *running = Some(Running {
            settings,
            gate,
            _task: task,
        });
    }

    /// The state of the gate. `None`: the option is off.
    pub(super) fn status(&self, now: Instant) -> Option<SessionsStatus> {
        let gate = lock(&self.running).as_ref()?.gate.clone();
        Some(gate.status(self.admission.gated_requests(now), now))
    }
}

/// Updates a gate until the future is dropped.
async fn update_always(
    gate: Arc<SessionGate>,
    settings: SessionSettings,
    gateway_count: GatewayCount,
) {
    loop {
        let now = clock::now();
        let gateways = settings
            .gateways
            .map_or_else(|| gateway_count(now), u64::from);
        gate.update(gateways, now);
        tokio::time::sleep(UPDATED_EVERY).await;
    }
}
