//! The observations of the gateway at one time: about all backends, and about the gateway itself.

use crate::fatal_requests::RequestEnds;
use crate::verdict::{Change, Verdict};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_request::record::ErrorSource;
use tokenweir_routing::resilience::Availability;

/// All backends of the gateway, and the requests of the last seconds.
#[derive(Debug, Clone, Default)]
pub struct FleetObservation {
    /// All backends of the gateway, whether they get requests or not.
    pub backends: Vec<FleetBackend>,
    /// Counts of the requests that ended in the last [`Self::window_seconds`].
    pub counts: RecentCounts,
    /// Length of the interval in which requests are counted, in seconds.
    pub window_seconds: f64,
    /// Number of requests that wait in the gateway.
    pub queued: usize,
    /// Time for which the oldest waiting request has waited, in seconds. `None`: no request waits.
    pub longest_wait_seconds: Option<f64>,
    /// Why requests wait although backends have capacity, such as `14 of 41 sessions fit into the KV caches`. `None`:
    /// no request waits for the gate of admission.
    pub held_because: Option<String>,
    /// Number of backends that get no further requests because they reach the setting `limited_by`, although no
    /// requests wait in their engines.
    pub limited_backends: usize,
    /// The setting of admission that keeps requests from these backends. `None`: `admission.max_in_flight`.
    pub limited_by: Option<&'static str>,
    /// The models that no backend can serve now and for which requests wait.
    pub awaited_models: Vec<AwaitedModel>,
    /// The observations about the gateway itself.
    pub gateway: GatewayConditions,
    /// The models that requests name although no backend lists them, each with the number of these requests so
    /// far.
    pub unserved_models: Vec<(String, u64)>,
    /// The requests that the gateway itself ended since the last observation, and slow uploads.
    pub unforwarded: UnforwardedCounts,
    /// The requests that ended since the last observation, grouped by common properties.
    pub request_ends: RequestEnds,
    /// The values of the settings [`LIMIT_SETTINGS`](super::LIMIT_SETTINGS) that are set.
    pub settings: Vec<SettingValue>,
    /// The client that causes most of the work, as a sentence. `None`: none does.
    pub main_client: Option<String>,
    /// The client with most of the requests that the gateway refused. `None`: no request was refused, or no
    /// client has most of them.
    pub limited_client: Option<LimitedClient>,
    /// The TTFT of the streams of the last minute. `None`: there were no streams.
    pub ttft: Option<ObservedTtft>,
    /// The last reload that changed a setting. `None`: no reload has changed one.
    pub reload: Option<RecentReload>,
}

/// A reload of the configuration or of the key file.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentReload {
    /// Seconds since the reload.
    pub age_seconds: f64,
    /// The time of day of the reload, such as `14:03:10 UTC`.
    pub clock: String,
    /// The changes of the reload, with the values before and after.
    pub changed: String,
}

/// The client of most of the requests that the gateway refused in the last minute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LimitedClient {
    /// The name of the client in the texts of verdicts.
    pub name: String,
    /// The limits of the client's tenant and of its keys, by their paths in the key file.
    pub limits: BTreeMap<String, u64>,
    /// The client's share of the refused requests, from 0 to 1.
    pub refused_share: f64,
}

/// Requests that the gateway itself ended in an interval, and slow uploads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnforwardedCounts {
    /// Number of requests that the gateway ended, by the reason of its error or the name of the timeout.
    pub ends: BTreeMap<&'static str, u64>,
    /// The uploads of request bodies that took long.
    pub uploads: Vec<SlowUpload>,
}

/// A request whose body took long to arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowUpload {
    /// The name of the client in texts.
    pub client: String,
    /// Time from the request head to the end of the body, in seconds.
    pub seconds: f64,
    /// Length of the body, in bytes.
    pub bytes: u64,
}

/// A configured setting, which a verdict can name with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingValue {
    /// The name of the setting, such as `timeouts.first_output`.
    pub name: &'static str,
    /// The value as the configuration writes it, such as `1s`.
    pub value: String,
    /// The value in seconds. `None`: the setting is not a duration.
    pub seconds: Option<f64>,
}

