//! Where spans go and which: what the gateway is configured with, and the standard `OTEL_*`
//! variables for the rest. A value that is not understood stops the start instead of being
//! passed over, because a trace that is missing is noticed when it is needed.

use super::propagators;
use super::span_limits::SpanLimits;
use super::style::{Profile, Semconv, Style};
use crate::trace_context::{Formats, Parent, Propagation, Sampler};
use http::Uri;
use std::str::FromStr;
use std::time::Duration;

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
    /// Whether those of requests that fail or are slow are recorded besides.
    pub tail: bool,
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
}

/// The transports of OTLP that are spoken here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `grpc`
    #[default]
    Grpc,
    /// `http/protobuf`
    HttpProtobuf,
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

/// What the gateway itself is configured with. It wins over the variables.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    /// The base URL of the collector.
    pub endpoint: Option<String>,
    /// The transport.
    pub protocol: Option<Protocol>,
    /// Share of traces, from 0 to 1, for requests whose caller has not decided.
    pub ratio: Option<f64>,
    /// [`Settings::tail`]
    pub tail: bool,
    /// What a caller's trace is to ours.
    pub parent: Parent,
    /// The names of baggage that goes on.
    pub baggage: Vec<String>,
    /// The names of attributes.
    pub semconv: Option<Semconv>,
    /// Who is served besides.
    pub profiles: Vec<Profile>,
}

/// A value that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: `{value}` is not understood; allowed: {allowed}")]
pub struct SettingsError {
    /// The variable, or the key of the configuration.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it could be set to.
    pub allowed: &'static str,
}

const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
const PROPAGATORS: &str = "OTEL_PROPAGATORS";
const SEMCONV: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
const LATEST: &str = "gen_ai_latest_experimental";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Share of traces that are recorded whatever happens in them, if nobody says otherwise.
const RATIO: f64 = 0.05;
/// The path of spans under the base URL of an OTLP/HTTP collector.
const TRACES_PATH: &str = "/v1/traces";

impl Settings {
    /// Reads what is not configured from the environment, with `lookup` for its variables. An
    /// empty variable is as good as none.
    pub fn read(
        configured: Configured,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let env = Environment(&|name| lookup(name).filter(|value| !value.is_empty()));
        let off = Self::default();
        if env.is_off()? {
            let propagation = Propagation { parent: configured.parent, ..off.propagation };
            return Ok(Self { propagation, ..off });
        }
        let protocol = configured.protocol.map_or_else(|| env.protocol(), Ok)?;
        let sampler = match configured.ratio {
            Some(ratio) => Sampler { is_parent_based: true, ratio: share("ratio", ratio)? },
            None => env.sampler()?,
        };
        Ok(Self {
            endpoint: env.endpoint(configured.endpoint, protocol)?,
            protocol,
            propagation: Propagation {
                sampler,
                parent: configured.parent,
                formats: env.propagators()?,
                baggage: configured.baggage.iter().map(|name| name.as_str().into()).collect(),
            },
            tail: configured.tail,
            service_name: env.service_name(),
            style: Style {
                semconv: configured.semconv.unwrap_or_else(|| env.semconv()),
                profiles: configured.profiles,
            },
            limits: env.limits()?,
            batch: env.batch()?,
            timeout: env.timeout()?,
        })
    }

    /// How trace context travels. `None`: traces are off, and a caller's passes through. One that
    /// is not believed does not, on or off.
    pub fn propagation(&self) -> Option<Propagation> {
        let propagation = self.propagation.clone();
        if self.endpoint.is_some() {
            return Some(propagation);
        }
        let never = Sampler { is_parent_based: false, ratio: 0.0 };
        let is_believed = propagation.parent == Parent::Continue;
        (!is_believed).then_some(Propagation { sampler: never, ..propagation })
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
                parent: Parent::default(),
                formats: Formats::default(),
                baggage: Box::default(),
            },
            tail: true,
            service_name: env!("CARGO_PKG_NAME").to_owned(),
            style: Style::default(),
            limits: SpanLimits::default(),
            batch: Batch::default(),
            timeout: Duration::from_secs(10),
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
            tail: true,
            parent: Parent::default(),
            baggage: Vec::new(),
            semconv: None,
            profiles: Vec::new(),
        }
    }
}

impl Default for Batch {
    /// Larger and sooner than the SDK's own: requests end in bursts, three spans each.
    fn default() -> Self {
        Self { queue: 16_384, size: 1_024, delay: Duration::from_secs(2) }
    }
}

