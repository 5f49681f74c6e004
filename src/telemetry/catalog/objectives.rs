//! Objectives: what was promised, and how often it was kept.

use super::super::metric::{Kind, Label, Read, Row};
use tokenweir_core::slo::Verdict;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_slo_requests_total",
        help: "Requests that an objective of slos is about, by whether they got what it promises.",
        kind: Kind::Counter,
        labels: &[Label::Slo, Label::Model, Label::Verdict],
        read: Read::Judged(|objective, record, emit| {
            let verdict = objective.judge(record);
            if verdict != Verdict::Excluded {
                emit(&[&objective.name, record.model.as_str(), verdict.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_slo_objective_ratio",
        help: "The share of requests of which an objective promises it.",
        kind: Kind::Gauge,
        labels: &[Label::Slo],
        read: Read::Promise(|objective, emit| emit(&[&objective.name], objective.promise.target)),
    },
];
