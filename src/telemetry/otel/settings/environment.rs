//! The standard `OTEL_*` environment variables that apply to a signal: endpoint, transport, TLS and service
//! name.

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::time::Duration;
use tokenweir_net::tls::{Alpn, TlsClientSettings};
use tokenweir_protocol::units;

/// Reads environment variables with a function that returns the value of a variable.
pub(in crate::telemetry) struct OtelEnvironment<'a>(
    pub(in crate::telemetry) &'a dyn Fn(&str) -> Option<String>,
);

/// The names of the environment variables for one signal (traces or metrics). These variables
/// override the variables for all signals.
#[derive(Debug)]
pub(in crate::telemetry) struct OtlpSignalVariables {
    /// Variable with the endpoint URL, to which no path is appended.
    pub(in crate::telemetry) endpoint: &'static str,
    /// Variable with the OTLP transport.
    pub(in crate::telemetry) protocol: &'static str,
    /// Variable with the longest duration of one export, in milliseconds.
    pub(in crate::telemetry) timeout: &'static str,
    /// Variable with the compression of requests.
    pub(in crate::telemetry) compression: &'static str,
    /// Variables with the paths of the CA certificates, the client certificate and the client key.
    pub(in crate::telemetry) files: [&'static str; 3],
    /// URL path that is appended to the base URL of an OTLP/HTTP collector. This field is not the
    /// name of a variable.
    pub(in crate::telemetry) path: &'static str,
}

/// Supported OTLP transports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtlpProtocol {
    /// OTLP over gRPC, usually on port 4317.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP over HTTP, usually on port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// An environment variable or a configuration key has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: `{value}` is invalid; allowed: {allowed}")]
pub struct OtelSettingsError {
    /// Name of the environment variable or of the configuration key.
    pub name: &'static str,
    /// The invalid value. `…` for a value that may be a secret.
    pub value: String,
    /// Description of the allowed values.
    pub allowed: &'static str,
}

pub(super) const SDK_DISABLED_VARIABLE: &str = "OTEL_SDK_DISABLED";
pub(super) const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const PROTOCOL_VARIABLE: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
pub(super) const COMPRESSION_VARIABLE: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
pub(super) const TLS_FILE_VARIABLES: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];
pub(super) const SERVICE_NAME_VARIABLE: &str = "OTEL_SERVICE_NAME";
pub(super) const RESOURCE_ATTRIBUTES_VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// Default of the resource attribute `service.name`.
pub(super) const DEFAULT_SERVICE_NAME: &str = env!("CARGO_PKG_NAME");

// === impl OtelEnvironment ===