/// The variables that are set.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn is_off(&self) -> Result<bool, SettingsError> {
        let is_disabled = self.0(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match self.0(EXPORTER) {
            None => Ok(is_disabled),
            Some(exporter) if exporter == "otlp" => Ok(is_disabled),
            Some(exporter) if exporter == "none" => Ok(true),
            Some(_) if is_disabled => Ok(true),
            Some(exporter) => Err(refuse(EXPORTER, exporter, "otlp, none")),
        }
    }

    fn protocol(&self) -> Result<Protocol, SettingsError> {
        for name in [TRACES_PROTOCOL, PROTOCOL] {
            if let Some(value) = self.0(name) {
                return value.parse().map_err(|()| refuse(name, value, "grpc, http/protobuf"));
            }
        }
        Ok(Protocol::default())
    }

    fn endpoint(
        &self,
        configured: Option<String>,
        protocol: Protocol,
    ) -> Result<Option<String>, SettingsError> {
        // The endpoint for traces is taken as it is; the others are bases.
        let traces = || self.0(TRACES_ENDPOINT).map(|url| (TRACES_ENDPOINT, url, false));
        let all = || self.0(ENDPOINT).map(|url| (ENDPOINT, url, true));
        let own = configured.map(|url| ("endpoint", url, true));
        let Some((name, url, is_base)) = own.or_else(traces).or_else(all) else { return Ok(None) };
        let has_path = protocol == Protocol::HttpProtobuf && is_base;
        let resolved = if has_path { with_traces_path(&url) } else { url.clone() };
        // Without a scheme the exporter would want TLS, which it does not have.
        let resolved =
            if resolved.contains("://") { resolved } else { format!("http://{resolved}") };
        let is_http = |uri: &Uri| uri.scheme_str() == Some("http") && uri.host().is_some();
        match resolved.parse::<Uri>() {
            Ok(uri) if is_http(&uri) => Ok(Some(resolved)),
            _ => Err(refuse(name, url, "http://host:port (TLS is not spoken to a collector)")),
        }
    }

    fn sampler(&self) -> Result<Sampler, SettingsError> {
        const ALLOWED: &str = "always_on, always_off, traceidratio, parentbased_always_on, \
             parentbased_always_off, parentbased_traceidratio";
        let Some(value) = self.0(SAMPLER) else {
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
        let Some(value) = self.0(SAMPLER_ARG) else { return Ok(1.0) };
        let ratio = value.parse().map_err(|_| refuse(SAMPLER_ARG, value, SHARE))?;
        share(SAMPLER_ARG, ratio)
    }

    fn propagators(&self) -> Result<Formats, SettingsError> {
        let Some(list) = self.0(PROPAGATORS) else { return Ok(Formats::default()) };
        propagators::read(&list).map_err(|()| refuse(PROPAGATORS, list, propagators::KNOWN))
    }

    /// The variable lists what is wanted of all kinds of conventions.
    fn semconv(&self) -> Semconv {
        let wanted = self.0(SEMCONV).unwrap_or_default();
        let is_latest = wanted.split(',').any(|name| name.trim() == LATEST);
        if is_latest { Semconv::Latest } else { Semconv::default() }
    }

    /// Those for spans win over those for all attributes.
    fn limits(&self) -> Result<SpanLimits, SettingsError> {
        let limit = |names: &[&'static str], default| {
            let set = names.iter().find_map(|name| Some((*name, self.0(name)?)));
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

    /// The shorter of the exporter's and the queue's.
    fn timeout(&self) -> Result<Duration, SettingsError> {
        let exporter = match self.positive("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")? {
            None => self.positive("OTEL_EXPORTER_OTLP_TIMEOUT")?,
            traces => traces,
        };
        let queue = self.positive("OTEL_BSP_EXPORT_TIMEOUT")?;
        let millis = exporter.into_iter().chain(queue).min();
        let millis = millis.map(|millis| Duration::from_millis(millis as u64));
        Ok(millis.unwrap_or(Settings::default().timeout))
    }

    fn service_name(&self) -> String {
        let attributes = self.0(RESOURCE).unwrap_or_default();
        let mut pairs = attributes.split(',').filter_map(|pair| pair.split_once('='));
        let among = pairs.rfind(|(key, _)| key.trim() == "service.name");
        let among = among.map(|(_, value)| value.trim().to_owned());
        self.0(SERVICE_NAME).or(among).unwrap_or_else(|| Settings::default().service_name)
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

    /// None of the three can be zero: the SDK would drop everything, or spin.
    fn positive(&self, name: &'static str) -> Result<Option<usize>, SettingsError> {
        let Some(value) = self.0(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(refuse(name, value, "a whole number above 0")),
        }
    }
}

impl FromStr for Protocol {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::HttpProtobuf),
            _ => Err(()),
        }
    }
}

const SHARE: &str = "a number from 0 to 1";

fn share(name: &'static str, ratio: f64) -> Result<f64, SettingsError> {
    let is_share = (0.0..=1.0).contains(&ratio);
    if is_share { Ok(ratio) } else { Err(refuse(name, ratio.to_string(), SHARE)) }
}

fn with_traces_path(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") }
}

fn refuse(name: &'static str, value: String, allowed: &'static str) -> SettingsError {
    SettingsError { name, value, allowed }
}

#[cfg(test)]
mod tests;
