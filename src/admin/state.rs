//! The parts of the gateway to which the admin listener has access.

use super::authorizer::AdminAuthorizer;
use super::backend_status::backend_statuses;
use super::configuration::ActiveConfiguration;
use super::timeline::Timeline;
use arc_swap::ArcSwap;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_api::{GatewayFacts, GatewayState, Harm, LateStreams, QueueSummary};
use tokenweir_diagnose::Diagnosis;
use tokenweir_gateway::backend::Readiness;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::proxy::ProxyState;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_gateway::proxy::admission::AdmissionController;
use tokenweir_gateway::status::{
    ModelQueueStatus, RequestBodyVitals, StatusBlock, StatusSnapshot, StatusSource,
};
use tokenweir_gateway::telemetry::decision_log::DecisionLog;
use tokenweir_gateway::telemetry::recent_requests::RecentRequests;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::atomic::AtomicInstant;
use tokenweir_request::observe::OpenStreamsSnapshot;
use tokenweir_request::record::ModelLabel;

/// Number of complete windows of 5 s, in addition to the current one, whose ended requests are compared with
/// the panics. Together the windows cover the last 10 to 15 s.
const REQUEST_WINDOWS: u64 = 2;

/// Time for which a panic can make the gateway unready.
const PANIC_WINDOW: Duration = Duration::from_secs(15);
/// Number of panics that must end requests before the gateway is not ready. A request that causes a panic, and
/// a few retries of it, must not make the gateway unready for all others.
const MIN_PANICS: usize = 5;

/// The parts of the gateway to which the admin listener has access.
pub struct Admin {
    /// Authorizes requests to the admin listener.
    pub authorizer: AdminAuthorizer,
    /// The backends, keys, queue, open requests and metrics.
    pub proxy: ProxyState,
    /// The most recent routing decisions.
    pub decisions: Arc<DecisionLog>,
    /// Statistics and lists of the requests that ended recently.
    pub recent_requests: Arc<RecentRequests>,
    /// Functions that write the state of further parts into the status snapshot: listeners, certificates, sinks
    /// and options.
    pub status_sources: Vec<StatusSource>,
    /// The latest diagnosis of the backends. It is empty until the first diagnosis is stored.
    pub diagnosis: Arc<ArcSwap<Diagnosis>>,
    /// The verdicts, drains, reloads and deploys of the last days.
    pub timeline: Timeline,
    /// The active configuration.
    pub configuration: Arc<ActiveConfiguration>,
    /// URL of the trace viewer, with the placeholder `{trace_id}`. `None`: no viewer is configured.
    pub trace_ui_url: Option<String>,
    /// When the metrics page was last read. `None`: never.
    pub metrics_read_at: AtomicInstant,
    /// The background tasks whose panics are counted.
    pub tasks: Vec<BackgroundTask>,
}

/// The latest diagnosis: the verdicts about the backends and the gateway.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LatestDiagnosis {
    /// The results of the rules at the last evaluation.
    #[serde(skip)]
    pub diagnosis: Arc<Diagnosis>,
}

impl StatusBlock for LatestDiagnosis {}

impl Admin {
    /// Seconds since the metrics page was last read. `None`: never.
    pub(super) fn metrics_read_seconds_ago(&self, now: Instant) -> Option<f64> {
        self.metrics_read_at
            .get()
            .map(|at| now.saturating_duration_since(at).as_secs_f64())
    }

