//! Settings of tracing. They come from the configuration. The standard `OTEL_*` environment variables provide
//! values that are not configured.
//!
//! An invalid value prevents the start of the gateway. If it were ignored, nobody would notice the missing
//! traces until they are needed.

pub(super) mod environment;

use super::spans::conventions::{Semconv, SpanConventions, ViewerProfile};
use super::spans::limits::SpanLimits;
use environment::{
    DEFAULT_SERVICE_NAME, OtelEnvironment, OtelSettingsError, OtlpProtocol, SDK_DISABLED_VARIABLE,
    invalid_value,
};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::tls::TlsClientSettings;
use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
use tokenweir_protocol::settings;
use tokenweir_protocol::trace_context::{
    Propagation, PropagationFormats, Sampler, TraceParentMode,
};

/// The supported propagators, for error messages.
const ALLOWED_PROPAGATORS: &str = "tracecontext, baggage, b3, b3multi, none";

/// The settings of tracing, after configuration and environment variables were combined.
#[derive(Debug, Clone, PartialEq)]
pub struct TracingSettings {
    /// The URL of the collector. With OTLP over HTTP it includes the path. `None`: tracing is
    /// disabled.
    pub endpoint: Option<String>,
    /// Whether spans go over gRPC or HTTP.
    pub protocol: OtlpProtocol,
    /// How trace context is read and forwarded, and which traces head sampling selects. With
    /// [`TraceSampling::All`] the sampler selects the traces that get the sample reason `sampled`.
    pub propagation: Propagation,
    /// Maximum number of head-sampled traces per second. `None`: no limit.
    pub max_sampled_per_second: Option<u32>,
    /// The traces that are exported. With [`TraceSampling::All`] a collector samples by the attribute
    /// `tokenweir.sample_reason`.
    pub sampling: TraceSampling,
    /// Resource attribute `service.name` of the spans.
    pub service_name: String,
    /// The semantic conventions that determine the attribute names of spans.
    pub style: SpanConventions,
    /// The limits on the attributes, events and links of one span.
    pub limits: SpanLimits,
    /// The sizes of the export queue and of the exported batches.
    pub batch: SpanBatchSettings,
    /// Maximum duration of one export.
    pub timeout: Duration,
    /// Whether requests to the collector are compressed with gzip.
    pub is_gzip: bool,
    /// The TLS certificate and key files for an endpoint with an `https` URL.
    pub security: TlsClientSettings,
}

/// Settings of the export queue and of the batches in which queued spans are exported. The numbers of spans are
/// at least 1, and the delay is at least 1 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanBatchSettings {
    /// Capacity of the queue, in spans. If the queue is full, new spans are dropped.
    pub queue: usize,
    /// Maximum number of spans in one export request.
    pub size: usize,
    /// Maximum time that a span waits in the queue before its batch is exported, in whole milliseconds.
    pub delay: Duration,
}

settings! {
    /// Tracing with OpenTelemetry. A value that is set here overrides the `OTEL_*` variables; a value
    /// that is `None` is taken from them.
    pub struct TracingConfig {
        /// URL of an OTLP collector. `None`: taken from `OTEL_EXPORTER_OTLP_ENDPOINT`; without it
        /// tracing is off.
        pub endpoint: Option<String>,
        /// OTLP transport. `None`: taken from `OTEL_EXPORTER_OTLP_PROTOCOL`, or grpc.
        pub protocol: Option<OtlpProtocol>,
        /// Share of traces that are sampled at their head, unless the client has decided. `None`: taken
        /// from `OTEL_TRACES_SAMPLER`, or 0.05.
        pub ratio: Option<f64>,
        /// Most head-sampled traces per second, unless the ratio is 1. `None`: no limit.
        pub max_sampled_per_second: Option<u32>,
        /// Which traces are exported.
        pub sampling: TraceSampling,
        /// How the trace context of a client is used.
        pub parent: TraceParentMode,
        /// Names of W3C baggage entries that are forwarded to backends. Other entries are removed.
        pub baggage: Vec<String>,
        /// Viewers for which additional attributes are written.
        pub profiles: Vec<ViewerProfile>,
        /// URL of the trace viewer, with `{trace_id}` as a placeholder. The admin page links to it.
        pub ui: Option<String>,
    }
}

settings! {
    /// Which traces are exported.
    #[derive(Default)]
    pub enum TraceSampling {
        /// Only head-sampled traces.
        Head,
        /// Also traces of requests that fail, stall, are slow or cancelled.
        #[default]
        Tail,
        /// All traces, also of engines, for a collector that samples.
        All,
    }
}

const EXPORTER_VARIABLE: &str = "OTEL_TRACES_EXPORTER";
const SAMPLER_VARIABLE: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG_VARIABLE: &str = "OTEL_TRACES_SAMPLER_ARG";
const PROPAGATORS_VARIABLE: &str = "OTEL_PROPAGATORS";
const SEMCONV_OPT_IN_VARIABLE: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
const LATEST_SEMCONV_OPT_IN: &str = "gen_ai_latest_experimental";

