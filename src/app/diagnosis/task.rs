//! The background task that samples all backends at a fixed interval and publishes the diagnosis. It also ends
//! expired drains, and logs verdicts, stalls and the end of each wave of refused requests.

use super::cpu_supply;
use super::reload_changes::ReloadObserver;
use super::settings::{limiting_setting, served_as, set_values};
use super::stall_log::StallLog;
use super::timeline::TimelineObserver;
use super::verdict_log::VerdictLog;
use crate::admin::{Admin, drain_summary};
use crate::app::process::starts::ProcessStarts;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_api::{LastMinute, main_client};
use tokenweir_diagnose::{
    AttemptCounts, AwaitedModel, BackendRequestCounters, BackendRequestCounts, CertificateReloads,
    Diagnoser, Diagnosis, DiagnosisSample, EVERY, FleetBackend, FleetObservation,
    GatewayConditions, GatewayObservations, LimitedClient, ObservedTtft, RecentCounts,
    RecentReload, is_critical_harm,
};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::model::ServedModel;
use tokenweir_gateway::backend::facets::BackendFacet;
use tokenweir_gateway::backend::{Backend, BackendAvailability, BackendState};
use tokenweir_gateway::proxy::ProxyState;
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::access_log::AccessLogCounts;
use tokenweir_gateway::telemetry::otel::SpanCounts;
use tokenweir_gateway::telemetry::recent_requests::RecentRequests;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_net::tls::TlsPeer;
use tokenweir_option::DiagnosisHooks;
use tokenweir_protocol::clock;
use tokenweir_request::observe::StreamPhase;
use tokenweir_request::record::SlowCause;
use tokenweir_routing::admission::WaitingModel;
use tokio::time::MissedTickBehavior;

/// The background task that diagnoses the backends.
#[derive(Clone)]
pub(crate) struct DiagnosisTask {
    /// The sources of the samples, and the latest diagnosis, which each sample replaces.
    pub(crate) admin: Arc<Admin>,
    /// The hooks of the options that add to the samples or act on a diagnosis.
    pub(crate) hooks: Vec<Arc<dyn DiagnosisHooks>>,
    /// Counters of first outputs and ended requests, for each backend. The diagnosis task reads
    /// and resets them each time it takes a sample.
    pub(crate) request_counters: Arc<BackendRequestCounters>,
    pub(crate) starts: Arc<ProcessStarts>,
}

/// Maximum age of a scrape, in sampling intervals. An older scrape counts as missing.
const MAX_SAMPLE_AGE_INTERVALS: u32 = 3;
/// Number of complete windows of 5 s that count for the verdicts about the whole pool. Together with the
/// current window, they cover the last 25 to 30 s.
const FLEET_WINDOWS: u64 = 5;
const FLEET_WINDOW_SECONDS: f64 = 30.0;

/// Number of the oldest open streams that are examined for hanging ones.
const MAX_OLDEST_STREAMS: usize = 64;
/// Time without output after which a stream with fewer than [`MAX_HANGING_PROMPT`] prompt tokens hangs. Longer
/// prompts may take longer.
const HANGING_SECONDS: f64 = 20.0;
const MAX_HANGING_PROMPT: u64 = 16_000;

/// Maximum length of the `root` of a model in the cause of a verdict, in characters.
const MAX_ROOT_CHARACTERS: usize = 120;

impl DiagnosisTask {
    pub(crate) fn start(self) -> SupervisedTask {
        supervise::spawn(BackgroundTask::DIAGNOSIS, move || self.clone().run())
    }