/// The TTFT of the streams of a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ObservedTtft {
    /// Number of streams with a TTFT in the minute.
    pub count: u64,
    /// The median, in seconds.
    pub p50: f64,
    /// The 95th percentile, in seconds.
    pub p95: f64,
}

/// Counts of the requests that ended in the last seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecentCounts {
    /// Number of requests that ended.
    pub requests: u64,
    /// Number of the ended requests that the gateway refused.
    pub refused: u64,
    /// The most frequent reason of the refusals, such as `saturated`. `None`: no request was refused.
    pub refused_because: Option<String>,
    /// Number of the ended requests that failed because of a backend.
    pub failed: u64,
    /// Number of the ended requests that failed for the client or were slow.
    pub harmed: u64,
    /// Number of the ended requests that were slow because they waited for capacity.
    pub waited: u64,
    /// Number of the requests in `waited` that waited in the gateway because all backends were full.
    pub delayed: u64,
    /// Number of the ended requests that a backend answered with a status of 4xx, by status.
    pub client_errors: BTreeMap<u16, u64>,
    /// Number of error responses by status and origin. Error responses of the engine are not counted.
    pub error_sources: BTreeMap<String, u64>,
    /// For each kind of harm: what most of the harmed requests have in common.
    pub common: BTreeMap<String, String>,
}

/// A model that no backend can serve now and for which requests wait.
#[derive(Debug, Clone, PartialEq)]
pub struct AwaitedModel {
    /// The model name that the requests contain.
    pub model: String,
    /// Number of waiting requests.
    pub requests: usize,
    /// Seconds for which requests have waited while no backend could serve the model.
    pub seconds: f64,
    /// The name under which backends must list the model. `None`: the same name.
    pub served_as: Option<String>,
}

/// The observations of the gateway about itself.
#[derive(Debug, Clone, Default)]
pub struct GatewayConditions {
    /// Why the last reload of the configuration, of the API keys or of a discovery file failed. `None`: all
    /// succeeded.
    pub reload_problem: Option<String>,
    /// The certificates that the gateway presents. Each entry is the kind of the peer (`client`, `backend` or
    /// `collector`) and the number of seconds until the certificate expires.
    pub certificates: Vec<(&'static str, f64)>,
    /// The reloads of certificate files since the start.
    pub certificate_reloads: CertificateReloads,
    /// Number of spans that were lost since the start, because their export failed or because they did not
    /// fit into the queue.
    pub lost_spans: u64,
    /// Why the last failed export of spans failed. `None`: no export has failed.
    pub span_export_failure: Option<&'static str>,
    /// Number of lines of the access log that were lost since the start, because its reader is too slow or a
    /// write failed.
    pub lost_log_lines: u64,
    /// Number of client connections that were closed or not accepted since the start, because a limit
    /// of the gateway or of its process was reached.
    pub refused_connections: u64,
    /// Whether the memory of the process exceeds `limits.memory` now.
    pub is_memory_full: bool,
    /// The CPU time that the process of the gateway gets.
    pub cpu: CpuSupply,
    /// Number of streams that have begun and not ended.
    pub open_streams: usize,
    /// Number of open streams whose clients do not read the data that has arrived for them.
    pub unread_streams: usize,
    /// What options found, each by a rule of its own about the gateway.
    pub verdicts: Vec<Verdict>,
    /// The recent starts, which show whether the gateway is killed repeatedly.
    pub starts: RecentStarts,
    /// Number of other gateways from which the exchange between gateways gets messages. 0 without an exchange.
    pub connected_gateways: u64,
}

/// The starts of the gateway in the last ten minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RecentStarts {
    /// Seconds since the start of this process.
    pub age_seconds: f64,
    /// Number of starts, including this one.
    pub starts: u64,
    /// Number of earlier processes that did not end cleanly. 0 also if nothing is known about them.
    pub unclean_ends: u64,
}

