//! The option as a whole: turns the gate on and off, and keeps its capacity up to date.

use super::session_gate::SessionGate;
use super::sessions_status::SessionsStatus;
use super::settings::SessionSettings;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::pool::{BackendPool, PeerPrompt};
use tokenweir_gateway::proxy::ProxyState;
use tokenweir_gateway::proxy::admission::AdmissionController;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::sync::broadcast;

/// Says how this gateway shares the backends with others.
pub type GatewaySharing = Arc<dyn Fn(Instant) -> Sharing + Send + Sync>;

/// How this gateway shares the backends with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each gateway knows the prompts of all, so each counts the sessions of all.
    Exchange,
    /// Each of so many gateways knows its own prompts, so it fills its share of the caches.
    Separate(u64),
}

/// Admission by live sessions.
pub struct SessionAdmission {
    pool: Arc<BackendPool>,
    admission: Arc<AdmissionController>,
    sharing: GatewaySharing,
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
    pub fn new(proxy: &ProxyState, sharing: GatewaySharing) -> Self {
        Self {
            pool: proxy.pool.clone(),
            admission: proxy.admission.clone(),
            sharing,
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
        let gate =
            previous.unwrap_or_else(|| Arc::new(SessionGate::new(&self.pool, &self.admission)));
        let updated = gate.clone();
        let sharing = self.sharing.clone();
        let pool = self.pool.clone();
        let task = supervise::spawn(BackgroundTask::ADMISSION, move || {
            let gateways = GatewaysOf {
                configured: settings.gateways,
                sharing: sharing.clone(),
            };
            update_always(updated.clone(), gateways, pool.peer_prompts.subscribe())
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

/// The number of gateways that share the capacity.
struct GatewaysOf {
    configured: Option<u32>,
    sharing: GatewaySharing,
}

impl GatewaysOf {
    fn count(&self, now: Instant) -> u64 {
        match ((self.sharing)(now), self.configured) {
            (Sharing::Exchange, _) => 1,
            (Sharing::Separate(_), Some(configured)) => u64::from(configured),
            (Sharing::Separate(known), None) => known,
        }
    }
}

/// Updates a gate until the future is dropped.
async fn update_always(
    gate: Arc<SessionGate>,
    gateways: GatewaysOf,
    mut prompts: broadcast::Receiver<PeerPrompt>,
) {
    let mut updates = tokio::time::interval(UPDATED_EVERY);
    loop {
        tokio::select! {
            _ = updates.tick() => {
                let now = clock::now();
                gate.update(gateways.count(now), now);
            }
            // An error: some prompts were missed.
            Ok(sent) = prompts.recv() => gate.count_peer(&sent, clock::now()),
        }
    }
}
