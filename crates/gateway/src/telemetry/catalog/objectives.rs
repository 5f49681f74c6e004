//! Metrics of the results that clients got, and of service level objectives.

use crate::metric::{MetricDescriptor, MetricLabel, MetricSource, OBJECTIVE_RATIO_METRIC};
use tokenweir_request::record::Answer;
use tokenweir_request::slo::ObjectiveResult;

/// The label with the name of a service level objective of the configuration section `slos`.
const OBJECTIVE: MetricLabel = MetricLabel::variable(
    "slo",
    |known| known.slos.clone(),
    || "an objective of the configuration".to_owned(),
);

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::new(
        "tokenweir_slo_requests_total",
        "Requests that count for an objective, by whether they met it.",
        &[
            OBJECTIVE,
            MetricLabel::MODEL,
            MetricLabel::fixed("result", || {
                ObjectiveResult::COUNTED
                    .map(ObjectiveResult::as_str)
                    .to_vec()
            }),
        ],
        MetricSource::RecordWithObjectives(|objectives, record, emit| {
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
    MetricDescriptor::new(
        "tokenweir_answers_total",
        "Inference requests, by what their clients got. `cancelled`: the client ended the request without a wait.",
        &[
            MetricLabel::MODEL,
            MetricLabel::fixed("answer", || Answer::NAMES.to_vec()),
        ],
        MetricSource::Record(|record, emit| {
            if let Some(answer) = record.answer {
                emit(&[record.model.as_str(), answer.as_str()], 1.0);
            }
        }),
    ),
    MetricDescriptor::new(
        OBJECTIVE_RATIO_METRIC,
        "Share of requests that must meet the objective.",
        &[OBJECTIVE],
        MetricSource::Recorded,
    ),
];
