//! The standard `OTEL_*` environment variables of trace export: endpoint, transport, TLS and service name. A
//! variable for traces, such as `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, overrides the variable for all signals,
//! such as `OTEL_EXPORTER_OTLP_ENDPOINT`.

use crate::telemetry::otel::resource::{
    PROGRAM_NAME, RESOURCE_ATTRIBUTES_VARIABLE, parse_attributes,
};
use http::Uri;
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::{self, StrDeserializer};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_net::tls::{Alpn, TlsClientSettings};
use tokenweir_protocol::units;

/// Reads environment variables with a function that returns the value of a variable.
pub(super) struct OtelEnvironment<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

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

/// The error for an invalid value of an environment variable or a configuration key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: `{value}` is invalid; allowed: {allowed}")]
pub struct OtelSettingsError {
    /// Name of the environment variable or of the configuration key.
    pub name: &'static str,
    /// The invalid value, or `…` if the value may be a secret.
    pub value: String,
    /// The allowed values, for the error text.
    pub allowed: &'static str,
}

pub(super) const SDK_DISABLED_VARIABLE: &str = "OTEL_SDK_DISABLED";
/// The variable with the URL of the collector for traces. No path is appended to this URL.
pub(super) const TRACES_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// The variable with the base URL of the collector for all signals.
pub(super) const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const PROTOCOL_VARIABLES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const COMPRESSION_VARIABLES: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
];
/// The variables with the paths of the CA certificates, the client certificate and the client key. In each
/// pair, the variable for traces precedes the one for all signals.
const TLS_FILE_VARIABLES: [[&str; 2]; 3] = [
    [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
    ],
    [
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    ],
    [
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    ],
];
/// The path that is appended to the base URL of a collector for OTLP over HTTP.
const TRACES_PATH: &str = "/v1/traces";
pub(super) const SERVICE_NAME_VARIABLE: &str = "OTEL_SERVICE_NAME";
/// Default of the resource attribute `service.name`.
pub(super) const DEFAULT_SERVICE_NAME: &str = PROGRAM_NAME;

