//! The rules about the fleet: the texts of each rule, and the evaluation of its condition.

use super::backend_failures::BACKEND_FAILING;
use super::gateway_queue::GATEWAY_QUEUE;
use super::gateway_rules::{CERTIFICATE_EXPIRES, LOG_LINES_LOST, RELOAD_FAILED, SPANS_LOST};
use super::limits::{GATEWAY_LIMIT, named};
use super::observation::{AwaitedModel, DrainSummary, FleetBackend, FleetObservation, first_of};
use super::refused_by_backends::REFUSED_BY_BACKENDS;
use super::restarts::BACKEND_RESTARTING;
use super::slow_clients::SLOW_CLIENTS;
use super::starvation::GATEWAY_STARVED;
use super::unserved_models::MODEL_GONE;
use crate::harm::is_critical_harm;
use crate::rule::prelude::*;
use std::fmt::Write;
use tokenweir_routing::resilience::{Availability, DownKind};

/// Minimum share of refused requests for the rule `shedding`.
const MIN_REFUSED_SHARE: f64 = 0.01;
/// Minimum number of refused requests for the rule `shedding`.
const MIN_REFUSED: u64 = 3;
/// The reasons of refusals that the rule [`GATEWAY_LIMIT`] reports.
const OWN_LIMITS: [&str; 3] = ["overloaded", "body_memory", "gateway_exhausted"];
/// Age in seconds from which a drain without an end is a warning.
const FORGOTTEN_DRAIN_SECONDS: f64 = 3_600.0;
/// Maximum number of models that the cause of the verdict `backend_awaited` names.
const MAX_NAMED: usize = 3;
/// The description of the severities of a verdict about a backend that gets no requests.
const STATE_SEVERITY: &str = "warning, info while it starts, critical if `no_capacity` holds or more than 5 % of requests \
                              are refused or slow for lack of capacity";

pub(super) static NO_CAPACITY: DiagnosisRule = DiagnosisRule {
    name: "no_capacity",
    severity: "critical",
    meaning: "No backend can take requests: every request waits or is refused.",
    evidence: "Every backend is down, drained, asleep, paused, ejected or of weight 0. The cause \
               counts the backends in each state.",
    excluded: "the first health check of a backend has not ended",
    remedy: "Undrain a drained backend, wake a sleeping one, raise a weight of 0, or start a \
             backend that is down.",
    disproof: "GET /readyz of the admin listener answers 200.",
    pages: true,
    ..DiagnosisRule::FLEET
};

pub(super) static BACKEND_AWAITED: DiagnosisRule = DiagnosisRule {
    name: "backend_awaited",
    severity: "warning, critical if more than 5 % of requests are refused for it",
    meaning: "Requests wait in the gateway, because no backend can serve their model.",
    evidence: "Requests wait for a model that no backend can serve now. The cause states the model, for \
               how long no backend could serve it, and the number of waiting requests.",
    remedy: "Correct the name if the backends list the model under another one (models, served_as). Or start a backend that \
             serves the model. If none starts within admission.max_backend_wait, the \
             requests get 503.",
    disproof: "tokenweir_model_queue_requests is 0 for the model.",
    ..DiagnosisRule::FLEET
};

pub(super) static SHEDDING: DiagnosisRule = DiagnosisRule {
    name: "shedding",
    severity: "warning, critical if more than 5 % of requests are refused or slow for lack of \
               capacity",
    meaning: "The gateway refuses requests, because no backend has capacity for them.",
    evidence: "In 30 s the gateway refused three or more requests, and at least 1 %. The cause \
               counts the backends that get no requests.",
    excluded: "`no_capacity` holds",
    remedy: "Undrain or restart the backends that get no requests. If all get requests, add \
             backends.",
    disproof: "The access log has no request with outcome rejected in the last minute.",
    ..DiagnosisRule::FLEET
};

pub(super) static BACKEND_DOWN: DiagnosisRule = DiagnosisRule {
    name: "backend_down",
    severity: STATE_SEVERITY,
    meaning: "The backend is down: it gets no requests.",
    evidence: "Health checks or connections fail, or the engine makes no progress. The cause names \
               the error, on which the remedy depends.",
    excluded: "the backend is drained",
    remedy: "Read the log of the backend and restart it.",
    disproof: "curl http://BACKEND/health answers 200 on the machine of the gateway.",
    ..DiagnosisRule::BACKEND
};

pub(super) static BACKEND_EJECTED: DiagnosisRule = DiagnosisRule {
    name: "backend_ejected",
    severity: STATE_SEVERITY,
    meaning: "The circuit breaker has ejected the backend, because its requests failed.",
    evidence: "The state of the backend is `ejected`. In panic mode, when most backends are \
               ejected, it gets requests nevertheless.",
    excluded: "`backend_failing` holds",
    remedy: "Read the log of the backend. The access log has the failed requests.",
    disproof: "Requests that are sent directly to the backend succeed.",
    ..DiagnosisRule::BACKEND
};