    /// Samples and diagnoses the backends every [`EVERY`], until the future is dropped.
    async fn run(self) {
        let mut diagnoser = Diagnoser::default();
        let mut log = VerdictLog::default();
        let mut stalls = StallLog::default();
        let mut timeline = TimelineObserver::default();
        let mut reloads = ReloadObserver::default();
        let mut ticks = tokio::time::interval(EVERY);
        // After a late tick, the next tick follows a full interval later, because two samples in quick
        // succession would be equal.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = clock::now();
            self.admin.proxy.pool.end_expired_drains(now);
            self.admin.recent_requests.log_end_of_refusals(now);
            self.log_stalls(&mut stalls, now);
            let wall_time = clock::wall_time();
            let reload = reloads.observe(&self.admin, now, wall_time);
            let diagnosis = self.diagnose(&mut diagnoser, reload, now);
            log.record(&diagnosis, now);
            timeline.observe(&self.admin, &diagnosis, wall_time);
            for hook in &self.hooks {
                hook.on_diagnosis(&diagnosis, now, wall_time);
            }
            self.admin.diagnosis.store(Arc::new(diagnosis));
        }
    }

    fn diagnose(
        &self,
        diagnoser: &mut Diagnoser,
        reload: Option<RecentReload>,
        now: Instant,
    ) -> Diagnosis {
        let ProxyState {
            pool, admission, ..
        } = &self.admin.proxy;
        // Computing the readiness also logs its changes and the end of panic mode.
        let readiness = pool.readiness(now);
        let backends = pool.backends();
        self.request_counters
            .retain_backends(backends.iter().map(|backend| &backend.identity.id));
        let queued = admission
            .waiting_by_class()
            .iter()
            .map(|(_, waiting)| waiting)
            .sum();
        let samples = self.sample_backends(&backends, now);
        let settings = set_values(&self.admin.configuration.view());
        let limits = samples
            .iter()
            .filter_map(|(_, sample)| limiting_setting(sample, &settings));
        let limits: Vec<&'static str> = limits.collect();
        let routes = pool.routes();
        let is_listed = |name: &str| routes.models().iter().any(|model| &*model.id == name);
        let backends = readiness.backends.iter().map(|current| {
            let id = &current.backend.identity.id;
            fleet_backend(current, self.request_counters.take_attempts(id), now)
        });
        let fleet = FleetObservation {
            backends: backends.collect(),
            counts: recent_counts(&self.admin.recent_requests, now),
            window_seconds: FLEET_WINDOW_SECONDS,
            queued,
            longest_wait_seconds: admission
                .oldest_waiting()
                .map(|entered| now.saturating_duration_since(entered).as_secs_f64()),
            held_because: admission.held_because(now),
            limited_backends: limits.len(),
            limited_by: limits.first().copied(),
            awaited_models: self.awaited_models(now),
            gateway: self.observe_gateway(now),
            unserved_models: self.request_counters.unserved_models(is_listed),
            unforwarded: self.request_counters.take_unforwarded(),
            request_ends: self.request_counters.take_ends(),
            settings,
            main_client: self.main_client(now),
            limited_client: self.limited_client(now),
            ttft: self.observed_ttft(now),
            reload,
        };
        diagnoser.diagnose_gateway(samples, &fleet, now)
    }

    /// A sentence about the client that causes most of the work, or whose retries are a part of it.
    fn main_client(&self, now: Instant) -> Option<String> {
        let recent = &self.admin.recent_requests;
        let minute = recent.last_minute(now).without_scans();
        let of_work = main_client(&recent.clients(&self.admin.proxy.open_streams, now));
        let Some(share) = minute.repeated_share() else {
            return of_work;
        };
        let percent = 100.0 * share;
        let mut sentence = format!(
            "{percent:.0} % of the requests of the last minute are retries, after the same client had ended an equal one"
        );
        if let Some(seconds) = minute.give_up_seconds {
            sentence = format!("{sentence} after {seconds:.1} s");
        }
        if let Some(common) = minute.common.get("client_timeout") {
            sentence = format!("{sentence}; of those that clients gave up, {common}");
        }
        Some(sentence)
    }

    /// The client with most of the requests that the gateway refused, and its limits in the key file.
    fn limited_client(&self, now: Instant) -> Option<LimitedClient> {
        let recent = &self.admin.recent_requests;
        let clients = recent.clients(&self.admin.proxy.open_streams, now);
        let all: u64 = clients.iter().map(|client| client.refused).sum();
        let client = clients.iter().max_by_key(|client| client.refused)?;
        let mut limits = BTreeMap::new();
        if let (Some(tenant), Some(keys)) = (&client.tenant, self.admin.proxy.access.keys()) {
            limits = keys.set_limits(Some(tenant));
        }
        let own = format!(".keys[{}].", client.key.as_deref().unwrap_or_default());
        limits.retain(|path, _| !path.contains(".keys[") || path.contains(&own));
        (client.refused > 0 && 2 * client.refused > all).then(|| LimitedClient {
            name: client.name(),
            limits,
            refused_share: client.refused as f64 / all as f64,
        })
    }

    /// The TTFT of the streams in the last minute.
    fn observed_ttft(&self, now: Instant) -> Option<ObservedTtft> {
        let minute = self.admin.recent_requests.last_minute(now);
        minute.ttft.map(|ttft| ObservedTtft {
            count: ttft.count,
            p50: ttft.p50,
            p95: ttft.p95,
        })
    }

    fn sample_backends(
        &self,
        backends: &[Arc<Backend>],
        now: Instant,
    ) -> Vec<(BackendId, DiagnosisSample)> {
        let samples = backends.iter().map(|backend| {
            let counts = self.request_counters.take(&backend.identity.id);
            (
                backend.identity.id.clone(),
                sample_backend(backend, &counts, now),
            )
        });
        let mut samples: Vec<_> = samples.collect();
        self.add_hanging_streams(&mut samples, now);
        for hook in &self.hooks {
            hook.complete_samples(backends, &mut samples, now);
        }
        samples
    }

    /// Adds the streams that have had no output for a long time although their prompts are short.
    fn add_hanging_streams(&self, samples: &mut [(BackendId, DiagnosisSample)], now: Instant) {
        let open = &self.admin.proxy.open_streams;
        for stream in open.snapshot(MAX_OLDEST_STREAMS, now).oldest {
            let seconds = now
                .saturating_duration_since(stream.subject.accepted)
                .as_secs_f64();
            let is_hanging = stream.phase == StreamPhase::NoOutput
                && seconds >= HANGING_SECONDS
                && stream.subject.prompt_tokens < MAX_HANGING_PROMPT;
            let of_backend = samples
                .iter_mut()
                .find(|(id, _)| stream.subject.backend.as_ref() == Some(id));
            if is_hanging
                && let Some((_, sample)) = of_backend
                && let Some(gateway) = &mut sample.gateway
            {
                gateway.hanging += 1;
                gateway.hanging_seconds = gateway.hanging_seconds.max(seconds);
            }
        }
    }

    /// Returns the models for which requests wait and that no backend can serve now.
    fn awaited_models(&self, now: Instant) -> Vec<AwaitedModel> {
        let view = self.admin.configuration.view();
        let waiting = self.admin.proxy.admission.waiting_models().into_iter();
        let awaited = waiting.filter_map(
            |WaitingModel {
                 model,
                 requests,
                 without_backend_since,
             }| {
                let seconds = now
                    .saturating_duration_since(without_backend_since?)
                    .as_secs_f64();
                let served_as = model.as_ref().and_then(|name| served_as(&view, name));
                let model =
                    model.map_or_else(|| "any model".to_owned(), |name| format!("`{name}`"));
                Some(AwaitedModel {
                    served_as,
                    model,
                    requests,
                    seconds,
                })
            },
        );
        awaited.collect()
    }

    fn log_stalls(&self, log: &mut StallLog, now: Instant) {
        let backends = self.admin.proxy.pool.backends();
        let stalled = backends
            .iter()
            .map(|it| (it.identity.id.as_str(), it.load.stalled_streams()));
        let stall_count = backends.iter().map(|it| it.load.stall_count()).sum();
        log.record(&stalled.collect::<Vec<_>>(), stall_count, now);
    }

    /// Reads the conditions of the gateway itself, such as expiring certificates and lost spans.
    fn observe_gateway(&self, now: Instant) -> GatewayConditions {
        let mut status = StatusSnapshot::default();
        self.admin
            .status_sources
            .iter()
            .for_each(|fill| fill(&mut status, now));
        let unix_time = clock::unix_time().as_secs_f64();
        let remaining = |expiry: f64| expiry - unix_time;
        let certificates = TlsPeer::ALL.into_iter().zip(status.certificates.expire);
        let certificates =
            certificates.filter_map(|(peer, expiry)| Some((peer.as_str(), remaining(expiry?))));
        let spans: SpanCounts = status.blocks.get_or_default();
        let access_log: AccessLogCounts = status.blocks.get_or_default();
        let streams = self.admin.proxy.open_streams.snapshot(0, now);
        let unread = streams.phases.get(&StreamPhase::WriteStalled);
        let mut conditions = GatewayConditions {
            reload_problem: self
                .admin
                .configuration
                .reload_problem()
                .or_else(|| self.admin.proxy.access.reload_error())
                .map(|it| it.to_string()),
            certificates: certificates.collect(),
            certificate_reloads: CertificateReloads {
                succeeded: status.certificates.reloaded,
                failed: status.certificates.failed,
            },
            lost_spans: spans.lost,
            span_export_failure: spans.last_failure,
            lost_log_lines: access_log.dropped,
            refused_connections: status.connections.full + status.connections.accept_errors,
            is_memory_full: self.admin.proxy.overload_guard.is_memory_full(),
            cpu: cpu_supply::read(&self.admin.proxy.telemetry),
            open_streams: streams.count,
            unread_streams: unread.copied().unwrap_or_default(),
            verdicts: Vec::new(),
            starts: self.starts.recent(clock::wall_time()),
            connected_gateways: 0,
        };
        for hook in &self.hooks {
            hook.complete_conditions(&mut conditions, now);
        }
        conditions
    }
}