/// The CPU time that the process of the gateway gets, as far as known.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuSupply {
    /// Number of timers that fired since the start.
    pub timers: u64,
    /// Sum of the times by which these timers were late, in seconds.
    pub late_seconds: f64,
    /// Number of timers that were late by 0.7 s or more, because the whole process was paused.
    pub pauses: u64,
    /// Sum of the times by which these timers were late, in seconds.
    pub pause_seconds: f64,
    /// The longest such pause since the last observation, in seconds.
    pub longest_pause_seconds: f64,
    /// The wall-clock time, in seconds since the Unix epoch. 0: unknown.
    pub wall_seconds: f64,
    /// Total time in which the CPU limit of the control group stopped the process, in seconds. `None`: there is
    /// no limit.
    pub throttled_seconds: Option<f64>,
    /// Share of the last ten seconds in which a process of the machine waited for a CPU, from 0 to 1. `None`:
    /// unknown.
    pub waiting_share: Option<f64>,
}

/// Numbers of reloads of certificate files since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct CertificateReloads {
    /// Number of reloads that succeeded.
    pub succeeded: u64,
    /// Number of reloads that failed.
    pub failed: u64,
}

/// A backend with its state, and its attempts since the last observation.
#[derive(Debug, Clone)]
pub struct FleetBackend {
    /// The configured name, or else host and port.
    pub id: BackendId,
    /// The host of the URL. Backends of one host can share a fault.
    pub host: Arc<str>,
    /// The base models that the backend lists. Empty: not known.
    pub models: Vec<Arc<str>>,
    /// Why the backend gets requests or not.
    pub state: Availability,
    /// Whether the backend gets new requests. In panic mode, an ejected backend gets new requests too.
    pub is_up: bool,
    /// Why health checks fail. `None`: they pass, or none has completed.
    pub reason: Option<String>,
    /// Who drained the backend, and why. `None`: the backend is not drained.
    pub drain: Option<DrainSummary>,
    /// The attempts since the last observation.
    pub attempts: AttemptCounts,
    /// Number of restarts of the process of the backend since the backend joined the gateway.
    pub restarts: u64,
    /// Number of times that a metrics page came from another engine than the page before.
    pub engine_switches: u64,
    /// How the engine was started, as far as it is known: names and values, such as `max_model_len` and `8192`.
    pub facts: Vec<(&'static str, String)>,
}

/// Counts of the attempts at one backend in an interval. Each attempt is one request that was sent there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptCounts {
    /// Number of attempts, including failed attempts.
    pub attempts: u64,
    /// The failed attempts, with one entry for each kind and status.
    pub failures: Vec<AttemptFailures>,
}

/// Failed attempts of one kind, status and origin.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AttemptFailures {
    /// The kind of the failure, such as `connect_error`, or how the response broke, such as `truncated_cut`.
    pub kind: &'static str,
    /// The error status with which the backend answered. `None`: the backend sent no error status, or no
    /// response.
    pub status: Option<u16>,
    /// The information in the error response beyond its status. `None`: no such information.
    pub error_source: Option<ErrorSource>,
    /// Number of attempts of this kind, status and origin.
    pub count: u64,
    /// Sum of the times from sending the request to the failure, in seconds.
    pub seconds: f64,
    /// Sum of the squares of these times, in seconds squared.
    pub squares: f64,
}

/// Who drained a backend, why, and for how long.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainSummary {
    /// The initiator of the drain: the configuration, or an operator with the address of the client.
    pub by: String,
    /// The reason that the operator gave. `None`: the operator gave no reason.
    pub reason: Option<String>,
    /// Start of the drain in RFC 3339 format.
    pub since: String,
    /// Seconds since the drain began.
    pub age_seconds: f64,
    /// Seconds until the drain ends by itself. `None`: it lasts until an operator or the configuration ends
    /// it.
    pub remaining_seconds: Option<f64>,
}

/// Maximum age of a reload that can explain harm, in seconds.
const MAX_RELOAD_AGE_SECONDS: f64 = 600.0;
/// Maximum number of models that a cause lists.
const MAX_LISTED: usize = 3;