    /// Returns the state of the gateway at `now`. Dispatches buffered records first, so that the state and the
    /// metrics include every request that ended before the call.
    pub fn status_snapshot(&self, now: Instant) -> StatusSnapshot {
        let ProxyState {
            pool,
            access,
            admission,
            body_memory,
            open_streams,
            telemetry,
            ..
        } = &self.proxy;
        telemetry.settle();
        let draining = self.proxy.draining.get();
        let readiness = pool.readiness(now);
        let unready_reason = self.unready_reason(&readiness, now);
        let mut status = StatusSnapshot {
            requests_in_flight: open_streams.open(),
            oldest_request_age_seconds: oldest_request_age(open_streams.oldest(), now),
            ready: !draining && unready_reason.is_none(),
            unready_reason,
            panic_mode: readiness.is_panic,
            draining,
            queue: queue_status(admission),
            model_queues: model_queues(pool, admission, now),
            clients: self.recent_requests.clients(open_streams, now),
            backends: backend_statuses(pool, &readiness, now),
            short_list_bytes: pool.candidate_sampler_bytes(),
            models: pool.labelled_models(now),
            tenants: tenant_labels(access),
            request_bodies: RequestBodyVitals {
                bytes: body_memory.used_bytes(),
                limit: body_memory.limit_bytes(),
            },
            config_reloads: self.configuration.reloads(),
            metrics_read_seconds_ago: self.metrics_read_seconds_ago(now),
            ..StatusSnapshot::default()
        };
        let diagnosis = self.diagnosis.load_full();
        status.blocks.add(LatestDiagnosis {
            diagnosis: diagnosis.clone(),
        });
        self.status_sources
            .iter()
            .for_each(|fill| fill(&mut status, now));
        self.judge_requests(&mut status, &diagnosis, now);
        status
    }

    /// Sets the results that clients got in the last minute, and the readiness state that follows from them.
    fn judge_requests(&self, status: &mut StatusSnapshot, diagnosis: &Diagnosis, now: Instant) {
        let OpenStreamsSnapshot {
            late_outputs,
            late_answers,
            ..
        } = self.proxy.open_streams.snapshot(0, now);
        let late = LateStreams {
            first_output: late_outputs,
            first_answer: late_answers,
        };
        let last_minute = self.recent_requests.last_minute(now);
        status.answers = last_minute.answers;
        status.harm = Harm::of(&last_minute, late);
        status.changes.clone_from(&diagnosis.changes);
        (status.state, status.state_reasons) = GatewayState::from_facts(&GatewayFacts {
            is_draining: status.draining,
            unready_reason: status.unready_reason.as_deref(),
            is_panic: status.panic_mode,
            backend_states: status
                .backends
                .iter()
                .map(|backend| &*backend.facts.state)
                .collect(),
            harm: status.harm.clone(),
            verdicts: &diagnosis.verdicts,
            harmful_changes: diagnosis.harmful_changes(),
        });
    }

    /// Returns the number of requests for a model: the requests that wait in this gateway, plus the requests in
    /// the backends. `None`: neither the configuration nor a backend names the model.
    pub(super) fn model_requests(&self, model: &str) -> Option<u64> {
        let ProxyState {
            pool, admission, ..
        } = &self.proxy;
        if !pool.routes().is_expected(Some(model)) {
            return None;
        }
        let waiting = admission.waiting_models().into_iter();
        let of_model = waiting.filter(|waiting| waiting.model.as_deref() == Some(model));
        let waiting: usize = of_model.map(|waiting| waiting.requests).sum();
        Some(waiting as u64 + pool.model_requests(model))
    }

    /// Returns why the gateway cannot serve requests. If no backend is available, the text lists the states of
    /// all backends. If panics end most requests, it lists the panics. `None`: requests can be served.
    pub(super) fn unready_reason(&self, readiness: &Readiness, now: Instant) -> Option<String> {
        if !readiness.is_ready {
            return Some(readiness.summary());
        }
        let panics = self.panics_in_window(now);
        let requests = || {
            self.recent_requests
                .last_windows(REQUEST_WINDOWS, now)
                .requests
        };
        (!panics.is_empty() && is_panicking(&panics, requests()))
            .then(|| format!("panics end most requests: {}", recent_panics(&panics)))
    }