/// Number of requests whose clients got no answer or a slow one. A request can count twice. Invalid requests do
/// not count. Answers that end at a limit count only if there are many, because a few clients always reach the
/// end of the context.
fn harmed_requests(counts: &LastMinute) -> u64 {
    let answers = &counts.answers;
    let unanswered = answers.failed + answers.empty + answers.client_timeout + answers.refused;
    let mut harmed = unanswered + counts.slow.values().sum::<u64>();
    if is_critical_harm(answers.truncated, counts.requests) {
        harmed += answers.truncated;
    }
    harmed
}

/// Returns the counts of requests that ended in the last 25 to 30 s.
fn recent_counts(recent_requests: &RecentRequests, now: Instant) -> RecentCounts {
    let counts = recent_requests
        .last_windows(FLEET_WINDOWS, now)
        .without_scans();
    let slow = |cause: SlowCause| counts.slow.get(cause.as_str()).copied().unwrap_or_default();
    let delayed = slow(SlowCause::GatewayQueue);
    let harmed = harmed_requests(&counts);
    RecentCounts {
        requests: counts.requests,
        refused: counts.refused,
        refused_because: counts
            .refused_by_reason
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(reason, _)| reason),
        harmed,
        failed: counts.failed,
        waited: delayed + slow(SlowCause::NoBackend) + slow(SlowCause::EngineQueue),
        delayed,
        client_errors: counts.backend_client_errors,
        error_sources: counts.error_sources,
        common: recent_requests.last_minute(now).common,
    }
}