/// Default share of head-sampled traces.
const DEFAULT_SAMPLING_RATIO: f64 = 0.05;
/// Default limit of head-sampled traces per second.
const DEFAULT_MAX_SAMPLED_PER_SECOND: u32 = 100;

impl TracingSettings {
    /// Resolves the settings from the configuration and the environment variables. `lookup` returns
    /// the value of an environment variable. A variable with an empty value counts as not set.
    pub fn read(
        configured: TracingConfig,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OtelSettingsError> {
        let env = OtelEnvironment(&lookup);
        let defaults = Self::default();
        if env.is_tracing_off()? {
            let propagation = Propagation {
                parent_mode: configured.parent,
                ..defaults.propagation
            };
            return Ok(Self {
                propagation,
                ..defaults
            });
        }
        let protocol = configured.protocol.map_or_else(|| env.protocol(), Ok)?;
        let sampler = match configured.ratio {
            Some(ratio) => Sampler {
                is_parent_based: true,
                ratio: parse_ratio(&ratio.to_string())
                    .ok_or_else(|| invalid_value("ratio", ratio.to_string(), ALLOWED_RATIO))?,
            },
            None => env.sampler()?,
        };
        Ok(Self {
            endpoint: env.endpoint(configured.endpoint, protocol)?,
            protocol,
            propagation: Propagation {
                sampler,
                rate_limit: None,
                parent_mode: configured.parent,
                formats: env.propagators()?,
                baggage: configured
                    .baggage
                    .iter()
                    .map(|name| name.as_str().into())
                    .collect(),
            },
            // A sampling ratio of 1 samples all traces, without a rate limit.
            max_sampled_per_second: if sampler.ratio < 1.0 {
                configured.max_sampled_per_second
            } else {
                None
            },
            sampling: configured.sampling,
            service_name: env.service_name(),
            style: SpanConventions {
                semconv: env.semconv(),
                profiles: configured.profiles,
            },
            limits: env.span_limits()?,
            batch: env.batch_settings()?,
            timeout: env.timeout()?.unwrap_or(defaults.timeout),
            is_gzip: env.is_gzip()?,
            security: env.security(),
        })
    }

    /// Returns how the gateway reads, samples and forwards the trace context of requests. `None`: tracing is
    /// disabled, and the gateway forwards the trace context of clients unchanged. If the configuration does not
    /// trust clients' trace context, the result is never `None`, because untrusted context must not be
    /// forwarded.
    pub fn propagation(&self) -> Option<Propagation> {
        let mut propagation = self.propagation.clone();
        if self.endpoint.is_none() {
            propagation.sampler = Sampler {
                is_parent_based: false,
                ratio: 0.0,
            };
            let is_trusted = propagation.parent_mode == TraceParentMode::Continue;
            return (!is_trusted).then_some(propagation);
        }
        if self.sampling != TraceSampling::All {
            return Some(self.limited_propagation());
        }
        // The configured sampler and its rate limit apply at the end of a request.
        propagation.sampler.ratio = 1.0;
        Some(propagation)
    }

    /// Returns the propagation settings with the configured sampler and its rate limit.
    pub(super) fn limited_propagation(&self) -> Propagation {
        let limiter = |per_second| Arc::new(GcraLimiter::new(per_second));
        let rate_limit = self.max_sampled_per_second.map(limiter);
        Propagation {
            rate_limit,
            ..self.propagation.clone()
        }
    }
}

impl Default for TracingSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: OtlpProtocol::default(),
            propagation: Propagation {
                sampler: Sampler {
                    is_parent_based: true,
                    ratio: DEFAULT_SAMPLING_RATIO,
                },
                rate_limit: None,
                parent_mode: TraceParentMode::default(),
                formats: PropagationFormats::default(),
                baggage: Box::default(),
            },
            max_sampled_per_second: Some(DEFAULT_MAX_SAMPLED_PER_SECOND),
            sampling: TraceSampling::default(),
            service_name: DEFAULT_SERVICE_NAME.to_owned(),
            style: SpanConventions::default(),
            limits: SpanLimits::default(),
            batch: SpanBatchSettings::default(),
            timeout: Duration::from_secs(10),
            is_gzip: false,
            security: TlsClientSettings::default(),
        }
    }
}

impl Default for TracingConfig {
    /// The default: tail sampling, and at most 100 head-sampled traces per second. The environment
    /// variables determine the endpoint, the protocol, the sampling ratio and the semantic
    /// conventions.
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            ratio: None,
            max_sampled_per_second: Some(DEFAULT_MAX_SAMPLED_PER_SECOND),
            sampling: TraceSampling::default(),
            parent: TraceParentMode::default(),
            baggage: Vec::new(),
            profiles: Vec::new(),
            ui: None,
        }
    }
}

