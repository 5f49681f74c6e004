//! Where spans go and which: what the gateway is configured with, and the standard `OTEL_*`
//! variables for the rest. A value that is not understood stops the start instead of being
//! passed over, because a trace that is missing is noticed when it is needed.

use super::environment::{Environment, Protocol, SERVICE, SettingsError, Signal, refuse};
use super::propagators;
use super::span_limits::SpanLimits;
use super::style::{Profile, Semconv, Style};
use super::tail::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::rate::Rate;
use tokenweir_core::trace_context::{Formats, Parent, Propagation, Sampler};
use tokenweir_net::tls::ClientSettings;

/// How spans are made and sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The URL that spans are sent to. `None`: traces are off.
    pub endpoint: Option<String>,
    /// How they are sent.
    pub protocol: Protocol,
    /// How trace context comes in and goes on, and which traces are recorded whatever happens in
    /// them.
    pub propagation: Propagation,
    /// The traces that are kept whatever happens in them.
    pub sampler: Sampler,
    /// Most of these in a second. `None`: as many as the sampler takes.
    pub ordinary_per_second: Option<u32>,
    /// Whether those of requests that fail or are slow are kept besides.
    pub tail: bool,
    /// Whether all spans are sent, to a collector that keeps what `tokenweir.kept` is on.
    pub send_all: bool,
    /// `service.name` of the gateway.
    pub service_name: String,
    /// In whose words spans are.
    pub style: Style,
    /// How large they may be.
    pub limits: SpanLimits,
    /// The queue before the exporter.
    pub batch: Batch,
    /// Longest wait for the collector to take a batch.
    pub timeout: Duration,
    /// Whether batches are compressed with gzip.
    pub is_gzip: bool,
    /// TLS, where the endpoint is `https`.
    pub security: ClientSettings,
}

/// The queue before the exporter. All three are at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Spans that can wait. A full queue drops the newest.
    pub queue: usize,
    /// Most spans sent at once.
    pub size: usize,
    /// Longest wait of a span for others, to the millisecond.
    pub delay: Duration,
}

