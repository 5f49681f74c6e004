//! The types of the metrics catalogue: a row per metric, and labels whose values come from closed
//! sets.

use super::status::StatusSnapshot;
use crate::backend::Availability;
use std::time::Duration;
use tokenweir_core::admission::DEFAULT_CLASS;
use tokenweir_core::engine_metrics::ENGINE_METRICS;
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_core::error;
use tokenweir_core::histogram::HistogramSnapshot;
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_core::openai::{Api, FinishReason};
use tokenweir_core::record::{
    FailoverDenialReason, ModelLabel, Outcome, RequestPhase, RequestRecord, SlowCause,
    TERMINATION_REASONS, TerminationInitiator, UninspectedReason, UsageEventOutcome, UsageSource,
};
use tokenweir_core::resilience::{BreakerState, FailureKind};
use tokenweir_core::routing::{self, PolicyKind};
use tokenweir_core::slo::{Objective, ObjectiveResult};
use tokenweir_diagnose::RULES;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_net::tls::TlsPeer;

/// One metric of the catalogue.
pub struct MetricDescriptor {
    /// The name in the Prometheus exposition format.
    pub name: &'static str,
    /// The help text: a short sentence or two.
    pub help: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The labels, in the order in which values are emitted.
    pub labels: &'static [MetricLabel],
    /// The source of the values.
    pub read: MetricSource,
}

/// Receives one value and its label values, in the order of the row's labels.
pub type MetricEmitter<'a> = &'a mut dyn FnMut(&[&str], f64);

