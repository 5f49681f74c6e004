//! The rules about the fleet: the texts of each rule, and the evaluation of its condition.

use super::backend_failures::BACKEND_FAILING;
use super::gateway_queue::GATEWAY_QUEUE;
use super::gateway_rules::{
    CERTIFICATE_EXPIRES, LOG_LINES_LOST, RELOAD_FAILED, SPANS_LOST, VERSION_TAKEN_OUT,
};
use super::limits::{GATEWAY_LIMIT, named};
use super::observation::{AwaitedModel, DrainSummary, FleetBackend, FleetObservation};
use super::refused_by_backends::REFUSED_BY_BACKENDS;
use super::restarts::BACKEND_RESTARTING;
use super::slow_clients::SLOW_CLIENTS;
use super::starvation::GATEWAY_STARVED;
use super::unserved_models::MODEL_GONE;
use crate::harm::is_critical_harm;
use crate::verdict::{Evidence, Verdict, VerdictDescription, VerdictScope, VerdictSeverity};
use std::fmt::Write;
use tokenweir_routing::resilience::{Availability, DownKind};

/// Minimum share of refused requests for the rule `shedding`.
const MIN_REFUSED_SHARE: f64 = 0.01;
/// Minimum number of refused requests for the rule `shedding`.
const MIN_REFUSED: u64 = 3;
/// The reasons of refusals for which [`GATEWAY_LIMIT`] is the verdict.
const OWN_LIMITS: [&str; 3] = ["overloaded", "body_memory", "gateway_exhausted"];
/// A drain without an end is a warning if it is at least this many seconds old.
const FORGOTTEN_DRAIN_SECONDS: f64 = 3_600.0;
/// Maximum number of models that the cause of the verdict `backend_awaited` names.
const MAX_NAMED: usize = 3;
/// The severities of a verdict about a backend that gets no requests, in words.
const STATE_SEVERITY: &str = "warning, info while it starts, critical if `no_capacity` holds or more than 5 % of requests \
                              are refused or slow for lack of capacity";

pub(super) static NO_CAPACITY: VerdictDescription = VerdictDescription {
    name: "no_capacity",
    scope: VerdictScope::Fleet,
    is_about_state: true,
    severity: "critical",
    meaning: "No backend can take requests: every request waits or is refused.",
    evidence: "Every backend is down, drained, asleep, paused, ejected or of weight 0. The cause \
               counts the backends in each state.",
    excluded: "the first health check of a backend has not ended",
    remedy: "Undrain a drained backend, wake a sleeping one, raise a weight of 0, or start a \
             backend that is down.",
    disproof: "GET /readyz of the admin listener answers 200.",
    pages: true,
};

pub(super) static BACKEND_AWAITED: VerdictDescription = VerdictDescription {
    name: "backend_awaited",
    scope: VerdictScope::Fleet,
    is_about_state: true,
    severity: "warning, critical if more than 5 % of requests are refused for it",
    meaning: "Requests wait in the gateway, because no backend can serve their model.",
    evidence: "Requests wait for a model that no backend can serve now. The cause states the model, for \
               how long no backend could serve it, and the number of waiting requests.",
    excluded: "",
    remedy: "Correct the name if the backends list the model under another one (models, served_as). Or start a backend that \
             serves the model. If none starts within admission.max_backend_wait, the \
             requests get 503.",
    disproof: "tokenweir_model_queue_requests is 0 for the model.",
    pages: false,
};

pub(super) static SHEDDING: VerdictDescription = VerdictDescription {
    name: "shedding",
    scope: VerdictScope::Fleet,
    is_about_state: true,
    severity: "warning, critical if more than 5 % of requests are refused or slow for lack of \
               capacity",
    meaning: "The gateway refuses requests, because no backend has capacity for them.",
    evidence: "In 30 s the gateway refused three or more requests, and at least 1 %. The cause \
               counts the backends that get no requests.",
    excluded: "`no_capacity` holds",
    remedy: "Undrain or restart the backends that get no requests. If all get requests, add \
             backends.",
    disproof: "The access log has no request with outcome rejected in the last minute.",
    pages: false,
};

pub(super) static BACKEND_DOWN: VerdictDescription = VerdictDescription {
    name: "backend_down",
    scope: VerdictScope::Backend,
    is_about_state: true,
    severity: STATE_SEVERITY,
    meaning: "The backend is down: it gets no requests.",
    evidence: "Health checks or connections fail, or the engine makes no progress. The cause names \
               the error, on which the remedy depends.",
    excluded: "the backend is drained",
    remedy: "Read the log of the backend and restart it.",
    disproof: "curl http://BACKEND/health answers 200 on the machine of the gateway.",
    pages: false,
};