fn fleet_backend(
    current: &BackendAvailability,
    attempts: AttemptCounts,
    now: Instant,
) -> FleetBackend {
    let BackendAvailability {
        backend,
        availability,
        is_up,
    } = current;
    let health = backend.health.state();
    let models = health
        .models()
        .iter()
        .filter(|model| model.parent.is_none());
    FleetBackend {
        id: backend.identity.id.clone(),
        host: backend.identity.address.host_and_port().0,
        models: models.map(|model| model.id.clone()).collect(),
        state: *availability,
        is_up: *is_up,
        reason: health.reason.as_deref().map(Into::into),
        drain: backend
            .health
            .drain()
            .map(|drain| drain_summary(&drain, now)),
        attempts,
        restarts: backend.load.restart_count(),
        engine_switches: backend.load.engine_switches(),
        facts: known_facts(backend, &health),
    }
}

/// Returns the `root` of a model: the folder or the name of its weights.
fn root_of(model: &ServedModel) -> Option<String> {
    let root = model.entry.get("root")?;
    let root = root.as_str()?;
    Some(root.chars().take(MAX_ROOT_CHARACTERS).collect())
}

/// Returns known facts about a backend: the model, version, length and KV cache capacity of its engine, and
/// facts from options of the gateway.
fn known_facts(backend: &Backend, state: &BackendState) -> Vec<(&'static str, String)> {
    let model = state.models().iter().find(|model| model.parent.is_none());
    let load = state.engine_load();
    let facts = [
        ("root", model.and_then(root_of)),
        (
            "max_model_len",
            model
                .and_then(|model| model.max_len)
                .map(|length| length.to_string()),
        ),
        (
            "KV cache (tokens)",
            load.capacity().map(|tokens| tokens.to_string()),
        ),
        ("version", state.version.as_deref().map(str::to_owned)),
        ("model", model.map(|model| model.id.to_string())),
    ];
    let of_engine = facts
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let of_options = backend.facets.each().filter_map(BackendFacet::fact);
    of_engine.chain(of_options).collect()
}