static BACKEND_DRAINED: DiagnosisRule = DiagnosisRule {
    name: "backend_drained",
    severity: "info, warning after an hour if the drain has no end, critical as `backend_down`",
    meaning: "The backend is drained: it gets no new requests.",
    evidence: "The state of the backend is `drained`. The cause says who drained it, when, until \
               when and why.",
    remedy: "End the drain when the work is done: tokenweir undrain NAME, or d in tokenweir top.",
    disproof: "GET /status shows drained: false for the backend.",
    ..DiagnosisRule::BACKEND
};

/// The rules about the fleet and the gateway without those of options, the most urgent first.
pub static FLEET_RULES: [&DiagnosisRule; 18] = [
    &NO_CAPACITY,
    &BACKEND_AWAITED,
    &SHEDDING,
    &GATEWAY_QUEUE,
    &MODEL_GONE,
    &BACKEND_FAILING,
    &REFUSED_BY_BACKENDS,
    &BACKEND_DOWN,
    &BACKEND_RESTARTING,
    &BACKEND_EJECTED,
    &BACKEND_DRAINED,
    &GATEWAY_LIMIT,
    &GATEWAY_STARVED,
    &CERTIFICATE_EXPIRES,
    &RELOAD_FAILED,
    &SPANS_LOST,
    &LOG_LINES_LOST,
    &SLOW_CLIENTS,
];

impl Verdict {
    /// Whether the condition is a state of a backend, of the fleet or of the gateway. `false` for rules of options.
    pub fn is_about_state(&self) -> bool {
        FLEET_RULES
            .iter()
            .any(|rule| rule.is_about_state && rule.name == self.verdict)
    }
}

/// The verdicts about missing capacity and about backends that are down, ejected or drained.
pub(super) fn judge(fleet: &FleetObservation) -> Vec<Verdict> {
    let may_get_requests =
        |backend: &FleetBackend| backend.is_up || backend.state == Availability::Unknown;
    let has_no_capacity = !fleet.backends.iter().any(may_get_requests);
    let is_critical = |harmed: u64| is_critical_harm(harmed, fleet.counts.requests);
    let is_harmful = has_no_capacity
        || is_shedding(fleet) && is_critical(fleet.counts.refused)
        || is_critical(fleet.counts.waited);
    let severity = VerdictSeverity::critical_if(is_harmful);
    let mut matches = Vec::new();
    if has_no_capacity {
        let mut cause = fleet.missing_backends();
        if cause.is_empty() {
            "there are no backends".clone_into(&mut cause);
        }
        let found = NO_CAPACITY.verdict(severity).because(cause);
        matches.push(found.with(of_refusals(fleet)));
    } else if is_shedding(fleet) && !is_of_awaited(fleet) {
        let found = SHEDDING.verdict(severity).because(shedding_cause(fleet));
        matches.push(found.with(of_refusals(fleet)));
    }
    matches.extend(backend_awaited(fleet, severity));
    let backends = fleet.backends.iter();
    matches.extend(backends.filter_map(|backend| judge_backend(backend, severity)));
    matches
}

/// The verdict about the state of a backend. `severity`: critical if the missing capacity harms requests.
fn judge_backend(backend: &FleetBackend, severity: VerdictSeverity) -> Option<Verdict> {
    let found = match backend.state {
        Availability::Down
        | Availability::Starting
        | Availability::Scaling
        | Availability::Retired => {
            let down = BACKEND_DOWN.verdict(severity);
            let reason = backend.reason.as_deref();
            if backend.state == Availability::Starting && severity < VerdictSeverity::Critical {
                BACKEND_DOWN
                    .verdict(VerdictSeverity::Info)
                    .because("it starts")
            } else if let Some(kind) = reason.and_then(DownKind::of_reason) {
                down.because(kind.cause).remedy(kind.remedy)
            } else {
                let cause = backend.reason.clone().map(Into::into);
                Verdict { cause, ..down }
            }
        }
        Availability::Ejected if backend.is_up => BACKEND_EJECTED
            .verdict(severity)
            .because("it gets requests nevertheless, because most backends are ejected"),
        Availability::Ejected => BACKEND_EJECTED.verdict(severity),
        Availability::Drained => {
            let severity = if severity < VerdictSeverity::Critical {
                drain_severity(backend)
            } else {
                severity
            };
            let cause = backend.drain.as_ref().map(drain_cause).map(Into::into);
            Verdict {
                cause,
                ..BACKEND_DRAINED.verdict(severity)
            }
        }
        Availability::Available
        | Availability::Asleep
        | Availability::Paused
        | Availability::ZeroWeight
        | Availability::Unknown => return None,
    };
    Some(found.about(&backend.id))
}