pub(super) static BACKEND_EJECTED: VerdictDescription = VerdictDescription {
    name: "backend_ejected",
    scope: VerdictScope::Backend,
    is_about_state: true,
    severity: STATE_SEVERITY,
    meaning: "The circuit breaker has ejected the backend, because its requests failed.",
    evidence: "The state of the backend is `ejected`. In panic mode, when most backends are \
               ejected, it gets requests nevertheless.",
    excluded: "`backend_failing` holds",
    remedy: "Read the log of the backend. The access log has the failed requests.",
    disproof: "Requests that are sent directly to the backend succeed.",
    pages: false,
};

static BACKEND_DRAINED: VerdictDescription = VerdictDescription {
    name: "backend_drained",
    scope: VerdictScope::Backend,
    is_about_state: true,
    severity: "info, warning after an hour if the drain has no end, critical as `backend_down`",
    meaning: "The backend is drained: it gets no new requests.",
    evidence: "The state of the backend is `drained`. The cause says who drained it, when, until \
               when and why.",
    excluded: "",
    remedy: "End the drain when the work is done: tokenweir undrain NAME, or d in tokenweir top.",
    disproof: "GET /status shows drained: false for the backend.",
    pages: false,
};

/// All rules about the fleet and the gateway, the most urgent first.
pub static FLEET_RULES: [&VerdictDescription; 19] = [
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
    &VERSION_TAKEN_OUT,
    &CERTIFICATE_EXPIRES,
    &RELOAD_FAILED,
    &SPANS_LOST,
    &LOG_LINES_LOST,
    &SLOW_CLIENTS,
];

impl Verdict {
    /// Whether the condition is a state of a backend, of the fleet or of the gateway.
    pub fn is_about_state(&self) -> bool {
        FLEET_RULES
            .iter()
            .any(|rule| rule.is_about_state && rule.name == self.verdict)
    }
}

/// The verdicts of the rules of this module. They are about missing capacity, and about backends that are
/// down, ejected or drained.
pub(super) fn judge(fleet: &FleetObservation) -> Vec<Verdict> {
    let may_get_requests =
        |backend: &FleetBackend| backend.is_up || backend.state == Availability::Unknown;
    let has_no_capacity = !fleet.backends.iter().any(may_get_requests);
    let is_critical = |harmed: u64| is_critical_harm(harmed, fleet.counts.requests);
    let is_harmful = has_no_capacity
        || is_shedding(fleet) && is_critical(fleet.counts.refused)
        || is_critical(fleet.counts.waited);
    let severity = if is_harmful {
        VerdictSeverity::Critical
    } else {
        VerdictSeverity::Warning
    };
    let mut matches = Vec::new();
    if has_no_capacity {
        let missing = fleet.missing_backends();
        let cause = if missing.is_empty() {
            "there are no backends".to_owned()
        } else {
            missing
        };
        matches.push(for_all(&NO_CAPACITY, severity, cause, fleet));
    } else if is_shedding(fleet) && !is_of_awaited(fleet) {
        matches.push(for_all(&SHEDDING, severity, shedding_cause(fleet), fleet));
    }
    matches.extend(backend_awaited(fleet, severity));
    matches.extend(
        fleet
            .backends
            .iter()
            .filter_map(|backend| judge_backend(backend, severity)),
    );
    matches
}

/// The verdict about the state of a backend. `severity`: critical if the missing capacity harms requests.
fn judge_backend(backend: &FleetBackend, severity: VerdictSeverity) -> Option<Verdict> {
    let found = match backend.state {
        Availability::Down
        | Availability::Starting
        | Availability::Scaling
        | Availability::Retired => {
            let kind = backend.reason.as_deref().and_then(DownKind::of_reason);
            let cause = kind.map(|kind| kind.cause.to_owned());
            let down = BACKEND_DOWN.verdict(severity, cause.or_else(|| backend.reason.clone()));
            let remedy = kind.map_or(BACKEND_DOWN.remedy, |kind| kind.remedy);
            if backend.state == Availability::Starting && severity < VerdictSeverity::Critical {
                let cause = Some("it starts".to_owned());
                let starts = BACKEND_DOWN.verdict(VerdictSeverity::Info, cause);
                return Some(Verdict {
                    backend: backend.id.to_string(),
                    ..starts
                });
            }
            Verdict {
                remedy: remedy.to_owned(),
                ..down
            }
        }
        Availability::Ejected => {
            let panic = "it gets requests nevertheless, because most backends are ejected";
            let cause = backend.is_up.then(|| panic.to_owned());
            BACKEND_EJECTED.verdict(severity, cause)
        }
        Availability::Drained => {
            let is_harmful = severity == VerdictSeverity::Critical;
            let severity = if is_harmful {
                severity
            } else {
                drain_severity(backend)
            };
            BACKEND_DRAINED.verdict(severity, backend.drain.as_ref().map(drain_cause))
        }
        Availability::Available
        | Availability::Asleep
        | Availability::Paused
        | Availability::ZeroWeight
        | Availability::Unknown => return None,
    };
    Some(Verdict {
        backend: backend.id.to_string(),
        ..found
    })
}