impl OtelEnvironment<'_> {
    /// The value of the environment variable `name`. `None`: the variable is not set or its value
    /// is empty.
    pub(in crate::telemetry) fn get(&self, name: &str) -> Option<String> {
        self.0(name).filter(|value| !value.is_empty())
    }

    /// Whether `OTEL_SDK_DISABLED` disables all signals.
    pub(in crate::telemetry) fn is_disabled(&self) -> bool {
        self.get(SDK_DISABLED_VARIABLE).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The OTLP transport of a signal. The default is gRPC.
    pub(in crate::telemetry) fn protocol(
        &self,
        signal: &OtlpSignalVariables,
    ) -> Result<OtlpProtocol, OtelSettingsError> {
        for name in [signal.protocol, PROTOCOL_VARIABLE] {
            if let Some(value) = self.get(name) {
                let allowed = "grpc, http/protobuf";
                return value.parse().map_err(|()| invalid_value(name, value, allowed));
            }
        }
        Ok(OtlpProtocol::default())
    }

    /// The endpoint URL of a signal: `configured`, or else the value of an environment variable.
    /// `None`: neither is set.
    pub(in crate::telemetry) fn endpoint(
        &self,
        signal: &OtlpSignalVariables,
        configured: Option<String>,
        protocol: OtlpProtocol,
    ) -> Result<Option<String>, OtelSettingsError> {
        // The endpoint variable of the signal is used unchanged. The other values are base URLs.
        let specific = || self.get(signal.endpoint).map(|url| (signal.endpoint, url, false));
        let shared = || self.get(ENDPOINT_VARIABLE).map(|url| (ENDPOINT_VARIABLE, url, true));
        let configured = configured.map(|url| ("endpoint", url, true));
        let Some((name, url, is_base)) = configured.or_else(specific).or_else(shared) else {
            return Ok(None);
        };
        let has_path = protocol == OtlpProtocol::HttpProtobuf && is_base;
        let resolved = if has_path { append_path(&url, signal.path) } else { url.clone() };
        // Without a scheme, plain HTTP is used. TLS requires an explicit `https`.
        let resolved =
            if resolved.contains("://") { resolved } else { format!("http://{resolved}") };
        let is_http =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        match resolved.parse::<Uri>() {
            Ok(uri) if is_http(&uri) => Ok(Some(resolved)),
            _ => Err(invalid_value(name, url, "http://host:port, https://host:port")),
        }
    }

    /// Whether the requests of a signal are compressed with gzip. The default is no compression.
    pub(in crate::telemetry) fn is_gzip(
        &self,
        signal: &OtlpSignalVariables,
    ) -> Result<bool, OtelSettingsError> {
        let mut names = [signal.compression, COMPRESSION_VARIABLE].into_iter();
        let set = names.find_map(|name| Some((name, self.get(name)?)));
        match set {
            None => Ok(false),
            Some((_, value)) if value == "none" => Ok(false),
            Some((_, value)) if value == "gzip" => Ok(true),
            Some((name, value)) => Err(invalid_value(name, value, "gzip, none")),
        }
    }

    /// The TLS files of a signal. A file whose variables are not set is `None`.
    pub(in crate::telemetry) fn security(&self, signal: &OtlpSignalVariables) -> TlsClientSettings {
        let file = |index: usize| {
            let names = [signal.files[index], TLS_FILE_VARIABLES[index]];
            names.into_iter().find_map(|name| self.get(name)).map(Into::into)
        };
        let [ca, client_cert, client_key] = [file(0), file(1), file(2)];
        TlsClientSettings { ca, client_cert, client_key, server_name: None }
    }

    /// The timeout of one export: the shorter of the OTLP exporter timeout and the timeout in
    /// `export_variable`. `None`: no variable is set.
    pub(in crate::telemetry) fn timeout(
        &self,
        signal: &OtlpSignalVariables,
        export_variable: &'static str,
    ) -> Result<Option<Duration>, OtelSettingsError> {
        let exporter_timeout = match self.millis(signal.timeout)? {
            None => self.millis("OTEL_EXPORTER_OTLP_TIMEOUT")?,
            timeout => timeout,
        };
        Ok(exporter_timeout.into_iter().chain(self.millis(export_variable)?).min())
    }

    /// The resource attribute `service.name`, from `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`
    /// or the default.
    pub(in crate::telemetry) fn service_name(&self) -> String {
        let attributes = self.get(RESOURCE_ATTRIBUTES_VARIABLE).unwrap_or_default();
        let mut pairs = attributes.split(',').filter_map(|pair| pair.split_once('='));
        let from_attributes = pairs.rfind(|(key, _)| key.trim() == "service.name");
        let from_attributes = from_attributes.map(|(_, value)| value.trim().to_owned());
        let name = self.get(SERVICE_NAME_VARIABLE).or(from_attributes);
        name.unwrap_or_else(|| DEFAULT_SERVICE_NAME.to_owned())
    }

    /// The value of a variable in milliseconds, limited to the longest configurable duration.
    /// `None`: the variable is not set.
    pub(in crate::telemetry) fn millis(
        &self,
        name: &'static str,
    ) -> Result<Option<Duration>, OtelSettingsError> {
        let millis = self.positive(name)?.map(|millis| Duration::from_millis(millis as u64));
        Ok(millis.map(|duration| duration.min(units::duration::MAX_DURATION)))
    }

    /// The value of a variable as a number above 0. `None`: the variable is not set. 0 is an error,
    /// because the SDK would drop all spans or run a busy loop.
    pub(in crate::telemetry) fn positive(
        &self,
        name: &'static str,
    ) -> Result<Option<usize>, OtelSettingsError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(invalid_value(name, value, "a whole number above 0")),
        }
    }
}

/// Appends `path` to a base URL that does not end with `path` already.
fn append_path(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(path) { base.to_owned() } else { format!("{base}{path}") }
}

/// Builds the error for an invalid value of a variable or a configuration key.
pub(in crate::telemetry) fn invalid_value(
    name: &'static str,
    value: String,
    allowed: &'static str,
) -> OtelSettingsError {
    OtelSettingsError { name, value, allowed }
}

// === impl OtlpProtocol ===

impl OtlpProtocol {
    /// The HTTP version of requests to the collector.
    pub(in crate::telemetry) fn alpn(self) -> Alpn {
        match self {
            Self::Grpc => Alpn::Http2,
            Self::HttpProtobuf => Alpn::Http1,
        }
    }
}

impl FromStr for OtlpProtocol {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::HttpProtobuf),
            _ => Err(()),
        }
    }
}
