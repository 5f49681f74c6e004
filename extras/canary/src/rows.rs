//! Status and metrics of canary requests.

use crate::answer::CanaryResult;
use serde::Serialize;
use std::collections::BTreeMap;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;

/// The canary requests of one backend for status pages.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CanaryStatus {
    /// The result of the last canary request. `None`: the option is off, or no canary request has ended.
    pub(crate) result: Option<CanaryResult>,
    /// The kind of the error of the last canary request. `None`: no error.
    pub(crate) error: Option<String>,
    /// Duration of the last canary request in seconds.
    pub(crate) seconds: Option<f64>,
    /// Time in seconds since the end of the last canary request.
    pub(crate) age_seconds: Option<f64>,
    /// Number of canary requests by result.
    #[serde(skip)]
    pub(crate) counts: BTreeMap<CanaryResult, u64>,
}

impl StatusBlock for CanaryStatus {
    const KEY: Option<&'static str> = Some("canary");
}

/// The metrics of canary requests.
pub(crate) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_canary_requests_total",
        "Canary requests to the backend, by result. They do not count as requests of clients.",
        &[BACKEND, fixed("result", CanaryResult::NAMES)],
        BackendValues(|backend, emit| {
            let status: CanaryStatus = backend.blocks.get_or_default();
            for (result, count) in status.counts {
                emit(&[result.as_str()], Some(count as f64));
            }
        }),
    ),
    of_backend(
        "tokenweir_canary_seconds",
        "Duration of the last canary request to the backend. No series: there was none.",
        |backend| backend.blocks.get::<CanaryStatus>()?.seconds,
    ),
];
