//! The task that claims parts of limits and stores the usage in a file.

use crate::claims::{self, SCRIPT, StoreAnswer, SubjectClaim};
use crate::grants::Grants;
use crate::section::SharedLimitsConfig;
use crate::state_file::SavedUsage;
use crate::status::{Counters, SharedLimitsStatus, StoreStatus};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_net::file_watcher::read_within_limit;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_peer_exchange::PeerExchange;
use tokenweir_peer_exchange::messages::bus::{ScriptCall, ScriptRunner};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::sync::{Mutex, watch};
use tokio::time::{MissedTickBehavior, interval};

/// Shares limits of tenants with other gateways, and writes what was used of them (`shared_limits`).
pub const TASK: BackgroundTask = BackgroundTask::new("shared_limits");

/// Limits that all gateways share and that outlast restarts.
pub struct SharedLimits {
    access: Arc<AccessControl>,
    /// The file of the usage. `None`: a restart forgets the usage.
    file: Option<PathBuf>,
    /// The id under which the server knows this gateway.
    gateway: String,
    counters: Counters,
    /// The state of the task. The task holds the lock while it runs.
    state: Mutex<TaskState>,
}

#[derive(Debug)]
struct TaskState {
    /// The sharing with other gateways. `None`: this gateway counts alone.
    sharing: Option<Sharing>,
    /// The content of the file when it was last written.
    saved: SavedUsage,
    saved_at: u64,
}

/// The data that the task needs to share limits with other gateways.
#[derive(Debug)]
struct Sharing {
    exchange: Arc<PeerExchange>,
    scripts: watch::Receiver<Option<ScriptRunner>>,
    grants: Grants,
}

/// Interval of the task in which it looks for due claims and writes.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two writes of the file.
const SAVE_MILLIS: u64 = 2_000;

impl SharedLimits {
    /// Restores the usage from the file. `exchange`: the exchange with the gateways that share limits, if there
    /// is one. The result is `None` if limits are neither shared nor stored.
    pub fn new(
        config: &SharedLimitsConfig,
        access: &Arc<AccessControl>,
        exchange: Option<Arc<PeerExchange>>,
    ) -> Option<Arc<Self>> {
        if exchange.is_none() && config.file.is_none() {
            return None;
        }
        let counters = Counters::default();
        let mut saved = read_saved(config, &counters);
        let now = clock::unix_millis();
        if let Some(keys) = access.keys() {
            access
                .quotas
                .awaited
                .restore(&saved.quotas, keys.quota_subjects());
        }
        let is_id = saved.gateway.bytes().all(|byte| byte.is_ascii_hexdigit());
        if saved.gateway.len() != 16 || !is_id {
            saved.gateway = format!("{:016x}", fastrand::u64(..));
        }
        let sharing = exchange.map(|exchange| {
            let mut scripts = exchange.scripts();
            // The exchange may already be connected, so its state counts as changed.
            scripts.mark_changed();
            Sharing {
                scripts,
                exchange,
                grants: Grants::new(access.quotas.clone(), saved.gateways, now),
            }
        });
        Some(Arc::new(Self {
            access: access.clone(),
            file: config.file.clone(),
            gateway: saved.gateway.clone(),
            counters,
            state: Mutex::new(TaskState {
                sharing,
                saved,
                saved_at: now,
            }),
        }))
    }

    /// Starts the task that claims parts of limits and writes the file.
    pub fn start(self: &Arc<Self>) -> SupervisedTask {
        let limits = self.clone();
        supervise::spawn(TASK, move || {
            let limits = limits.clone();
            async move { limits.run().await }
        })
    }

    /// Returns the counters and the state for status pages.
    pub fn status(&self) -> SharedLimitsStatus {
        self.counters.status()
    }

