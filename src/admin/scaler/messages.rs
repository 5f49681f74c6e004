//! The messages of KEDA's `externalscaler.proto`, without the fields that the scaler does not read.

use std::collections::HashMap;
use tonic::Status;

/// The name of the metric that the scaler reports for each KEDA trigger. KEDA adds the number of the trigger.
const METRIC_NAME: &str = "requests";

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScaledObjectRef {
    #[prost(map = "string, string", tag = "3")]
    pub(super) scaler_metadata: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    pub(super) result: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) scaled_object_ref: Option<ScaledObjectRef>,
}

/// KEDA's messages `GetMetricSpecResponse` and `GetMetricsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) metrics: Vec<MetricNumber>,
}

/// KEDA's message `MetricSpec` (the target of a trigger) or `MetricValue` (its current value). Both messages
/// have the same field numbers and types.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricNumber {
    #[prost(string, tag = "1")]
    pub(super) metric_name: String,
    /// The number in `float`, rounded up, for versions of KEDA that do not read `float`.
    #[prost(int64, tag = "2")]
    pub(super) integer: i64,
    #[prost(double, tag = "3")]
    pub(super) float: f64,
}

impl ScaledObjectRef {
    pub(super) fn model(&self) -> Result<&str, Status> {
        let model = self
            .scaler_metadata
            .get("model")
            .filter(|model| !model.is_empty());
        let problem = "the metadata of the trigger lacks `model`: the model name that clients use";
        model
            .map(String::as_str)
            .ok_or_else(|| Status::invalid_argument(problem))
    }

    /// Returns the number of requests that one backend should serve, from the metadata of the KEDA trigger.
    /// Fails if the trigger states no number above 0.
    pub(super) fn target(&self) -> Result<f64, Status> {
        let target = self
            .scaler_metadata
            .get("requests")
            .and_then(|text| text.parse().ok());
        let problem = "the metadata of the trigger lacks `requests`, a number above 0 per backend";
        target
            .filter(|target: &f64| target.is_finite() && *target > 0.0)
            .ok_or_else(|| Status::invalid_argument(problem))
    }
}

impl MetricsResponse {
    pub(super) fn new(number: f64) -> Self {
        let integer = number.ceil() as i64;
        let metric_name = METRIC_NAME.to_owned();
        Self {
            metrics: vec![MetricNumber {
                metric_name,
                integer,
                float: number,
            }],
        }
    }
}