/// The source of the values of a metric.
#[derive(Clone, Copy)]
pub enum MetricSource {
    /// A stream at its first output. The record has no later data.
    FirstOutput(fn(&RequestRecord, MetricEmitter<'_>)),
    /// A finished request.
    Record(fn(&RequestRecord, MetricEmitter<'_>)),
    /// A finished request and an objective of `slos`.
    RecordPerObjective(fn(&Objective, &RequestRecord, MetricEmitter<'_>)),
    /// An objective of `slos`.
    Objective(fn(&Objective, MetricEmitter<'_>)),
    /// All values of a finished request at once, labelled by model and backend.
    RecordHistogram(fn(&RequestRecord) -> Option<HistogramSnapshot<'_>>),
    /// A completed scrape of a backend's metrics.
    Scrape(fn(&ScrapeResult<'_>, MetricEmitter<'_>)),
    /// The state of the gateway when the metrics page is read.
    Status(fn(&StatusSnapshot, MetricEmitter<'_>)),
}

/// The result of one scrape of a backend's metrics.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeResult<'a> {
    /// The name of the backend.
    pub backend: &'a str,
    /// The duration of the scrape.
    pub took: Duration,
    /// Why the scrape failed. `None`: it succeeded.
    pub error: Option<ScrapeError>,
}

/// A label of a metric. Its values are from a closed set that no client can extend. Models and
/// tenants that the configuration does not name are bounded in number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricLabel {
    /// A model that the configuration names, one of the first `metrics.max_models` others that
    /// backends serve, or `_other`.
    Model,
    /// A registered backend, or one of the last removed ones.
    Backend,
    /// [`Api::operation`]
    Operation,
    /// [`Api::operation`] of an inference request, under the name of the OpenTelemetry conventions.
    GenAiOperation,
    /// [`Outcome::as_str`]
    Outcome,
    /// [`RequestRecord::error_type`]. Empty on success and for a client that disconnected.
    ErrorType,
    /// [`FinishReason::as_str`]
    FinishReason,
    /// [`RequestRecord::ending`]
    TerminationReason,
    /// [`TerminationInitiator::as_str`]
    ClosedBy,
    /// [`SlowCause::as_str`]
    SlowCause,
    /// A tier of the configuration, or `_other`. Empty if the request has no tier.
    Tier,
    /// A tenant of the keys file, or `_other` beyond the limit of labelled tenants.
    Tenant,
    /// An objective of `slos`.
    Slo,
    /// [`ObjectiveResult::as_str`]
    SloResult,
    /// A condition that diagnosis detects: a name of [`RULES`].
    DiagnosisRule,
    /// The name of a label that counted a value under its overflow value.
    OverflowedLabel,
    /// [`RequestPhase::as_str`]
    RequestPhase,
    /// Whether the duration of a phase is exact or estimated.
    PhaseSource,
    /// The type of tokens: `input`, `output`, `cached_input` or `reasoning`.
    TokenType,
    /// How the engine reported a token count: at the end of the response, or only during it.
    TokenSource,
    /// [`UsageSource::as_str`]
    UsageSource,
    /// [`UsageEventOutcome::as_str`]
    UsageEvent,
    /// Why the client did not receive the complete response.
    WasteReason,
    /// The result of an attempt.
    AttemptResult,
    /// The result of a request that was retried on another backend.
    FailoverResult,
    /// [`FailoverDenialReason::as_str`]
    FailoverDenialReason,
    /// [`BreakerState::as_str`]
    CircuitBreakerState,
    /// [`Availability::as_str`]
    BackendState,
    /// The deciding reason of a routing decision.
    RoutingReason,
    /// A class of the admission queue: a tier of the configuration, or `default`.
    QueueClass,
    /// Why a request was shed.
    ShedReason,
    /// A routing policy: [`PolicyKind::name`].
    Policy,
    /// Whether a shadow policy chose the same backend as the active policy.
    ShadowAgreement,
    /// [`RequestRecord::phase`] of a request whose client disconnected.
    DisconnectPhase,
    /// [`UninspectedReason::as_str`]
    UninspectedReason,
    /// [`error::GatewayError::reason`]
    RejectionReason,
    /// [`ScrapeError::as_str`]
    ScrapeError,
    /// A metric that a backend may report: a name of [`ENGINE_METRICS`].
    BackendMetric,
    /// The export result of a span.
    SpanResult,
    /// The result of a trace capture record.
    TraceCaptureResult,
    /// The result of an access log line.
    AccessLogResult,
    /// The result of a payload log record.
    PayloadLogResult,
    /// The window of a quality mean: recent or baseline.
    QualityWindow,
    /// The result of a quality sample.
    QualitySampleResult,
    /// The result of a push of metrics.
    PushResult,
    /// Why a client connection was refused.
    ConnectionRefusalReason,
    /// The side that a certificate is presented to: [`TlsPeer::as_str`].
    TlsSide,
    /// Whether changed certificate files could be used.
    CertificateReloadResult,
    /// Whether a reloaded configuration could be used.
    ConfigReloadResult,
    /// [`BackgroundTask::as_str`]
    BackgroundTask,
    /// The version of the gateway.
    Version,
}

/// Values of the labels whose sets are known only at run time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownLabelValues {
    /// Models whose series exist before their first request.
    pub models: Vec<String>,
    /// Names of the registered backends.
    pub backends: Vec<String>,
    /// Tiers of the configuration.
    pub tiers: Vec<String>,
    /// Tenants of the keys file that have a label value.
    pub tenants: Vec<String>,
    /// Names of the objectives in `slos`.
    pub slos: Vec<String>,
}

/// Values of [`Label::TokenType`].
pub(super) const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];
/// Labels that count unknown values under one overflow value.
pub(super) const OVERFLOW_LABELS: [MetricLabel; 5] = [
    MetricLabel::Model,
    MetricLabel::Tier,
    MetricLabel::FinishReason,
    MetricLabel::ErrorType,
    MetricLabel::Tenant,
];
/// Values of [`Label::ShadowAgreement`].
pub(super) const SHADOW_AGREEMENTS: [&str; 2] = ["same", "different"];
/// Values of [`Label::SpanResult`].
pub(super) const SPAN_RESULTS: [&str; 4] = ["queued", "exported", "failed", "filtered"];
/// Values of [`Label::TraceCaptureResult`].
pub(super) const TRACE_CAPTURE_RESULTS: [&str; 2] = ["written", "dropped"];
/// Values of [`Label::AccessLogResult`].
pub(super) const ACCESS_RESULTS: [&str; 3] = ["written", "left_out", "dropped"];
/// Values of [`Label::PayloadLogResult`].
pub(super) const PAYLOAD_LOG_RESULTS: [&str; 3] = ["written", "dropped", "redactor_failed"];
/// Values of [`Label::QualityWindow`].
pub(super) const WINDOWS: [&str; 2] = ["recent", "baseline"];
/// Values of [`Label::QualitySampleResult`].
pub(super) const QUALITY_SAMPLE_RESULTS: [&str; 4] =
    ["done", "dropped", "redactor_failed", "judge_failed"];
/// Values of [`Label::ConfigReloadResult`].
pub(super) const CONFIG_RELOAD_RESULTS: [&str; 2] = ["ok", "failed"];
/// Values of [`Label::PushResult`].
pub(super) const PUSH_RESULTS: [&str; 2] = ["ok", "failed"];
/// Values of [`Label::ConnectionRefusalReason`].
pub(super) const CONNECTION_REFUSAL_REASONS: [&str; 3] = ["full", "client_full", "tls"];
/// Values of [`Label::CertificateReloadResult`].
pub(super) const CERTIFICATE_RELOAD_RESULTS: [&str; 2] = ["ok", "failed"];
const DISCONNECT_PHASES: [&str; 8] =
    ["upload", "queued", "routing", "headers", "engine_queue", "prefill", "unresponsive", "decode"];
/// Values of [`Label::FailoverResult`].
pub(super) const FAILOVER_RESULTS: [&str; 2] = ["saved", "failed"];

// === impl Label ===

impl MetricLabel {
    /// The name of the label in the exposition format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "gen_ai_request_model",
            Self::Backend => "backend",
            Self::Operation => "operation",
            Self::GenAiOperation => "gen_ai_operation_name",
            Self::Outcome => "outcome",
            Self::ErrorType => "error_type",
            Self::FinishReason
            | Self::RoutingReason
            | Self::UninspectedReason
            | Self::RejectionReason
            | Self::ShedReason
            | Self::FailoverDenialReason
            | Self::ConnectionRefusalReason
            | Self::WasteReason => "reason",
            Self::QueueClass => "class",
            Self::TerminationReason => "ending",
            Self::ClosedBy => "closed_by",
            Self::SlowCause => "cause",
            Self::Tier => "tier",
            Self::Tenant => "tenant",
            Self::Slo => "slo",
            Self::DiagnosisRule => "verdict",
            Self::OverflowedLabel => "label",
            Self::TokenType => "type",
            Self::PhaseSource | Self::TokenSource | Self::UsageSource => "source",
            Self::Policy => "policy",
            Self::CircuitBreakerState | Self::BackendState => "state",
            Self::AttemptResult
            | Self::FailoverResult
            | Self::SpanResult
            | Self::UsageEvent
            | Self::ShadowAgreement
            | Self::TraceCaptureResult
            | Self::AccessLogResult
            | Self::PayloadLogResult
            | Self::QualitySampleResult
            | Self::PushResult
            | Self::CertificateReloadResult
            | Self::ConfigReloadResult
            | Self::SloResult => "result",
            Self::DisconnectPhase | Self::RequestPhase => "phase",
            Self::ScrapeError => "kind",
            Self::BackendMetric => "signal",
            Self::QualityWindow => "window",
            Self::TlsSide => "side",
            Self::BackgroundTask => "task",
            Self::Version => "version",
        }
    }

    /// Label values that have a series before the first request.
    pub fn values(self, known: &KnownLabelValues) -> Vec<String> {
        fn to_owned_strings(values: &[&str]) -> Vec<String> {
            values.iter().map(|value| (*value).to_owned()).collect()
        }
        match self {
            Self::Model if known.models.is_empty() => to_owned_strings(&[ModelLabel::OTHER]),
            Self::Model => known.models.clone(),
            Self::Backend => known.backends.clone(),
            Self::Operation => {
                let mut operations = Api::ALL.map(Api::operation).to_vec();
                // Requests that are not inference requests.
                operations.push("none");
                operations.sort_unstable();
                operations.dedup();
                to_owned_strings(&operations)
            }
            // The only operation of most models. Other operations get series when they occur.
            Self::GenAiOperation => to_owned_strings(&[Api::Chat.operation()]),
            Self::Outcome => to_owned_strings(&Outcome::ALL.map(Outcome::as_str)),
            Self::ErrorType => to_owned_strings(&[""]),
            Self::FinishReason => to_owned_strings(&FinishReason::ALL.map(FinishReason::as_str)),
            Self::TerminationReason => to_owned_strings(TERMINATION_REASONS),
            Self::ClosedBy => {
                to_owned_strings(&TerminationInitiator::ALL.map(TerminationInitiator::as_str))
            }
            Self::SlowCause => to_owned_strings(&SlowCause::ALL.map(SlowCause::as_str)),
            Self::Tier => [to_owned_strings(&[""]), known.tiers.clone()].concat(),
            Self::Tenant => known.tenants.clone(),
            Self::Slo => known.slos.clone(),
            Self::SloResult => {
                to_owned_strings(&ObjectiveResult::COUNTED.map(ObjectiveResult::as_str))
            }
            Self::DiagnosisRule => to_owned_strings(&RULES.each_ref().map(|rule| rule.name)),
            Self::OverflowedLabel => to_owned_strings(&OVERFLOW_LABELS.map(Self::name)),
            Self::RequestPhase => to_owned_strings(&RequestPhase::ALL.map(RequestPhase::as_str)),
            Self::PhaseSource => to_owned_strings(&["exact", "estimated"]),
            Self::TokenType => to_owned_strings(&TOKEN_TYPES),
            Self::TokenSource => to_owned_strings(&["exact", "continuous"]),
            Self::UsageSource => to_owned_strings(&UsageSource::ALL.map(UsageSource::as_str)),
            Self::UsageEvent => {
                to_owned_strings(&UsageEventOutcome::ALL.map(UsageEventOutcome::as_str))
            }
            Self::WasteReason => to_owned_strings(&["cancelled", "failed"]),
            Self::AttemptResult => {
                let others = to_owned_strings(&["ok", "error_status", "stale"]);
                [others, to_owned_strings(&FailureKind::ALL.map(FailureKind::as_str))].concat()
            }
            Self::FailoverResult => to_owned_strings(&FAILOVER_RESULTS),
            Self::FailoverDenialReason => {
                to_owned_strings(&FailoverDenialReason::ALL.map(FailoverDenialReason::as_str))
            }
            Self::CircuitBreakerState => {
                to_owned_strings(&BreakerState::ALL.map(BreakerState::as_str))
            }
            Self::BackendState => to_owned_strings(&Availability::ALL.map(Availability::as_str)),
            Self::RoutingReason => to_owned_strings(routing::REASONS),
            Self::Policy => to_owned_strings(&PolicyKind::ALL.map(PolicyKind::name)),
            Self::ShadowAgreement => to_owned_strings(&SHADOW_AGREEMENTS),
            Self::DisconnectPhase => to_owned_strings(&DISCONNECT_PHASES),
            Self::QueueClass => [to_owned_strings(&[DEFAULT_CLASS]), known.tiers.clone()].concat(),
            Self::ShedReason => to_owned_strings(error::SHED_REASONS),
            Self::UninspectedReason => {
                to_owned_strings(&UninspectedReason::ALL.map(UninspectedReason::as_str))
            }
            Self::RejectionReason => to_owned_strings(error::REASONS),
            Self::ScrapeError => to_owned_strings(&ScrapeError::ALL.map(ScrapeError::as_str)),
            Self::BackendMetric => to_owned_strings(&ENGINE_METRICS.map(|signal| signal.name)),
            Self::SpanResult => to_owned_strings(&SPAN_RESULTS),
            Self::TraceCaptureResult => to_owned_strings(&TRACE_CAPTURE_RESULTS),
            Self::AccessLogResult => to_owned_strings(&ACCESS_RESULTS),
            Self::PayloadLogResult => to_owned_strings(&PAYLOAD_LOG_RESULTS),
            Self::QualityWindow => to_owned_strings(&WINDOWS),
            Self::QualitySampleResult => to_owned_strings(&QUALITY_SAMPLE_RESULTS),
            Self::PushResult => to_owned_strings(&PUSH_RESULTS),
            Self::ConnectionRefusalReason => to_owned_strings(&CONNECTION_REFUSAL_REASONS),
            Self::TlsSide => to_owned_strings(&TlsPeer::ALL.map(TlsPeer::as_str)),
            Self::CertificateReloadResult => to_owned_strings(&CERTIFICATE_RELOAD_RESULTS),
            Self::ConfigReloadResult => to_owned_strings(&CONFIG_RELOAD_RESULTS),
            Self::BackgroundTask => {
                to_owned_strings(&BackgroundTask::ALL.map(BackgroundTask::as_str))
            }
            Self::Version => to_owned_strings(&[env!("CARGO_PKG_VERSION")]),
        }
    }
}

// === impl Row ===

impl MetricDescriptor {
    /// All combinations of label values that have a series before the first request.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<Vec<String>> {
        let mut combinations = vec![Vec::new()];
        for label in self.labels {
            let values = label.values(known);
            let extend = |prefix: &Vec<String>| {
                let append =
                    |value: &String| [prefix.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(append).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(extend).collect();
        }
        combinations
    }
}
