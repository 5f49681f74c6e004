//! Passes the alerts of the diagnosis to the senders of all Alertmanagers.

use super::alert_tracker::AlertTracker;
use super::held_alert::{AlertLabels, HeldAlert};
use super::sender::AlertmanagerSender;
use super::settings::{AlertmanagerEndpoint, AlertmanagerSettings};
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::Diagnosis;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_net::tls::{Credentials, TlsPeer};
use tokio::sync::watch;

/// Sends the alerts of the diagnosis to all Alertmanagers.
pub struct AlertmanagerNotifier {
    tracker: Mutex<AlertTracker>,
    running: Mutex<RunningSenders>,
    alerts: watch::Sender<Arc<[HeldAlert]>>,
    /// Reloads the TLS files of the Alertmanagers.
    credentials: Arc<Credentials>,
}

/// The senders of the active configuration.
#[derive(Default)]
struct RunningSenders {
    /// Each sender with its task, which ends when it is dropped.
    senders: Vec<(Arc<AlertmanagerSender>, SupervisedTask)>,
    instance: String,
}

/// The state of the requests to one Alertmanager.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AlertmanagerStatus {
    /// Host and port of its URL.
    pub alertmanager: String,
    /// Number of requests that it accepted.
    pub ok: u64,
    /// Number of requests that failed.
    pub failed: u64,
    /// Time since it accepted a request, or since the start, in seconds.
    pub age_seconds: f64,
    /// Why the last request failed. `None`: it did not.
    pub error: Option<String>,
}

impl Default for AlertmanagerNotifier {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl AlertmanagerNotifier {
    /// A notifier without Alertmanagers. `credentials` reloads the TLS files of the Alertmanagers.
    pub fn new(credentials: Arc<Credentials>) -> Self {
        let (alerts, _) = watch::channel(Arc::from([]));
        Self { tracker: Mutex::default(), running: Mutex::default(), alerts, credentials }
    }

    /// Starts the senders with these settings, in place of the previous ones. Must be called inside a
    /// Tokio runtime.
    pub fn configure(&self, settings: AlertmanagerSettings) {
        let AlertmanagerSettings { endpoints, instance, intervals } = settings;
        let mut running = lock(&self.running);
        let previous = |endpoint: &AlertmanagerEndpoint| {
            let is_same = |other: &AlertmanagerEndpoint| other.address == endpoint.address;
            let mut senders = running.senders.iter().map(|(sender, _)| sender);
            senders.find(|sender| is_same(&sender.endpoint)).map(|sender| sender.deliveries())
        };
        let senders = endpoints.into_iter().map(|endpoint| {
            self.credentials.register_outbound(TlsPeer::Collector, &endpoint.outbound);
            let deliveries = previous(&endpoint);
            let sender = Arc::new(AlertmanagerSender::new(endpoint, intervals, deliveries));
            (sender.clone(), self.start(sender))
        });
        let senders = senders.collect();
        *running = RunningSenders { senders, instance };
    }

    fn start(&self, sender: Arc<AlertmanagerSender>) -> SupervisedTask {
        let alerts = self.alerts.clone();
        supervise::spawn(BackgroundTask::Alertmanager, move || {
            let (sender, alerts) = (sender.clone(), alerts.subscribe());
            async move { sender.run(alerts).await }
        })
    }

    /// Updates the alerts with a diagnosis. Does not wait.
    pub fn update(&self, diagnosis: &Diagnosis, now: Instant, wall_time: SystemTime) {
        let running = lock(&self.running);
        if running.senders.is_empty() {
            return;
        }
        let mut tracker = lock(&self.tracker);
        let current = tracker.update(diagnosis, &running.instance, (now, wall_time));
        self.alerts.send_if_modified(|alerts| {
            // A changed text waits for the next request. It is no reason for a request.
            let is_changed = !alerts.iter().map(state).eq(current.iter().map(state));
            *alerts = current.into();
            is_changed
        });
    }

    /// The state of the requests to each Alertmanager at `now`.
    pub fn status(&self, now: Instant) -> Vec<AlertmanagerStatus> {
        let running = lock(&self.running);
        let status = |sender: &AlertmanagerSender| {
            let deliveries = sender.deliveries();
            let age = now.saturating_duration_since(deliveries.last_accepted);
            AlertmanagerStatus {
                alertmanager: sender.endpoint.address.authority().to_owned(),
                ok: deliveries.ok,
                failed: deliveries.failed,
                age_seconds: age.as_secs_f64(),
                error: deliveries.error,
            }
        };
        running.senders.iter().map(|(sender, _)| status(sender)).collect()
    }
}

/// The parts of an alert whose change is sent at once.
fn state(alert: &HeldAlert) -> (&AlertLabels, Option<SystemTime>) {
    (&alert.labels, alert.ended_at)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