    /// Returns the number of panics of each background task in the last [`PANIC_WINDOW`].
    pub(super) fn panics_in_window(&self, now: Instant) -> Vec<(BackgroundTask, usize)> {
        now.checked_sub(PANIC_WINDOW)
            .map(|since| supervise::panics_since(since, &self.tasks))
            .unwrap_or_default()
    }
}

/// Returns the age of the oldest open request in seconds, or 0 if no request is open.
fn oldest_request_age(oldest: Option<Instant>, now: Instant) -> f64 {
    oldest.map_or(0.0, |started| {
        now.saturating_duration_since(started).as_secs_f64()
    })
}

/// Formats the recent panics as text such as `3 in routing, 1 in diagnosis`. Empty: no recent panics.
pub(super) fn recent_panics(panics: &[(BackgroundTask, usize)]) -> String {
    let texts = panics
        .iter()
        .map(|(task, count)| format!("{count} in {}", task.as_str()));
    texts.collect::<Vec<_>>().join(", ")
}

/// Whether panics ended at least [`MIN_PANICS`] requests, and at least half of the recent ones (`requests`).
fn is_panicking(panics: &[(BackgroundTask, usize)], requests: u64) -> bool {
    let of_requests = panics
        .iter()
        .find(|(task, _)| *task == BackgroundTask::REQUEST);
    of_requests.is_some_and(|(_, count)| {
        *count >= MIN_PANICS && u64::try_from(2 * count).is_ok_and(|twice| twice >= requests)
    })
}

fn tenant_labels(access: &AccessControl) -> Vec<String> {
    access
        .keys()
        .iter()
        .flat_map(|keys| keys.labels())
        .map(ToString::to_string)
        .collect()
}

fn queue_status(admission: &AdmissionController) -> Vec<QueueSummary> {
    let waiting = admission.waiting_by_class().into_iter();
    waiting
        .map(|(class, waiting)| QueueSummary {
            class: class.to_string(),
            waiting,
        })
        .collect()
}

/// Returns the number of waiting requests for each value of the `model` label. Models whose time series exist
/// before their first request are listed even with 0, so that a scaler can read the value.
fn model_queues(
    pool: &BackendPool,
    admission: &AdmissionController,
    now: Instant,
) -> Vec<ModelQueueStatus> {
    let seeded = pool
        .labelled_models(now)
        .into_iter()
        .filter(|model| model.is_seeded);
    let names = seeded
        .map(|model| model.name.to_string())
        .chain([ModelLabel::OTHER.to_owned()]);
    let mut queues: BTreeMap<String, ModelQueueStatus> = names
        .map(|name| (name, ModelQueueStatus::default()))
        .collect();
    for waiting in admission.waiting_models() {
        let label = pool
            .routes()
            .lookup(waiting.model.as_deref())
            .label
            .as_str()
            .to_owned();
        let queue = queues.entry(label).or_default();
        let seconds = waiting.without_backend_since.map(|since| {
            let seconds = now.saturating_duration_since(since).as_secs_f64();
            seconds.max(queue.seconds_without_backend.unwrap_or_default())
        });
        queue.waiting += waiting.requests;
        queue.seconds_without_backend = seconds.or(queue.seconds_without_backend);
    }
    queues
        .into_iter()
        .map(|(model, queue)| ModelQueueStatus { model, ..queue })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_count_if_they_end_most_requests() {
        let panics = |count| {
            [
                (BackgroundTask::REQUEST, count),
                (BackgroundTask::ROUTING, 1),
            ]
        };
        assert!(is_panicking(&panics(5), 10));
        assert!(
            !is_panicking(&panics(4), 4),
            "a few requests that a client repeats"
        );
        assert!(!is_panicking(&panics(5), 11), "most requests are served");
        assert!(
            !is_panicking(&[(BackgroundTask::ROUTING, 50)], 10),
            "they end no request"
        );
        assert_eq!(recent_panics(&panics(5)), "5 in request, 1 in routing");
    }
}