/// What the gateway itself is configured with. It wins over the variables; they decide what is
/// `None` here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configured {
    /// The URL of an OTLP collector, such as `http://127.0.0.1:4317`. `None`: as
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` says; without it there are no traces.
    pub endpoint: Option<String>,
    /// The transport. `None`: as `OTEL_EXPORTER_OTLP_PROTOCOL` says, or grpc.
    pub protocol: Option<Protocol>,
    /// Share of traces that are recorded whatever happens in them, from 0 to 1, where the caller has
    /// not decided. `None`: as `OTEL_TRACES_SAMPLER` says, or 0.05.
    pub ratio: Option<f64>,
    /// Most of these traces in a second, unless the share is 1. `None`: no limit.
    pub ordinary_per_second: Option<u32>,
    /// Whether the traces of all requests are recorded besides that fail, are left, stall or are
    /// slow.
    pub tail: bool,
    /// Whether all spans are sent and every engine is told to record, for a collector that chooses.
    pub send_all: bool,
    /// What a caller's trace is to ours.
    pub parent: Parent,
    /// The names of W3C baggage that goes on to replicas. The rest stays behind.
    pub baggage: Vec<String>,
    /// The names of `GenAI` attributes. `None`: latest if `OTEL_SEMCONV_STABILITY_OPT_IN` has
    /// `gen_ai_latest_experimental`, else v1.41.
    pub semconv: Option<Semconv>,
    /// Viewers that read more than the conventions.
    pub profiles: Vec<Profile>,
    /// Where a person looks at a trace: a URL with `{trace_id}` in it.
    pub ui: Option<String>,
}

const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
const PROPAGATORS: &str = "OTEL_PROPAGATORS";
const SEMCONV: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
const LATEST: &str = "gen_ai_latest_experimental";

/// Share of traces that are recorded whatever happens in them, if nobody says otherwise.
const RATIO: f64 = 0.05;
/// Most of these in a second.
const ORDINARY: u32 = 100;
/// Spans, as variables name them.
const TRACES: Signal = Signal {
    endpoint: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    compression: "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    files: [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    ],
    path: "/v1/traces",
};

impl Settings {
    /// Reads what is not configured from the environment, with `lookup` for its variables. An
    /// empty variable is as good as none.
    pub fn read(
        configured: Configured,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let env = Environment(&lookup);
        let off = Self::default();
        if env.is_off()? {
            let propagation = Propagation { parent: configured.parent, ..off.propagation };
            return Ok(Self { propagation, ..off });
        }
        let protocol = configured.protocol.map_or_else(|| env.protocol(&TRACES), Ok)?;
        let sampler = match configured.ratio {
            Some(ratio) => Sampler { is_parent_based: true, ratio: share("ratio", ratio)? },
            None => env.sampler()?,
        };
        Ok(Self {
            endpoint: env.endpoint(&TRACES, configured.endpoint, protocol)?,
            protocol,
            propagation: Propagation {
                sampler: if configured.send_all {
                    Sampler { ratio: 1.0, ..sampler }
                } else {
                    sampler
                },
                limit: None,
                parent: configured.parent,
                formats: env.propagators()?,
                baggage: configured.baggage.iter().map(|name| name.as_str().into()).collect(),
            },
            sampler,
            // Whoever asks for all of them means all.
            ordinary_per_second: configured.ordinary_per_second.filter(|_| sampler.ratio < 1.0),
            tail: configured.tail,
            send_all: configured.send_all,
            service_name: env.service_name(),
            style: Style {
                semconv: configured.semconv.unwrap_or_else(|| env.semconv()),
                profiles: configured.profiles,
            },
            limits: env.limits()?,
            batch: env.batch()?,
            timeout: env.timeout(&TRACES, "OTEL_BSP_EXPORT_TIMEOUT")?.unwrap_or(off.timeout),
            is_gzip: env.is_gzip(&TRACES)?,
            security: env.security(&TRACES),
        })
    }

    /// How trace context travels, from `epoch` on. `None`: traces are off, and a caller's passes
    /// through. One that is not believed does not, on or off.
    pub fn propagation(&self, epoch: Instant) -> Option<Propagation> {
        let propagation = self.propagation.clone();
        if self.endpoint.is_some() {
            // Where all are sent, they are limited when it is known how they ended.
            let limit = self.limit(epoch).filter(|_| !self.send_all).map(Arc::new);
            return Some(Propagation { limit, ..propagation });
        }
        let never = Sampler { is_parent_based: false, ratio: 0.0 };
        let is_believed = propagation.parent == Parent::Continue;
        (!is_believed).then_some(Propagation { sampler: never, ..propagation })
    }

    /// What is kept where all are sent.
    pub(super) fn share(&self, epoch: Instant) -> Share {
        Share { sampler: self.sampler, limit: self.limit(epoch) }
    }

    fn limit(&self, epoch: Instant) -> Option<Rate> {
        self.ordinary_per_second.map(|per_second| Rate::new(per_second, epoch))
    }
}

impl Default for Settings {
    /// Traces are off.
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: Protocol::default(),
            propagation: Propagation {
                sampler: Sampler { is_parent_based: true, ratio: RATIO },
                limit: None,
                parent: Parent::default(),
                formats: Formats::default(),
                baggage: Box::default(),
            },
            sampler: Sampler { is_parent_based: true, ratio: RATIO },
            ordinary_per_second: Some(ORDINARY),
            tail: true,
            send_all: false,
            service_name: SERVICE.to_owned(),
            style: Style::default(),
            limits: SpanLimits::default(),
            batch: Batch::default(),
            timeout: Duration::from_secs(10),
            is_gzip: false,
            security: ClientSettings::default(),
        }
    }
}

impl Default for Configured {
    /// The tail is sampled; the variables decide the rest.
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            ratio: None,
            ordinary_per_second: Some(ORDINARY),
            tail: true,
            send_all: false,
            parent: Parent::default(),
            baggage: Vec::new(),
            semconv: None,
            profiles: Vec::new(),
            ui: None,
        }
    }
}

impl Default for Batch {
    /// Larger and sooner than the SDK's own: requests end in bursts, three spans each. The SDK takes
    /// the memory of the whole queue at once, 368 bytes a span.
    fn default() -> Self {
        Self { queue: 4_096, size: 1_024, delay: Duration::from_secs(2) }
    }
}

impl Environment<'_> {
    fn is_off(&self) -> Result<bool, SettingsError> {
        let is_disabled = self.is_disabled();
        match self.get(EXPORTER) {
            None => Ok(is_disabled),
            Some(exporter) if exporter == "otlp" => Ok(is_disabled),
            Some(exporter) if exporter == "none" => Ok(true),
            Some(_) if is_disabled => Ok(true),
            Some(exporter) => Err(refuse(EXPORTER, exporter, "otlp, none")),
        }
    }

    fn sampler(&self) -> Result<Sampler, SettingsError> {
        const ALLOWED: &str = "always_on, always_off, traceidratio, parentbased_always_on, \
             parentbased_always_off, parentbased_traceidratio";
        let Some(value) = self.get(SAMPLER) else {
            return Ok(Settings::default().propagation.sampler);
        };
        let root = value.strip_prefix("parentbased_");
        let ratio = match root.unwrap_or(&value) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => self.ratio()?,
            _ => return Err(refuse(SAMPLER, value, ALLOWED)),
        };
        Ok(Sampler { is_parent_based: root.is_some(), ratio })
    }

    fn ratio(&self) -> Result<f64, SettingsError> {
        let Some(value) = self.get(SAMPLER_ARG) else { return Ok(1.0) };
        let ratio = value.parse().map_err(|_| refuse(SAMPLER_ARG, value, SHARE))?;
        share(SAMPLER_ARG, ratio)
    }

    fn propagators(&self) -> Result<Formats, SettingsError> {
        let Some(list) = self.get(PROPAGATORS) else { return Ok(Formats::default()) };
        propagators::read(&list).map_err(|()| refuse(PROPAGATORS, list, propagators::KNOWN))
    }

    /// The variable lists what is wanted of all kinds of conventions.
    fn semconv(&self) -> Semconv {
        let wanted = self.get(SEMCONV).unwrap_or_default();
        let is_latest = wanted.split(',').any(|name| name.trim() == LATEST);
        if is_latest { Semconv::Latest } else { Semconv::default() }
    }

    /// Those for spans win over those for all attributes.
    fn limits(&self) -> Result<SpanLimits, SettingsError> {
        let limit = |names: &[&'static str], default| {
            let set = names.iter().find_map(|name| Some((*name, self.get(name)?)));
            let Some((name, value)) = set else { return Ok(default) };
            value.parse().map_err(|_| refuse(name, value, "a whole number"))
        };
        let default = SpanLimits::default();
        Ok(SpanLimits {
            attributes: limit(
                &["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"],
                default.attributes,
            )?,
            events: limit(&["OTEL_SPAN_EVENT_COUNT_LIMIT"], default.events)?,
            links: limit(&["OTEL_SPAN_LINK_COUNT_LIMIT"], default.links)?,
            text: limit(
                &["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
                default.text,
            )?,
        })
    }

    fn batch(&self) -> Result<Batch, SettingsError> {
        let Batch { queue, size, delay } = Batch::default();
        let millis = self.positive("OTEL_BSP_SCHEDULE_DELAY")?;
        Ok(Batch {
            queue: self.positive("OTEL_BSP_MAX_QUEUE_SIZE")?.unwrap_or(queue),
            size: self.positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")?.unwrap_or(size),
            delay: millis.map_or(delay, |millis| Duration::from_millis(millis as u64)),
        })
    }
}

const SHARE: &str = "a number from 0 to 1";

fn share(name: &'static str, ratio: f64) -> Result<f64, SettingsError> {
    let is_share = (0.0..=1.0).contains(&ratio);
    if is_share { Ok(ratio) } else { Err(refuse(name, ratio.to_string(), SHARE)) }
}

#[cfg(test)]
mod tests;