impl OtelEnvironment<'_> {
    /// Returns the value of the environment variable `name`. `None`: the variable is not set or its
    /// value is empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0(name).filter(|value| !value.is_empty())
    }

    /// Returns the name and the value of the first of these variables that is set. `None`: all are unset.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.get(name)?)))
    }

    /// Returns the value of the first of these variables that is set. `None`: all are unset. `allowed` describes
    /// the values that `parse` accepts.
    pub(super) fn parse<T>(
        &self,
        names: &[&'static str],
        allowed: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, OtelSettingsError> {
        let Some((name, value)) = self.first(names) else {
            return Ok(None);
        };
        match parse(&value) {
            None => Err(invalid_value(name, value, allowed)),
            parsed => Ok(parsed),
        }
    }

    /// Returns the OTLP transport from the environment variables. The default is gRPC.
    pub(super) fn protocol(&self) -> Result<OtlpProtocol, OtelSettingsError> {
        let read = |name: &str| {
            let name: StrDeserializer<'_, value::Error> = name.into_deserializer();
            OtlpProtocol::deserialize(name).ok()
        };
        let protocol = self.parse(&PROTOCOL_VARIABLES, "grpc, http/protobuf", read)?;
        Ok(protocol.unwrap_or_default())
    }

    /// Returns the URL of the collector: `configured` or, if it is not set, the value of an environment
    /// variable. `None`: neither is set.
    pub(super) fn endpoint(
        &self,
        configured: Option<String>,
        protocol: OtlpProtocol,
    ) -> Result<Option<String>, OtelSettingsError> {
        let set = || self.first(&[TRACES_ENDPOINT_VARIABLE, ENDPOINT_VARIABLE]);
        let Some((name, url)) = configured.map(|url| ("endpoint", url)).or_else(set) else {
            return Ok(None);
        };
        // The URL in the variable for traces is used unchanged. The other two URLs are base URLs.
        let is_base = name != TRACES_ENDPOINT_VARIABLE;
        let has_path = protocol == OtlpProtocol::HttpProtobuf && is_base;
        let resolved = if has_path {
            append_path(&url, TRACES_PATH)
        } else {
            url.clone()
        };
        // A URL without a scheme means plain HTTP. TLS requires an explicit `https`.
        let resolved = if resolved.contains("://") {
            resolved
        } else {
            format!("http://{resolved}")
        };
        let is_http =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        match resolved.parse::<Uri>() {
            Ok(uri) if is_http(&uri) => Ok(Some(resolved)),
            _ => Err(invalid_value(
                name,
                url,
                "http://host:port, https://host:port",
            )),
        }
    }

    /// Whether requests to the collector are compressed with gzip. The default is no compression.
    pub(super) fn is_gzip(&self) -> Result<bool, OtelSettingsError> {
        let read = |name: &str| match name {
            "gzip" => Some(true),
            "none" => Some(false),
            _ => None,
        };
        let is_gzip = self.parse(&COMPRESSION_VARIABLES, "gzip, none", read)?;
        Ok(is_gzip.unwrap_or(false))
    }

    /// Returns the paths of the TLS files from the environment variables. `None`: a file's variables are not
    /// set.
    pub(super) fn security(&self) -> TlsClientSettings {
        let file = |names: [&'static str; 2]| self.first(&names).map(|(_, path)| path.into());
        let [ca, client_cert, client_key] = TLS_FILE_VARIABLES.map(file);
        TlsClientSettings {
            ca,
            client_cert,
            client_key,
            server_name: None,
        }
    }

    /// Returns the timeout of one export: the shorter of the timeout of the OTLP exporter and the
    /// timeout of the batch processor. `None`: neither timeout is set.
    pub(super) fn timeout(&self) -> Result<Option<Duration>, OtelSettingsError> {
        let of_exporter = self.millis(&[
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        ])?;
        let of_batch = self.millis(&["OTEL_BSP_EXPORT_TIMEOUT"])?;
        Ok(of_exporter.into_iter().chain(of_batch).min())
    }

    /// Returns the resource attribute `service.name`, from `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES` or the default.
    pub(super) fn service_name(&self) -> String {
        let attributes = self.get(RESOURCE_ATTRIBUTES_VARIABLE).unwrap_or_default();
        let named = parse_attributes(&attributes).filter(|(key, _)| key == "service.name");
        let from_attributes = named.last().map(|(_, value)| value);
        let name = self.get(SERVICE_NAME_VARIABLE).or(from_attributes);
        name.unwrap_or_else(|| DEFAULT_SERVICE_NAME.to_owned())
    }

    /// Returns the value of the first of these variables that is set, in milliseconds, limited to the longest
    /// configurable duration. `None`: all are unset.
    pub(super) fn millis(
        &self,
        names: &[&'static str],
    ) -> Result<Option<Duration>, OtelSettingsError> {
        let to_duration =
            |millis: usize| Duration::from_millis(millis as u64).min(units::duration::MAX_DURATION);
        Ok(self.positive(names)?.map(to_duration))
    }

    /// Returns the value of the first of these variables that is set as a number above 0. `None`: all are unset.
    /// 0 is an error, because the SDK would drop all spans or busy-loop.
    pub(super) fn positive(
        &self,
        names: &[&'static str],
    ) -> Result<Option<usize>, OtelSettingsError> {
        self.parse(names, "a whole number above 0", |value| {
            value.parse().ok().filter(|number| *number > 0)
        })
    }
}

/// Appends `path` to a base URL, unless the URL already ends with `path`.
fn append_path(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(path) {
        base.to_owned()
    } else {
        format!("{base}{path}")
    }
}

/// Builds the error for an invalid value of a variable or a configuration key.
pub(super) fn invalid_value(
    name: &'static str,
    value: String,
    allowed: &'static str,
) -> OtelSettingsError {
    OtelSettingsError {
        name,
        value,
        allowed,
    }
}

impl OtlpProtocol {
    /// Returns the HTTP version of requests to the collector.
    pub(in crate::telemetry::otel) fn alpn(self) -> Alpn {
        match self {
            Self::Grpc => Alpn::Http2,
            Self::HttpProtobuf => Alpn::Http1,
        }
    }
}