    async fn run(&self) {
        let mut state = self.state.lock().await;
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(sharing) = &mut state.sharing {
                self.claim_due(sharing).await;
            }
            let now = clock::unix_millis();
            if now.saturating_sub(state.saved_at) >= SAVE_MILLIS {
                state.saved_at = now;
                self.save(&mut state).await;
            }
        }
    }

    /// Writes the file a last time. The task must have ended before.
    pub async fn shutdown(&self) {
        let mut state = self.state.lock().await;
        self.save(&mut state).await;
    }

    async fn claim_due(&self, sharing: &mut Sharing) {
        let grants = &mut sharing.grants;
        if sharing.scripts.has_changed().unwrap_or(false) {
            // The server may have been replaced by one with older data.
            self.restate(grants);
        }
        let scripts = sharing.scripts.borrow_and_update().clone();
        if let Some(scripts) = scripts {
            let peers = sharing.exchange.status(clock::now()).peers as u64;
            let claims = grants.claims(clock::unix_millis(), peers + 1);
            self.send(&sharing.exchange, scripts, grants, &claims).await;
        }
        let now = clock::unix_millis();
        grants.apply_rule(now);
        let state = grants.state(now).as_str();
        let mut store = lock(&self.counters.store);
        if store.is_none_or(|store| store.state != state) {
            tracing::info!(
                state,
                "state of the server with which gateways share limits"
            );
        }
        *store = Some(StoreStatus {
            state,
            gateways: grants.gateways(),
            active_subjects: grants.active_subjects(),
            ..StoreStatus::default()
        });
    }

    /// Sends claims to the server and applies its answers.
    async fn send(
        &self,
        exchange: &PeerExchange,
        mut scripts: ScriptRunner,
        grants: &mut Grants,
        claims: &[SubjectClaim],
    ) {
        let gateway = &self.gateway;
        let calls = claims
            .iter()
            .map(|claim| claim.call(&exchange.key, gateway));
        let mut calls: Vec<ScriptCall> = calls.collect();
        let now = clock::unix_millis();
        if calls.is_empty() {
            if !grants.needs_heartbeat(now) {
                return;
            }
            calls.push(claims::heartbeat(&exchange.key, gateway, now / 1_000));
        }
        let results = scripts.run(SCRIPT, &calls).await;
        let results = results.unwrap_or_default();
        let answers = results
            .iter()
            .filter_map(|result| StoreAnswer::from_result(result));
        let answers: Vec<StoreAnswer> = answers.collect();
        if answers.len() != calls.len() {
            self.counters.failed_claims.add(calls.len() as u64);
            grants.fail(claims, clock::unix_millis());
            return;
        }
        self.counters.answered_claims.add(calls.len() as u64);
        if grants.settle(claims, &answers, clock::unix_millis()) {
            self.counters.lost_data.add(1);
            tracing::warn!(
                "the server of the exchange has lost the used limits: they are stated again"
            );
            self.restate(grants);
        }
    }

    fn restate(&self, grants: &mut Grants) {
        if let Some(keys) = self.access.keys() {
            grants.restate(keys.quota_subjects());
        }
    }

    /// Writes the file if one is configured and its content has changed.
    async fn save(&self, state: &mut TaskState) {
        let (Some(file), Some(keys)) = (&self.file, self.access.keys()) else {
            return;
        };
        let gateways = state
            .sharing
            .as_ref()
            .map_or(1, |sharing| sharing.grants.gateways());
        let mut quotas = self.access.quotas.awaited.list();
        quotas.extend(keys.quota_subjects().flat_map(|it| it.saved_quotas()));
        let usage = SavedUsage {
            gateway: self.gateway.clone(),
            gateways,
            quotas,
        };
        if usage == state.saved {
            return;
        }
        state.saved = usage.clone();
        let path = file.clone();
        let written = read_within_limit(move || usage.write(&path)).await;
        let problem = match written {
            Some(Ok(())) => {
                self.counters.on_file_write();
                return;
            }
            Some(Err(error)) => error.to_string(),
            None => "the file system does not respond".to_owned(),
        };
        state.saved = SavedUsage::default();
        if self.counters.on_file_error(&problem) {
            let file = file.display();
            tracing::warn!(%file, error = problem, "cannot write the used limits");
        }
    }
}

/// Reads the file. An unreadable file is counted as an error, and usage begins at 0.
fn read_saved(config: &SharedLimitsConfig, counters: &Counters) -> SavedUsage {
    let Some(file) = &config.file else {
        return SavedUsage::default();
    };
    match SavedUsage::read(file) {
        Ok(saved) => saved.unwrap_or_default(),
        Err(error) => {
            counters.on_file_error(&error.to_string());
            let file = file.display();
            tracing::warn!(%file, %error, "cannot read the used limits: they begin at 0");
            SavedUsage::default()
        }
    }
}
