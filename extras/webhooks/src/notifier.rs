//! Passes the begun and ended verdicts of the diagnosis to the senders of all webhooks.

use super::sender::{WebhookSender, WebhookStatus};
use super::settings::WebhookSettings;
use super::verdict_tracker::VerdictTracker;
use bytes::Bytes;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::Diagnosis;
use tokenweir_net::client::receiver::Receiver;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_option::DiagnosisHooks;
use tokenweir_protocol::mutex::lock;

/// Sends messages to one webhook.
pub const TASK: BackgroundTask = BackgroundTask::new("webhook");

/// Sends the start and the end of verdicts to all webhooks.
#[derive(Default)]
pub struct WebhookNotifier {
    tracker: Mutex<VerdictTracker>,
    running: Mutex<RunningSenders>,
}

/// The webhook senders of the active configuration.
#[derive(Default)]
struct RunningSenders {
    /// Each sender and the task that runs it. The task ends when its `SupervisedTask` is dropped.
    senders: Vec<(Arc<WebhookSender>, SupervisedTask)>,
    gateway: String,
    runbooks: String,
}

impl WebhookNotifier {
    /// Sets the webhooks. The sender of a webhook that stays as it was goes on. If a webhook keeps its URL, the
    /// messages that it has not accepted and its status are kept. Must be called inside a Tokio runtime.
    pub fn configure(&self, settings: WebhookSettings) {
        let WebhookSettings {
            endpoints,
            gateway,
            runbooks,
            retries,
        } = settings;
        let mut running = lock(&self.running);
        let mut previous = std::mem::take(&mut running.senders);
        let sender_of = |endpoint: Receiver| {
            let receivers = || previous.iter().map(|(sender, _)| sender.client.receiver());
            if let Some(same) = receivers().position(|it| *it == endpoint) {
                return previous.swap_remove(same);
            }
            let has_url =
                |it: &Receiver| (&it.address, &it.path) == (&endpoint.address, &endpoint.path);
            let replaced = receivers()
                .position(has_url)
                .map(|at| previous.swap_remove(at));
            // Its task is stopped first. A message whose response arrives at this moment can still be sent twice.
            let state = replaced.map(|(sender, task)| {
                drop(task);
                sender.state()
            });
            let sender = Arc::new(WebhookSender::new(
                endpoint,
                retries,
                state.unwrap_or_default(),
            ));
            let running = sender.clone();
            let task = supervise::spawn(TASK, move || running.clone().run());
            (sender, task)
        };
        let senders = endpoints.into_iter().map(sender_of).collect();
        *running = RunningSenders {
            senders,
            gateway,
            runbooks,
        };
    }

    /// Returns the state of the requests to each webhook.
    pub fn status(&self) -> Vec<WebhookStatus> {
        let running = lock(&self.running);
        running
            .senders
            .iter()
            .map(|(sender, _)| sender.state().status)
            .collect()
    }
}

impl DiagnosisHooks for WebhookNotifier {
    /// Queues a message to all webhooks for each verdict that began, ended or became more severe since the last
    /// call. Does not wait until a webhook has received it.
    fn on_diagnosis(&self, diagnosis: &Diagnosis, now: Instant, wall_time: SystemTime) {
        let running = lock(&self.running);
        if running.senders.is_empty() {
            return;
        }
        for event in lock(&self.tracker).update(diagnosis, now, wall_time) {
            // Each value of a message can be written as JSON, so this does not fail.
            let Ok(body) = event.to_json(&running.gateway, &running.runbooks) else {
                continue;
            };
            let body = Bytes::from(body);
            running
                .senders
                .iter()
                .for_each(|(sender, _)| sender.push(body.clone()));
        }
    }
}