/// Whether the gateway refuses enough requests for [`SHEDDING`], mostly for lack of backends.
fn is_shedding(fleet: &FleetObservation) -> bool {
    let because = fleet.counts.refused_because.as_deref();
    let is_own_limit = because.is_some_and(|reason| OWN_LIMITS.contains(&reason));
    fleet.counts.refused >= MIN_REFUSED
        && fleet.refused_share() >= MIN_REFUSED_SHARE
        && !is_own_limit
}

/// Whether the gateway refuses requests because they waited too long for a backend of their model.
fn is_of_awaited(fleet: &FleetObservation) -> bool {
    let is_for_lack = fleet.counts.refused_because.as_deref() == Some("no_backend");
    is_for_lack && !fleet.awaited_models.is_empty() && fleet.missing_backends().is_empty()
}

/// The verdict of [`BACKEND_AWAITED`]. `None`: no request waits for a backend of its model.
fn backend_awaited(fleet: &FleetObservation, severity: VerdictSeverity) -> Option<Verdict> {
    let models = &fleet.awaited_models;
    let longest = models.iter().map(|model| model.seconds).fold(0.0, f64::max);
    let causes = models.iter().take(MAX_NAMED).map(
        |AwaitedModel {
             model,
             requests,
             seconds,
             served_as,
         }| {
            let requests = if *requests == 1 {
                "1 request waits"
            } else {
                &format!("{requests} requests wait")
            };
            let named = served_as.as_ref().map_or_else(String::new, |name| {
                format!(" under the name `{name}` (models[].served_as)")
            });
            format!(
                "no backend of {model}{named} for {}, {requests}",
                minutes(*seconds)
            )
        },
    );
    let mut cause = causes.collect::<Vec<_>>().join("; ");
    if models.len() > MAX_NAMED {
        // Writing to a string cannot fail.
        let _ = write!(cause, "; and {} more models", models.len() - MAX_NAMED);
    }
    let listed = fleet.listed_models();
    if !listed.is_empty() {
        let _ = write!(cause, "; the backends list {listed}");
    }
    let waiting = models.iter().map(|model| model.requests).sum::<usize>();
    let evidence = vec![Evidence::new(
        "waiting_in_gateway",
        waiting as f64,
        "requests",
        longest,
    )];
    let severity = if is_of_awaited(fleet) {
        severity
    } else {
        VerdictSeverity::Warning
    };
    let found = BACKEND_AWAITED.verdict(severity, Some(cause));
    (!models.is_empty()).then_some(Verdict { evidence, ..found })
}

fn for_all(
    rule: &VerdictDescription,
    severity: VerdictSeverity,
    cause: String,
    fleet: &FleetObservation,
) -> Verdict {
    let evidence = |measure, value, unit| Evidence::new(measure, value, unit, fleet.window_seconds);
    let evidence = vec![
        evidence("refused_share", fleet.refused_share(), "ratio"),
        evidence("refused", fleet.counts.refused as f64, "requests"),
        evidence("waiting_in_gateway", fleet.queued as f64, "requests"),
    ];
    Verdict {
        evidence,
        ..rule.verdict(severity, Some(cause))
    }
}

fn shedding_cause(fleet: &FleetObservation) -> String {
    let missing = fleet.missing_backends();
    let total = fleet.backends.len();
    if missing.is_empty() {
        let because = fleet.counts.refused_because.as_deref();
        let setting = match because {
            Some("saturated" | "shed") => fleet.setting("admission.queue_capacity"),
            Some("queue_timeout") => fleet.setting("admission.max_wait"),
            _ => None,
        };
        return match because {
            Some("saturated" | "shed" | "queue_timeout" | "late") => match setting {
                Some(setting) => {
                    format!("every backend is full, and {} is reached", named(setting))
                }
                None => "every backend is full".to_owned(),
            },
            Some(reason) => {
                let reason = reason.replace('_', " ");
                format!("not the load of the backends: most refusals have the reason {reason}")
            }
            None => "every backend is full, or the gateway is at its own limit".to_owned(),
        };
    }
    let up = fleet
        .backends
        .iter()
        .filter(|backend| backend.is_up)
        .count();
    format!("{up} of {total} backends get requests: {missing}")
}

/// The severity of a drain that harms no requests: info, because it is deliberate, or a warning if it seems
/// forgotten.
fn drain_severity(backend: &FleetBackend) -> VerdictSeverity {
    let is_forgotten = |drain: &DrainSummary| {
        drain.remaining_seconds.is_none() && drain.age_seconds >= FORGOTTEN_DRAIN_SECONDS
    };
    if backend.drain.as_ref().is_some_and(is_forgotten) {
        VerdictSeverity::Warning
    } else {
        VerdictSeverity::Info
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