/// Builds the sample of one backend for the diagnosis: its state, its last scrape and its request
/// counts.
fn sample_backend(
    backend: &Backend,
    counts: &BackendRequestCounts,
    now: Instant,
) -> DiagnosisSample {
    let state = backend.health.state();
    let scrape = state.sample.filter(|scrape| {
        let age = now.saturating_duration_since(scrape.scraped_at);
        age <= EVERY * MAX_SAMPLE_AGE_INTERVALS && scrape.load.is_understood()
    });
    let pending = backend.load.estimator.local_load();
    let connects = backend.idle_pool.take_connects();
    let page_time = backend.load.take_page_time();
    let observed = GatewayObservations {
        in_flight: backend.load.in_flight(),
        stalled: backend.load.stalled_streams(),
        stalls: backend.load.stall_count(),
        gap_p99: backend.load.gap_p99(),
        models: model_set(state.models()),
        weight: backend.weight(),
        most_running: backend.load.estimator.most_running(),
        pending: pending.pending,
        pending_tokens: pending.backlog,
        held_tokens: pending.tokens,
        overdue_seconds: backend.standstill_seconds(now),
        engine_switches: backend.load.engine_switches(),
        connects: connects.count,
        connect_seconds: connects.seconds,
        first_heads: connects.first_heads,
        first_head_seconds: connects.first_head_seconds,
        page_seconds: page_time.map(|time| time.as_secs_f64()),
        counts: *counts,
        ..GatewayObservations::default()
    };
    // A backend that is asleep, paused, drained or of weight 0 gets no requests on purpose, so the diagnosis
    // does not judge it.
    let is_up = state.is_serving() && backend.weight() > 0;
    DiagnosisSample {
        is_up,
        page: scrape.map(|scrape| scrape.load),
        gateway: Some(observed),
        ..DiagnosisSample::at(now)
    }
}

/// Computes a hash of the model names of a backend, independent of their order.
fn model_set(models: &[ServedModel]) -> u64 {
    let hash = |model: &ServedModel| {
        let mut hasher = DefaultHasher::new();
        model.id.hash(&mut hasher);
        hasher.finish()
    };
    models.iter().map(hash).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_engine::address::BackendAddress;
    use tokenweir_gateway::backend::PoolSettings;
    use tokenweir_gateway::backend::pool::BackendPool;

    #[test]
    fn many_answers_that_end_at_limits_are_harm() {
        let harmed = |truncated| {
            let mut minute = LastMinute {
                requests: 100,
                ..LastMinute::default()
            };
            minute.answers.truncated = truncated;
            harmed_requests(&minute)
        };
        assert_eq!((harmed(5), harmed(30)), (0, 30));
    }

    #[test]
    fn a_backend_without_samples_is_not_judged() {
        let address = BackendAddress::parse("http://127.0.0.1:9").unwrap();
        let backend = Backend::new(BackendId::new("gpu-0"), address, None);
        let pool = BackendPool::with_settings(vec![backend], &PoolSettings::default());
        let (mut diagnoser, mut now) = (Diagnoser::default(), clock::now());
        let mut diagnose = || {
            now += EVERY;
            let (backend, readiness) = (&pool.backends()[0], pool.readiness(now));
            let backends = readiness.backends.iter();
            let backends = backends.map(|it| fleet_backend(it, AttemptCounts::default(), now));
            let fleet = FleetObservation {
                backends: backends.collect(),
                ..FleetObservation::default()
            };
            let sample = sample_backend(backend, &BackendRequestCounts::default(), now);
            diagnoser.diagnose_gateway(vec![(backend.identity.id.clone(), sample)], &fleet, now)
        };
        let latest = (0..20).map(|_| diagnose()).last().unwrap();
        assert!(latest.verdicts.is_empty(), "{latest:?}");
        assert_eq!(latest.backends[0].backend, "gpu-0");
        assert!(!latest.backends[0].is_determined);
        assert_eq!(
            latest.known_verdicts().get(&("gpu-0", "kv_thrashing")),
            Some(&false)
        );
    }
}
