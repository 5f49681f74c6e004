//! What a metric is: a row of the catalogue, and labels whose values come from closed sets.

use super::vitals::Vitals;
use crate::backend::Availability;
use std::time::Duration;
use tokenweir_core::admission::DEFAULT_CLASS;
use tokenweir_core::error;
use tokenweir_core::openai::{Api, Finish};
use tokenweir_core::record::{
    ENDINGS, EndedBy, Lost, ModelLabel, NotRetried, Outcome, Phase, RequestRecord, SlowCause,
    UsageEvent, UsageSource,
};
use tokenweir_core::resilience::{Standing, Symptom};
use tokenweir_core::routing::{self, PolicyKind};
use tokenweir_core::signals::SIGNALS;
use tokenweir_core::signals::ScrapeError;
use tokenweir_core::slo::{Objective, Verdict};
use tokenweir_core::spread::Parts;
use tokenweir_diagnose::RULES;
use tokenweir_net::supervise::Task;
use tokenweir_net::tls::Side;

/// One metric.
pub struct Row {
    /// The name, as Prometheus has it.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels, in order.
    pub labels: &'static [Label],
    /// Where its values come from.
    pub read: Read,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts under bounds.
    Histogram(&'static [f64]),
}

/// Receives one value with its label values, in the order of the row's labels.
pub type Emit<'a> = &'a mut dyn FnMut(&[&str], f64);

/// Where the values of a metric come from.
#[derive(Clone, Copy)]
pub enum Read {
    /// A stream whose first output has just come: nothing later is known.
    FirstOutput(fn(&RequestRecord, Emit<'_>)),
    /// A finished request.
    Record(fn(&RequestRecord, Emit<'_>)),
    /// A finished request, and an objective.
    Judged(fn(&Objective, &RequestRecord, Emit<'_>)),
    /// An objective.
    Promise(fn(&Objective, Emit<'_>)),
    /// All values of a finished request at once, by model and backend.
    Spread(fn(&RequestRecord) -> Option<Parts<'_>>),
    /// A look at a replica's metrics.
    Scrape(fn(&Scrape<'_>, Emit<'_>)),
    /// The state at the moment of the scrape.
    Vitals(fn(&Vitals, Emit<'_>)),
}

/// One look at a replica's metrics.
#[derive(Debug, Clone, Copy)]
pub struct Scrape<'a> {
    /// The replica.
    pub backend: &'a str,
    /// How long it took.
    pub took: Duration,
    /// Why it failed.
    pub error: Option<ScrapeError>,
}

/// A label. Its values are from a set that no client can widen, and backends only up to a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Label {
    /// A model that the configuration names, or one of the first so many that replicas serve
    /// (`metrics.max_models`), or `_other`.
    Model,
    /// A replica of the fleet, or one of the last that left it.
    Backend,
    /// [`Api::operation`]
    Operation,
    /// The same, of inference, under the name that OpenTelemetry asks for.
    GenAiOperation,
    /// [`Outcome::as_str`]
    Outcome,
    /// [`RequestRecord::error_type`]; empty on success and for a client that left.
    ErrorType,
    /// [`Finish::as_str`]
    Finish,
    /// [`RequestRecord::ending`]
    Ending,
    /// [`EndedBy::as_str`]
    ClosedBy,
    /// [`SlowCause::as_str`]
    Cause,
    /// A tier of the configuration, or `_other`; empty if there is none.
    Tier,
    /// A tenant of the file of keys, or `_other` if there have been too many.
    Tenant,
    /// An objective of the configuration.
    Slo,
    /// [`Verdict::as_str`]
    Verdict,
    /// A condition that diagnosis knows: a name of [`RULES`].
    Condition,
    /// A label that has folded a value.
    Overflow,
    /// Which moment of a stream.
    Mark,
    /// [`Phase::as_str`]
    LifePhase,
    /// Whether a time is the request's own.
    Certainty,
    /// Which tokens.
    TokenType,
    /// How the engine told a count: at the end, or on the way.
    TokenSource,
    /// [`UsageSource::as_str`]
    UsageSource,
    /// [`UsageEvent::as_str`]
    UsageEvent,
    /// Why an answer reached nobody.
    Waste,
    /// How an attempt went.
    Result,
    /// What became of a request that another replica got.
    Failover,
    /// [`NotRetried::as_str`]
    NotRetried,
    /// [`Standing::as_str`]
    Breaker,
    /// [`Availability::as_str`]
    State,
    /// Why a replica was chosen.
    RouteReason,
    /// A class of the waiting room: a tier of the configuration, or `default`.
    Class,
    /// Why a request found no room.
    Shed,
    /// A policy, by [`PolicyKind::name`].
    Policy,
    /// Whether a policy in shadow would have chosen the same.
    Agreement,
    /// Where a request was when its client left.
    Phase,
    /// [`Lost::as_str`]
    Lost,
    /// `in` from clients, `out` to them.
    Direction,
    /// [`error::Error::reason`]
    Refusal,
    /// [`ScrapeError::as_str`]
    ScrapeError,
    /// What a replica may tell of itself: a name of [`SIGNALS`].
    Signal,
    /// What became of a span.
    Span,
    /// What became of a record of a capture.
    Capture,
    /// What became of a line of the access log.
    AccessLine,
    /// What became of a record of the content log.
    Content,
    /// Lately, or for long.
    Window,
    /// What became of a sample for those who look at quality.
    Sample,
    /// How a push of the metrics went.
    Push,
    /// Why a connection was refused.
    RefusedConnection,
    /// Whom a certificate is shown to.
    Side,
    /// What became of new files of certificates.
    CertificateResult,
    /// Whether a configuration that was read again could be used.
    Reload,
    /// [`Task::as_str`]
    Task,
    /// The version of the gateway.
    Version,
}

/// The values of the labels whose sets are known only at run time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Models whose series are made before their first request.
    pub models: Vec<String>,
    /// Replicas.
    pub backends: Vec<String>,
    /// Tiers of the configuration.
    pub tiers: Vec<String>,
    /// Tenants of the file of keys.
    pub tenants: Vec<String>,
    /// Objectives of the configuration.
    pub slos: Vec<String>,
}

/// Which tokens a count is of.
pub(super) const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];
/// Labels that fold what they do not know into one value.
pub(super) const OVERFLOWING: [Label; 5] =
    [Label::Model, Label::Tier, Label::Finish, Label::ErrorType, Label::Tenant];
/// Moments of a stream, in the order of [`RequestRecord::marks`].
pub(super) const MARKS: [&str; 3] = ["headers", "first_event", "first_answer"];
/// Whether a policy in shadow would have chosen the same.
pub(super) const AGREEMENTS: [&str; 2] = ["same", "different"];
/// What becomes of spans.
pub(super) const SPAN_RESULTS: [&str; 4] = ["queued", "exported", "failed", "filtered"];
/// What becomes of the records of a capture.
pub(super) const CAPTURE_RESULTS: [&str; 2] = ["written", "dropped"];
/// What becomes of lines of the access log.
pub(super) const ACCESS_RESULTS: [&str; 3] = ["written", "left_out", "dropped"];
/// What becomes of the records of the content log.
pub(super) const CONTENT_RESULTS: [&str; 3] = ["written", "dropped", "redactor_failed"];
/// What is compared of quality: lately, and for long.
pub(super) const WINDOWS: [&str; 2] = ["recent", "baseline"];
/// What becomes of samples for those who look at quality.
pub(super) const SAMPLE_RESULTS: [&str; 4] = ["done", "dropped", "redactor_failed", "judge_failed"];
/// Whether a configuration that was read again could be used.
pub(super) const RELOAD_RESULTS: [&str; 2] = ["ok", "failed"];
/// How pushes of the metrics go.
pub(super) const PUSH_RESULTS: [&str; 2] = ["ok", "failed"];
/// Why connections are refused.
pub(super) const REFUSED_CONNECTIONS: [&str; 3] = ["full", "client_full", "tls"];
/// What becomes of new files of certificates.
pub(super) const CERTIFICATE_RESULTS: [&str; 2] = ["ok", "failed"];
const PHASES: [&str; 8] =
    ["upload", "queued", "routing", "headers", "engine_queue", "prefill", "unresponsive", "decode"];
/// What becomes of requests that another replica got.
pub(super) const FAILOVER_RESULTS: [&str; 2] = ["saved", "failed"];

// === impl Label ===

impl Label {
    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "gen_ai_request_model",
            Self::Backend => "backend",
            Self::Operation => "operation",
            Self::GenAiOperation => "gen_ai_operation_name",
            Self::Outcome => "outcome",
            Self::ErrorType => "error_type",
            Self::Finish
            | Self::RouteReason
            | Self::Lost
            | Self::Refusal
            | Self::Shed
            | Self::NotRetried
            | Self::RefusedConnection
            | Self::Waste => "reason",
            Self::Class => "class",
            Self::Ending => "ending",
            Self::ClosedBy => "closed_by",
            Self::Cause => "cause",
            Self::Tier => "tier",
            Self::Tenant => "tenant",
            Self::Slo => "slo",
            Self::Condition => "verdict",
            Self::Overflow => "label",
            Self::Mark => "mark",
            Self::TokenType => "type",
            Self::Certainty | Self::TokenSource | Self::UsageSource => "source",
            Self::Policy => "policy",
            Self::Breaker | Self::State => "state",
            Self::Result
            | Self::Failover
            | Self::Span
            | Self::UsageEvent
            | Self::Agreement
            | Self::Capture
            | Self::AccessLine
            | Self::Content
            | Self::Sample
            | Self::Push
            | Self::CertificateResult
            | Self::Reload
            | Self::Verdict => "result",
            Self::Phase | Self::LifePhase => "phase",
            Self::Direction => "direction",
            Self::ScrapeError => "kind",
            Self::Signal => "signal",
            Self::Window => "window",
            Self::Side => "side",
            Self::Task => "task",
            Self::Version => "version",
        }
    }

    /// The values that have a series from the start.
    pub fn values(self, known: &Known) -> Vec<String> {
        fn own(values: &[&str]) -> Vec<String> {
            values.iter().map(|value| (*value).to_owned()).collect()
        }
        match self {
            Self::Model if known.models.is_empty() => own(&[ModelLabel::OTHER]),
            Self::Model => known.models.clone(),
            Self::Backend => known.backends.clone(),
            Self::Operation => {
                let mut operations = Api::ALL.map(Api::operation).to_vec();
                // Requests that are no inference.
                operations.push("none");
                operations.sort_unstable();
                operations.dedup();
                own(&operations)
            }
            // Most models are asked for nothing else. The other operations have series once they occur.
            Self::GenAiOperation => own(&[Api::Chat.operation()]),
            Self::Outcome => own(&Outcome::ALL.map(Outcome::as_str)),
            Self::ErrorType => own(&[""]),
            Self::Finish => own(&Finish::ALL.map(Finish::as_str)),
            Self::Ending => own(ENDINGS),
            Self::ClosedBy => own(&EndedBy::ALL.map(EndedBy::as_str)),
            Self::Cause => own(&SlowCause::ALL.map(SlowCause::as_str)),
            Self::Tier => [own(&[""]), known.tiers.clone()].concat(),
            Self::Tenant => known.tenants.clone(),
            Self::Slo => known.slos.clone(),
            Self::Verdict => own(&Verdict::COUNTED.map(Verdict::as_str)),
            Self::Condition => own(&RULES.each_ref().map(|rule| rule.name)),
            Self::Overflow => own(&OVERFLOWING.map(Self::name)),
            Self::Mark => own(&MARKS),
            Self::LifePhase => own(&Phase::ALL.map(Phase::as_str)),
            Self::Certainty => own(&["exact", "estimated"]),
            Self::TokenType => own(&TOKEN_TYPES),
            Self::TokenSource => own(&["exact", "continuous"]),
            Self::UsageSource => own(&UsageSource::ALL.map(UsageSource::as_str)),
            Self::UsageEvent => own(&UsageEvent::ALL.map(UsageEvent::as_str)),
            Self::Waste => own(&["cancelled", "failed"]),
            Self::Result => {
                let others = own(&["ok", "error_status", "stale"]);
                [others, own(&Symptom::ALL.map(Symptom::as_str))].concat()
            }
            Self::Failover => own(&FAILOVER_RESULTS),
            Self::NotRetried => own(&NotRetried::ALL.map(NotRetried::as_str)),
            Self::Breaker => own(&Standing::ALL.map(Standing::as_str)),
            Self::State => own(&Availability::ALL.map(Availability::as_str)),
            Self::RouteReason => own(routing::REASONS),
            Self::Policy => own(&PolicyKind::ALL.map(PolicyKind::name)),
            Self::Agreement => own(&AGREEMENTS),
            Self::Phase => own(&PHASES),
            Self::Class => [own(&[DEFAULT_CLASS]), known.tiers.clone()].concat(),
            Self::Shed => own(error::SHED_REASONS),
            Self::Lost => own(&Lost::ALL.map(Lost::as_str)),
            Self::Direction => own(&["in", "out"]),
            Self::Refusal => own(error::REASONS),
            Self::ScrapeError => own(&ScrapeError::ALL.map(ScrapeError::as_str)),
            Self::Signal => own(&SIGNALS.map(|signal| signal.name)),
            Self::Span => own(&SPAN_RESULTS),
            Self::Capture => own(&CAPTURE_RESULTS),
            Self::AccessLine => own(&ACCESS_RESULTS),
            Self::Content => own(&CONTENT_RESULTS),
            Self::Window => own(&WINDOWS),
            Self::Sample => own(&SAMPLE_RESULTS),
            Self::Push => own(&PUSH_RESULTS),
            Self::RefusedConnection => own(&REFUSED_CONNECTIONS),
            Self::Side => own(&Side::ALL.map(Side::as_str)),
            Self::CertificateResult => own(&CERTIFICATE_RESULTS),
            Self::Reload => own(&RELOAD_RESULTS),
            Self::Task => own(&Task::ALL.map(Task::as_str)),
            Self::Version => own(&[env!("CARGO_PKG_VERSION")]),
        }
    }
}

// === impl Row ===

impl Row {
    /// Every combination of label values that has a series from the start.
    pub fn seeds(&self, known: &Known) -> Vec<Vec<String>> {
        let mut seeds = vec![Vec::new()];
        for label in self.labels {
            let values = label.values(known);
            let extend = |seed: &Vec<String>| {
                let longer =
                    |value: &String| [seed.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(longer).collect::<Vec<_>>()
            };
            seeds = seeds.iter().flat_map(extend).collect();
        }
        seeds
    }
}