impl Default for SpanBatchSettings {
    /// The default: a larger queue and a shorter delay than the SDK's defaults, because many requests can end
    /// at one time and each has about three spans. At the start, the SDK allocates the whole queue, with 368
    /// bytes per span.
    fn default() -> Self {
        Self {
            queue: 4_096,
            size: 1_024,
            delay: Duration::from_secs(2),
        }
    }
}

impl OtelEnvironment<'_> {
    /// Whether `OTEL_SDK_DISABLED` or `OTEL_TRACES_EXPORTER` disables tracing.
    fn is_tracing_off(&self) -> Result<bool, OtelSettingsError> {
        let is_disabled = self.get(SDK_DISABLED_VARIABLE);
        let is_disabled = is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let is_off = |exporter: &str| match exporter {
            "otlp" => Some(is_disabled),
            "none" => Some(true),
            _ => is_disabled.then_some(true),
        };
        let is_off = self.parse(&[EXPORTER_VARIABLE], "otlp, none", is_off)?;
        Ok(is_off.unwrap_or(is_disabled))
    }

    /// Returns the head sampler that `OTEL_TRACES_SAMPLER` names, or the default sampler.
    fn sampler(&self) -> Result<Sampler, OtelSettingsError> {
        const ALLOWED_SAMPLERS: &str = "always_on, always_off, traceidratio, parentbased_always_on, \
             parentbased_always_off, parentbased_traceidratio";
        let Some(value) = self.get(SAMPLER_VARIABLE) else {
            return Ok(TracingSettings::default().propagation.sampler);
        };
        let root_sampler = value.strip_prefix("parentbased_");
        let ratio = match root_sampler.unwrap_or(&value) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => {
                let ratio = self.parse(&[SAMPLER_ARG_VARIABLE], ALLOWED_RATIO, parse_ratio)?;
                ratio.unwrap_or(1.0)
            }
            _ => return Err(invalid_value(SAMPLER_VARIABLE, value, ALLOWED_SAMPLERS)),
        };
        Ok(Sampler {
            is_parent_based: root_sampler.is_some(),
            ratio,
        })
    }

    fn propagators(&self) -> Result<PropagationFormats, OtelSettingsError> {
        let formats = self.parse(
            &[PROPAGATORS_VARIABLE],
            ALLOWED_PROPAGATORS,
            parse_propagators,
        )?;
        Ok(formats.unwrap_or_default())
    }

    /// Returns the version of the GenAI conventions from `OTEL_SEMCONV_STABILITY_OPT_IN`. The
    /// variable is a list that may also contain opt-ins for other conventions.
    fn semconv(&self) -> Semconv {
        let opt_ins = self.get(SEMCONV_OPT_IN_VARIABLE).unwrap_or_default();
        let is_latest = opt_ins
            .split(',')
            .any(|name| name.trim() == LATEST_SEMCONV_OPT_IN);
        if is_latest {
            Semconv::Latest
        } else {
            Semconv::default()
        }
    }

    /// Returns the limits of spans from the environment variables. The variables for span attributes override
    /// the variables for the attributes of all signals.
    fn span_limits(&self) -> Result<SpanLimits, OtelSettingsError> {
        let limit = |names: &[&'static str], default| {
            let limit = self.parse(names, "a whole number", |value| value.parse().ok())?;
            Ok(limit.unwrap_or(default))
        };
        let default = SpanLimits::default();
        Ok(SpanLimits {
            attributes: limit(
                &[
                    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
                    "OTEL_ATTRIBUTE_COUNT_LIMIT",
                ],
                default.attributes,
            )?,
            events: limit(&["OTEL_SPAN_EVENT_COUNT_LIMIT"], default.events)?,
            links: limit(&["OTEL_SPAN_LINK_COUNT_LIMIT"], default.links)?,
            text: limit(
                &[
                    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
                    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
                ],
                default.text,
            )?,
        })
    }

    fn batch_settings(&self) -> Result<SpanBatchSettings, OtelSettingsError> {
        let SpanBatchSettings { queue, size, delay } = SpanBatchSettings::default();
        Ok(SpanBatchSettings {
            queue: self
                .positive(&["OTEL_BSP_MAX_QUEUE_SIZE"])?
                .unwrap_or(queue),
            size: self
                .positive(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"])?
                .unwrap_or(size),
            delay: self.millis(&["OTEL_BSP_SCHEDULE_DELAY"])?.unwrap_or(delay),
        })
    }
}

const ALLOWED_RATIO: &str = "a number from 0 to 1";

fn parse_ratio(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
}

#[cfg(test)]
mod tests;

/// Parses a comma-separated list of propagators. `None`: a propagator in the list is not supported.
fn parse_propagators(list: &str) -> Option<PropagationFormats> {
    let mut formats = PropagationFormats::NONE;
    for name in list.split(',').map(str::trim) {
        match name {
            "tracecontext" => formats.trace_context = true,
            "baggage" => formats.baggage = true,
            "b3" => formats.b3 = true,
            "b3multi" => formats.b3_multi = true,
            "none" if list.trim() == "none" => {}
            _ => return None,
        }
    }
    Some(formats)
}
