//! Metrics of the diagnosis.

use crate::admin::LatestDiagnosis;
use crate::app::options::{diagnosis_rules, fleet_rules};
use std::collections::HashSet;
use tokenweir_diagnose::{RULES, VerdictSeverity, measure_names};
use tokenweir_gateway::metric::prelude::*;

/// The label with the name of the diagnosis rule from which a verdict comes.
const VERDICT: MetricLabel = computed("verdict", verdict_names);

const CAUSE: MetricLabel = variable(
    "cause",
    |_| vec![String::new()],
    "the cause as of the begin of the verdict",
);

const REMEDY: MetricLabel = variable(
    "remedy",
    |_| vec![String::new()],
    "what to do, as of the begin of the verdict",
);

/// Returns the names of all diagnosis rules: the values of the label `verdict`.
fn verdict_names() -> Vec<&'static str> {
    diagnosis_rules().map(|rule| rule.name).collect()
}

pub(crate) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_diagnosis_active",
        "1 while the verdict holds on the backend. NaN: not enough data. No series: it does not hold. Empty backend: it is about all backends or the gateway.",
        &[BACKEND, VERDICT],
        Status(|status, emit| {
            // A rule that does not apply to a backend has no series there, because such series would be most of
            // the metrics page.
            let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
            let known = diagnosis.known_verdicts();
            let diagnosed = diagnosis.backends.iter();
            let diagnosed: HashSet<&str> = diagnosed.map(|it| &*it.backend).collect();
            let names = || {
                status
                    .registered_backends()
                    .map(|backend| &*backend.backend)
            };
            for backend in names() {
                for rule in &RULES {
                    match known.get(&(backend, rule.name)) {
                        Some(true) => emit(&[backend, rule.name], 1.0),
                        None if diagnosed.contains(backend) => {}
                        _ => emit(&[backend, rule.name], f64::NAN),
                    }
                }
            }
            for rule in fleet_rules() {
                let all = std::iter::once("").chain(names());
                for backend in all.filter(|name| known.get(&(*name, rule.name)) == Some(&true)) {
                    emit(&[backend, rule.name], 1.0);
                }
            }
        }),
    ),
    row(
        "tokenweir_verdicts",
        "Verdicts of the diagnosis that hold now.",
        &[VERDICT, fixed("verdict_severity", VerdictSeverity::NAMES)],
        Status(|status, emit| {
            let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
            for name in verdict_names() {
                for severity in VerdictSeverity::ALL {
                    let verdicts = diagnosis.verdicts.iter();
                    let matching =
                        verdicts.filter(|it| it.verdict == name && it.severity == severity);
                    emit(&[name, severity.as_str()], matching.count() as f64);
                }
            }
        }),
    ),
    row(
        "tokenweir_verdict_info",
        "1 for each verdict that holds, with its cause and its remedy as of its begin. For the texts of alerts.",
        &[BACKEND, VERDICT, CAUSE, REMEDY],
        Status(|status, emit| {
            let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
            for text in &diagnosis.alert_texts {
                let labels = [&*text.backend, &*text.verdict, &*text.cause, &*text.remedy];
                emit(&labels, 1.0);
            }
        }),
    ),
    value(
        "tokenweir_slower_requests_ratio",
        "Share of the requests that take at least 1.5 times as long as in the last hour, also for each output token, at a usual rate of requests.",
        |status| {
            let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
            Some(diagnosis.slower_share)
        },
    ),
    row(
        "tokenweir_anomalies",
        "Backends at which a metric of the engine is far from its usual value of the last hour.",
        &[computed("measure", || measure_names().collect())],
        Status(|status, emit| {
            let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
            for name in measure_names() {
                let anomalies = diagnosis.anomalies.iter();
                emit(
                    &[name],
                    anomalies.filter(|it| it.measure == name).count() as f64,
                );
            }
        }),
    ),
];
