//! Failures: what became of requests and of replicas after them.

use super::super::metric::{FAILOVER_RESULTS, Kind, Label, Read, Row};
use super::replicas::by_backend;
use tokenweir_core::record::{Outcome, RequestRecord};
use tokenweir_core::resilience::Standing;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_failovers_total",
        help: "Requests that a replica failed and another one got, by whether that one answered.",
        kind: Kind::Counter,
        labels: &[Label::Failover],
        read: Read::Record(|record, emit| {
            if has_moved(record) {
                let is_saved = !matches!(
                    record.outcome,
                    Outcome::UpstreamError | Outcome::Rejected | Outcome::Timeout
                );
                emit(&[FAILOVER_RESULTS[usize::from(!is_saved)]], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_failovers_refused_total",
        help: "Requests that a replica failed and no other one got, by the reason.",
        kind: Kind::Counter,
        labels: &[Label::NotRetried],
        read: Read::Record(|record, emit| {
            if let Some(why) = record.not_retried {
                emit(&[why.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_backend_breaker_state",
        help: "1 for the state of the replica's circuit breaker, 0 for the others.",
        kind: Kind::Gauge,
        labels: &[Label::Backend, Label::Breaker],
        read: Read::Vitals(|vitals, emit| {
            for backend in &vitals.backends {
                for standing in Standing::ALL.map(Standing::as_str) {
                    let is_it = backend.breaker == standing;
                    emit(&[&backend.backend, standing], f64::from(u8::from(is_it)));
                }
            }
        }),
    },
    Row {
        name: "tokenweir_backend_ejections_total",
        help: "Times that the replica was ejected because it failed requests.",
        kind: Kind::Counter,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(backend.ejections as f64));
        }),
    },
];

/// Whether more than one replica had it. A replay on another connection to the same one is none.
fn has_moved(record: &RequestRecord) -> bool {
    let mut backends = record.attempts.iter().map(|attempt| &attempt.backend);
    let first = backends.next();
    backends.any(|other| Some(other) != first)
}
