//! Metrics of the results that clients got, and of service level objectives.

use crate::metric::prelude::*;
use tokenweir_request::record::Answer;
use tokenweir_request::slo::ObjectiveResult;

/// The label with the name of a service level objective of the configuration section `slos`.
const OBJECTIVE: MetricLabel = variable(
    "slo",
    |known| known.slos.clone(),
    "an objective of the configuration",
);

pub(super) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_slo_requests_total",
        "Requests that count for an objective, by whether they met it.",
        &[
            OBJECTIVE,
            MODEL,
            computed("result", || {
                ObjectiveResult::COUNTED
                    .map(ObjectiveResult::as_str)
                    .to_vec()
            }),
        ],
        RecordWithObjectives(|objectives, record, emit| {
            for objective in objectives {
                let result = objective.judge(record);
                if result != ObjectiveResult::Excluded {
                    emit(
                        &[&objective.name, record.model.as_str(), result.as_str()],
                        1.0,
                    );
                }
            }
        }),
    ),
    row(
        "tokenweir_answers_total",
        "Inference requests, by what their clients got. `cancelled`: the client ended the request without a wait.",
        &[MODEL, fixed("answer", Answer::NAMES)],
        Record(|record, emit| {
            if let Some(answer) = record.answer {
                emit(&[record.model.as_str(), answer.as_str()], 1.0);
            }
        }),
    ),
    row(
        OBJECTIVE_RATIO_METRIC,
        "Share of requests that must meet the objective.",
        &[OBJECTIVE],
        Recorded,
    ),
];