/// Whether the gateway refuses enough requests for [`SHEDDING`], mostly because too few backends are available.
fn is_shedding(fleet: &FleetObservation) -> bool {
    let because = fleet.counts.refused_because.as_deref();
    let is_own_limit = because.is_some_and(|reason| OWN_LIMITS.contains(&reason));
    fleet.counts.refused >= MIN_REFUSED
        && fleet.refused_share() >= MIN_REFUSED_SHARE
        && !is_own_limit
}

/// Whether the gateway refuses requests that waited too long for a backend with their model.
fn is_of_awaited(fleet: &FleetObservation) -> bool {
    let is_for_lack = fleet.counts.refused_because.as_deref() == Some("no_backend");
    is_for_lack && !fleet.awaited_models.is_empty() && fleet.missing_backends().is_empty()
}

/// The verdict of [`BACKEND_AWAITED`]. `None`: no request waits for a backend with its model.
fn backend_awaited(fleet: &FleetObservation, severity: VerdictSeverity) -> Option<Verdict> {
    let models = &fleet.awaited_models;
    if models.is_empty() {
        return None;
    }
    let mut cause = first_of(models.iter().map(AwaitedModel::words), MAX_NAMED, "; ");
    if models.len() > MAX_NAMED {
        // Writing to a string cannot fail.
        let _ = write!(cause, "; and {} more models", models.len() - MAX_NAMED);
    }
    let listed = fleet.listed_models();
    if !listed.is_empty() {
        let _ = write!(cause, "; the backends list {listed}");
    }
    let waiting = models.iter().map(|model| model.requests).sum::<usize>();
    let longest = models.iter().map(|model| model.seconds).fold(0.0, f64::max);
    let evidence = Evidence::new("waiting_in_gateway", waiting as f64, "requests", longest);
    let severity = if is_of_awaited(fleet) {
        severity
    } else {
        VerdictSeverity::Warning
    };
    let found = BACKEND_AWAITED.verdict(severity).because(cause);
    Some(found.with([evidence]))
}

impl AwaitedModel {
    fn words(&self) -> String {
        let requests = if self.requests == 1 {
            "1 request waits"
        } else {
            &format!("{} requests wait", self.requests)
        };
        let named = self.served_as.as_ref().map_or_else(String::new, |name| {
            format!(" under the name `{name}` (models[].served_as)")
        });
        let time = minutes(self.seconds);
        format!("no backend of {}{named} for {time}, {requests}", self.model)
    }
}

/// The evidence that the gateway refuses requests or lets them wait because capacity is missing.
fn of_refusals(fleet: &FleetObservation) -> Vec<Evidence> {
    let evidence = |measure, value, unit| Evidence::new(measure, value, unit, fleet.window_seconds);
    vec![
        evidence("refused_share", fleet.refused_share(), "ratio"),
        evidence("refused", fleet.counts.refused as f64, "requests"),
        evidence("waiting_in_gateway", fleet.queued as f64, "requests"),
    ]
}

fn shedding_cause(fleet: &FleetObservation) -> String {
    if let Some(incomplete) = fleet.incomplete() {
        return incomplete;
    }
    let setting = match fleet.counts.refused_because.as_deref() {
        Some("saturated" | "shed") => fleet.setting("admission.queue_capacity"),
        Some("queue_timeout") => fleet.setting("admission.max_wait"),
        Some("late") => None,
        Some(reason) => {
            let reason = reason.replace('_', " ");
            return format!("not the load of the backends: most refusals have the reason {reason}");
        }
        None => return "every backend is full, or the gateway is at its own limit".to_owned(),
    };
    match setting {
        Some(setting) => format!("every backend is full, and {} is reached", named(setting)),
        None => "every backend is full".to_owned(),
    }
}

/// The severity of a drain that harms no requests: info, or a warning if the drain seems forgotten.
fn drain_severity(backend: &FleetBackend) -> VerdictSeverity {
    match &backend.drain {
        Some(DrainSummary {
            remaining_seconds: None,
            age_seconds,
            ..
        }) if *age_seconds >= FORGOTTEN_DRAIN_SECONDS => VerdictSeverity::Warning,
        _ => VerdictSeverity::Info,
    }
}

fn drain_cause(drain: &DrainSummary) -> String {
    let DrainSummary {
        by,
        reason,
        age_seconds,
        remaining_seconds,
        ..
    } = drain;
    let mut cause = format!("drained by {by} {} ago", minutes(*age_seconds));
    if let Some(remaining) = remaining_seconds {
        // Writing to a string cannot fail.
        let _ = write!(cause, ", for {} more", minutes(*remaining));
    }
    if let Some(reason) = reason {
        let _ = write!(cause, ": {reason}");
    }
    cause
}

/// A time as text, in the largest suitable unit: seconds, minutes or hours.
fn minutes(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3_600.0),
    }
}
