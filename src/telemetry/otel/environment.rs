//! The standard `OTEL_*` variables that spans and metrics share: where the collector is, how it is
//! spoken to, and who speaks.

use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;
use tokenweir_core::units;
use tokenweir_net::tls::ClientSettings;

/// The variables that are set.
pub(in crate::telemetry) struct Environment<'a>(
    pub(in crate::telemetry) &'a dyn Fn(&str) -> Option<String>,
);

/// What a signal calls its own variables, which win over those for all signals.
#[derive(Debug)]
pub(in crate::telemetry) struct Signal {
    /// A URL that is taken as it is.
    pub(in crate::telemetry) endpoint: &'static str,
    /// The transport.
    pub(in crate::telemetry) protocol: &'static str,
    /// The longest wait for the collector.
    pub(in crate::telemetry) timeout: &'static str,
    /// How what is sent is compressed.
    pub(in crate::telemetry) compression: &'static str,
    /// The authorities that are believed, our certificate, and its key.
    pub(in crate::telemetry) files: [&'static str; 3],
    /// Its path under the base URL of an OTLP/HTTP collector.
    pub(in crate::telemetry) path: &'static str,
}

/// The transports of OTLP that are spoken here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// OTLP over gRPC, usually on port 4317.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP over HTTP, usually on port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
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

pub(super) const DISABLED: &str = "OTEL_SDK_DISABLED";
pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
pub(super) const COMPRESSION: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
pub(super) const FILES: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];
pub(super) const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
pub(super) const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// `service.name` if nobody says otherwise.
pub(super) const SERVICE: &str = env!("CARGO_PKG_NAME");

// === impl Environment ===

impl Environment<'_> {
    /// The value of a variable. An empty one is as good as none.
    pub(in crate::telemetry) fn get(&self, name: &str) -> Option<String> {
        self.0(name).filter(|value| !value.is_empty())
    }

    /// Whether all signals are off.
    pub(in crate::telemetry) fn is_disabled(&self) -> bool {
        self.get(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// How the collector is spoken to.
    pub(in crate::telemetry) fn protocol(
        &self,
        signal: &Signal,
    ) -> Result<Protocol, SettingsError> {
        for name in [signal.protocol, PROTOCOL] {
            if let Some(value) = self.get(name) {
                return value.parse().map_err(|()| refuse(name, value, "grpc, http/protobuf"));
            }
        }
        Ok(Protocol::default())
    }

    /// Where the collector is. `None`: nobody says.
    pub(in crate::telemetry) fn endpoint(
        &self,
        signal: &Signal,
        configured: Option<String>,
        protocol: Protocol,
    ) -> Result<Option<String>, SettingsError> {
        // The signal's own endpoint is taken as it is; the others are bases.
        let own = || self.get(signal.endpoint).map(|url| (signal.endpoint, url, false));
        let all = || self.get(ENDPOINT).map(|url| (ENDPOINT, url, true));
        let configured = configured.map(|url| ("endpoint", url, true));
        let Some((name, url, is_base)) = configured.or_else(own).or_else(all) else {
            return Ok(None);
        };
        let has_path = protocol == Protocol::HttpProtobuf && is_base;
        let resolved = if has_path { with_path(&url, signal.path) } else { url.clone() };
        // As it has always been here; whoever wants TLS writes https.
        let resolved =
            if resolved.contains("://") { resolved } else { format!("http://{resolved}") };
        let is_http =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        match resolved.parse::<Uri>() {
            Ok(uri) if is_http(&uri) => Ok(Some(resolved)),
            _ => Err(refuse(name, url, "http://host:port, https://host:port")),
        }
    }

    /// Whether what is sent is compressed with gzip.
    pub(in crate::telemetry) fn is_gzip(&self, signal: &Signal) -> Result<bool, SettingsError> {
        let mut names = [signal.compression, COMPRESSION].into_iter();
        let set = names.find_map(|name| Some((name, self.get(name)?)));
        match set {
            None => Ok(false),
            Some((_, value)) if value == "none" => Ok(false),
            Some((_, value)) if value == "gzip" => Ok(true),
            Some((name, value)) => Err(refuse(name, value, "gzip, none")),
        }
    }

    /// The files of TLS.
    pub(in crate::telemetry) fn security(&self, signal: &Signal) -> ClientSettings {
        let file = |index: usize| {
            let names = [signal.files[index], FILES[index]];
            names.into_iter().find_map(|name| self.get(name)).map(Into::into)
        };
        let [ca, client_cert, client_key] = [file(0), file(1), file(2)];
        ClientSettings { ca, client_cert, client_key, server_name: None }
    }

    /// The shorter of the exporter's limit and `whole`, the variable for an export as a whole.
    pub(in crate::telemetry) fn timeout(
        &self,
        signal: &Signal,
        whole: &'static str,
    ) -> Result<Option<Duration>, SettingsError> {
        let exporter = match self.millis(signal.timeout)? {
            None => self.millis("OTEL_EXPORTER_OTLP_TIMEOUT")?,
            own => own,
        };
        Ok(exporter.into_iter().chain(self.millis(whole)?).min())
    }

    /// The headers of requests to the collector: `name=value`, separated by commas, the values
    /// percent-encoded. Their values are never shown.
    pub(in crate::telemetry) fn headers(
        &self,
        own: &'static str,
    ) -> Result<HeaderMap, SettingsError> {
        const ALL: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let set = [own, ALL].into_iter().find_map(|name| Some((name, self.get(name)?)));
        let mut headers = HeaderMap::new();
        let Some((name, list)) = set else { return Ok(headers) };
        for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) =
                header(pair).ok_or_else(|| refuse(name, "…".to_owned(), "name=value,…"))?;
            headers.insert(key, value);
        }
        Ok(headers)
    }

    /// `service.name` of the gateway.
    pub(in crate::telemetry) fn service_name(&self) -> String {
        let attributes = self.get(RESOURCE).unwrap_or_default();
        let mut pairs = attributes.split(',').filter_map(|pair| pair.split_once('='));
        let among = pairs.rfind(|(key, _)| key.trim() == "service.name");
        let among = among.map(|(_, value)| value.trim().to_owned());
        self.get(SERVICE_NAME).or(among).unwrap_or_else(|| SERVICE.to_owned())
    }

    /// A duration in milliseconds; at most the longest that can be configured.
    pub(in crate::telemetry) fn millis(
        &self,
        name: &'static str,
    ) -> Result<Option<Duration>, SettingsError> {
        let millis = self.positive(name)?.map(|millis| Duration::from_millis(millis as u64));
        Ok(millis.map(|duration| duration.min(units::duration::MAX)))
    }

    /// A number that cannot be zero: the SDK would drop everything, or spin.
    pub(in crate::telemetry) fn positive(
        &self,
        name: &'static str,
    ) -> Result<Option<usize>, SettingsError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(refuse(name, value, "a whole number above 0")),
        }
    }
}

fn header(pair: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pair.split_once('=')?;
    let value: Vec<u8> = percent_decode_str(value.trim()).collect();
    let mut value = HeaderValue::from_bytes(&value).ok()?;
    value.set_sensitive(true);
    Some((name.trim().parse().ok()?, value))
}

fn with_path(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(path) { base.to_owned() } else { format!("{base}{path}") }
}

/// The error for a value that is not understood.
pub(in crate::telemetry) fn refuse(
    name: &'static str,
    value: String,
    allowed: &'static str,
) -> SettingsError {
    SettingsError { name, value, allowed }
}

// === impl Protocol ===

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