impl RecentReload {
    /// The reload as a change that can explain harm. `None`: the reload is too old.
    pub(crate) fn change(&self) -> Option<Change> {
        let change = Change {
            words: format!("reload at {}: {}", self.clock, self.changed),
            measure: "reload".into(),
            age_seconds: self.age_seconds,
            ..Change::default()
        };
        (self.age_seconds < MAX_RELOAD_AGE_SECONDS).then_some(change)
    }
}

impl FleetObservation {
    /// The value of a setting. `None`: it is not set, or not known.
    pub(super) fn setting(&self, name: &str) -> Option<&SettingValue> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    pub(crate) fn backend(&self, name: &str) -> Option<&FleetBackend> {
        self.backends.iter().find(|it| it.id.as_str() == name)
    }

    /// Share of the ended requests that the gateway refused, from 0 to 1.
    pub(super) fn refused_share(&self) -> f64 {
        self.counts.refused as f64 / self.counts.requests.max(1) as f64
    }

    /// The number of backends in each state other than available, as text such as `2 drained, 1
    /// down`. Empty: all backends are available.
    pub(super) fn missing_backends(&self) -> String {
        let mut states: Vec<Availability> =
            self.backends.iter().map(|backend| backend.state).collect();
        states.sort_unstable();
        let counts = states.chunk_by(|a, b| a == b);
        let missing = counts.filter(|states| states[0] != Availability::Available);
        let missing = missing.map(|states| format!("{} {}", states.len(), label(states[0])));
        missing.collect::<Vec<_>>().join(", ")
    }

    /// Number of backends that get new requests.
    pub(super) fn up(&self) -> usize {
        self.backends.iter().filter(|backend| backend.is_up).count()
    }

    /// The number of backends that get requests and the states of the others, as text. `None`: all are
    /// available.
    pub(super) fn incomplete(&self) -> Option<String> {
        let missing = self.missing_backends();
        let total = self.backends.len();
        let up = self.up();
        (!missing.is_empty()).then(|| format!("{up} of {total} backends get requests: {missing}"))
    }

    /// The names of the first models that backends list, such as `llama, qwen`.
    pub(super) fn listed_models(&self) -> String {
        let models = self.backends.iter().flat_map(|backend| &backend.models);
        let names: BTreeSet<&str> = models.map(|name| &**name).collect();
        first_of(names, MAX_LISTED, ", ")
    }

    /// The data that the rules about the engine of this backend lack because of the state of the backend, as
    /// text. `None`: the state does not prevent the evaluation of the rules, or the backend is unknown.
    pub(crate) fn exclusion(&self, id: &BackendId) -> Option<&'static str> {
        let backend = self.backend(id.as_str())?;
        match backend.state {
            Availability::Drained => Some("requests: the backend is drained"),
            Availability::Asleep => Some("requests: the engine is asleep"),
            Availability::ZeroWeight => Some("requests: the weight of the backend is 0"),
            Availability::Paused => Some("requests: the engine is paused"),
            Availability::Starting => Some("requests: the backend starts"),
            Availability::Scaling => Some("requests: the engine scales"),
            Availability::Retired => Some("requests: the engine was retired"),
            Availability::Down => Some("a response: the backend is down"),
            Availability::Available | Availability::Ejected | Availability::Unknown => None,
        }
    }
}

pub(super) fn first_of<T: Borrow<str>>(
    texts: impl IntoIterator<Item = T>,
    most: usize,
    separator: &str,
) -> String {
    let first: Vec<T> = texts.into_iter().take(most).collect();
    first.join(separator)
}

/// The text for a state after a number of backends, such as `of weight 0` in `2 of weight 0`.
fn label(state: Availability) -> &'static str {
    match state {
        Availability::ZeroWeight => "of weight 0",
        Availability::Unknown => "not checked yet",
        state => state.as_str(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A backend in this state without attempts.
    pub(crate) fn backend(name: &str, state: Availability) -> FleetBackend {
        FleetBackend {
            id: BackendId::new(name),
            host: "127.0.0.1".into(),
            models: Vec::new(),
            state,
            is_up: state == Availability::Available,
            reason: None,
            drain: None,
            attempts: AttemptCounts::default(),
            restarts: 0,
            engine_switches: 0,
            facts: Vec::new(),
        }
    }
}
