//! The rule about requests that every backend refuses. Possible causes are a proxy in front of the engines, the
//! API key of the gateway, a rate limit, or requests that engines do not accept.

use super::backend_failures::{PROXY_REMEDY, RATE_LIMIT_REMEDY};
use super::observation::{FleetObservation, RecentCounts};
use crate::debounce::VerdictDebounce;
use crate::harm::is_critical_harm;
use crate::rule::prelude::*;
use std::time::Instant;
use tokenweir_protocol::openai::EngineError;
use tokenweir_request::record::BY_PROXY;

/// The HTTP statuses with which a backend refuses the API key of a request or applies a rate limit. Other
/// statuses of 4xx are a fault of the client.
const STATUSES: [u16; 4] = [401, 403, 407, 429];

pub(super) static REFUSED_BY_BACKENDS: DiagnosisRule = DiagnosisRule {
    name: "refused_by_backends",
    is_about_state: false,
    severity: "warning, info if the requests are at fault",
    meaning: "The backends, or a proxy in front of them, refuse requests: clients get 4xx.",
    evidence: "In two of three evaluations, five or more requests of 30 s, significantly more than \
               5 %, got a status of 4xx from a backend. A page of HTML, or an error without the form of an engine from \
               another server, is of a proxy. The cause states what most of these requests have in common.",
    excluded: "a peer of the backend serves the request (see `backend_failing`)",
    remedy: "The backends expect another key than they get. Set api_key of the backends in the \
             configuration, or give the clients the key of the backends.",
    disproof: "The access log has no request with this status of a backend in the last minute.",
    ..DiagnosisRule::FLEET
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct RefusedByBackends {
    debounce: VerdictDebounce,
    /// The refusals of the last evaluation that found some.
    refusals: Refusals,
}

#[derive(Debug, Default)]
struct Refusals {
    /// The most frequent status.
    status: u16,
    /// The status and the origin as text, if most refusals have the same ones.
    source: Option<String>,
    /// A common property of most of the refused requests.
    common: Option<String>,
}

impl RefusedByBackends {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        let counts = &fleet.counts;
        let count: u64 = counts.client_errors.values().sum();
        self.debounce
            .update(is_critical_harm(count, counts.requests), now);
        if let Some(refusals) = Refusals::of(counts) {
            self.refusals = refusals;
        }
        self.debounce.since()?;
        let window = fleet.window_seconds;
        Some(self.refusals.verdict().with([
            Evidence::new("refused_by_backends", count as f64, "requests", window),
            Evidence::new("requests", counts.requests as f64, "requests", window),
        ]))
    }
}

impl Refusals {
    fn of(counts: &RecentCounts) -> Option<Self> {
        let (status, _) = counts
            .client_errors
            .iter()
            .max_by_key(|(_, count)| **count)?;
        let errors: u64 = counts.client_errors.values().sum();
        let source = counts.error_sources.iter().max_by_key(|(_, count)| **count);
        let source = source.filter(|(_, count)| 5 * **count >= 4 * errors && **count <= errors);
        Some(Self {
            status: *status,
            source: source.map(|(source, _)| source.clone()),
            common: counts.common.get("rejected").cloned(),
        })
    }

    /// The verdict of the rule, without its evidence.
    fn verdict(&self) -> Verdict {
        let answered = match &self.source {
            Some(source) => format!("clients get {source}"),
            None => format!("the backends that were asked answer {}", self.status),
        };
        let cause = match &self.common {
            Some(common) => format!("{answered}, {common}"),
            None => answered,
        };
        let found = REFUSED_BY_BACKENDS.verdict(VerdictSeverity::Warning);
        let found = found.because(cause);
        match &self.source {
            Some(source) if source.contains(BY_PROXY) => {
                found.remedy(PROXY_REMEDY).at(Origin::Network)
            }
            Some(source) if source.ends_with(EngineError::Media.as_str()) => found
                .remedy(
                    "Make the host of the media reachable from the engines (name resolution, \
                     egress, --allowed-media-domains), or let the client send the media inline.",
                )
                .at(Origin::Requests),
            _ if self.status == 429 => found.remedy(RATE_LIMIT_REMEDY),
            _ if STATUSES.contains(&self.status) => found,
            _ => Verdict {
                severity: VerdictSeverity::Info,
                ..found.remedy(
                    "Compare these requests with what the engines accept: the access log has \
                     them. The error that the client got names the parameter.",
                )
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::RecentCounts;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn common_401s_are_warnings_and_400s_are_notes() {
        let mut rule = RefusedByBackends::default();
        let mut now = clock::epoch();
        let mut judge = |status, count, requests| {
            now += Duration::from_secs(5);
            let client_errors = [(status, count)].into();
            let counts = RecentCounts {
                requests,
                client_errors,
                ..RecentCounts::default()
            };
            let fleet = FleetObservation {
                counts,
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, now);
            found.map(|it| format!("{} {}", it.severity.as_str(), it.cause.unwrap()))
        };
        assert_eq!(judge(401, 4, 4), None, "few requests");
        assert_eq!(judge(401, 90, 100), None, "a single look is no evidence");
        let named = Some("warning the backends that were asked answer 401");
        assert_eq!(judge(401, 90, 100).as_deref(), named);
        for _ in 0..5 {
            assert_eq!(
                judge(401, 1, 100).as_deref(),
                named,
                "it ends after half a minute"
            );
        }
        assert_eq!(judge(401, 1, 100), None);
        for status in [400, 404, 413, 415, 422] {
            let named = judge(status, 90, 100).or_else(|| judge(status, 90, 100));
            let note = format!("info the backends that were asked answer {status}");
            assert_eq!(named, Some(note));
        }
    }

    #[test]
    fn a_proxy_is_named_with_what_it_refuses() {
        let page = "413 by a proxy in front of the engines (server: nginx), not by an engine";
        let counts = RecentCounts {
            requests: 100,
            client_errors: [(413, 40)].into(),
            error_sources: [(page.to_owned(), 39)].into(),
            common: [(
                "rejected".to_owned(),
                "all 40 with bodies above 8 kB".to_owned(),
            )]
            .into(),
            ..RecentCounts::default()
        };
        let found = Refusals::of(&counts).unwrap().verdict();
        assert_eq!(found.severity, VerdictSeverity::Warning);
        let cause = format!("clients get {page}, all 40 with bodies above 8 kB");
        assert_eq!(found.cause_or_meaning(), cause);
        assert_eq!(found.remedy, PROXY_REMEDY);
    }
}
