//! Where metrics are pushed: what the gateway is configured with, and the standard `OTEL_*`
//! variables for the rest.

use crate::telemetry::otel::environment::{Environment, Signal, refuse};
use crate::telemetry::otel::{Protocol, SettingsError};
use http::HeaderMap;
use std::time::Duration;
use tokenweir_net::tls::ClientSettings;

/// How metrics are pushed.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The URL that they are pushed to.
    pub endpoint: String,
    /// How.
    pub protocol: Protocol,
    /// The time from one push to the next.
    pub interval: Duration,
    /// Longest wait for the collector to take one.
    pub timeout: Duration,
    /// Sent with each.
    pub headers: HeaderMap,
    /// `service.name` of the gateway.
    pub service_name: String,
    /// Whether each is compressed with gzip.
    pub is_gzip: bool,
    /// TLS, where the endpoint is `https`.
    pub security: ClientSettings,
}

/// What the gateway itself is configured with. It wins over the variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// Metrics are pushed unless a variable forbids it.
    pub is_wanted: bool,
    /// The base URL of the collector. `None`: a variable has it.
    pub endpoint: Option<String>,
    /// The transport.
    pub protocol: Option<Protocol>,
    /// The time from one push to the next.
    pub interval: Option<Duration>,
}

const EXPORTER: &str = "OTEL_METRICS_EXPORTER";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_METRICS_HEADERS";
/// Metrics, as variables name them.
const METRICS: Signal = Signal {
    endpoint: "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    protocol: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    compression: "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION",
    files: [
        "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY",
    ],
    path: "/v1/metrics",
};
const INTERVAL: Duration = Duration::from_mins(1);
const TIMEOUT: Duration = Duration::from_secs(10);

impl Settings {
    /// Reads what is not configured from the environment, with `lookup` for its variables. `None`:
    /// nothing is pushed, which is so unless it is wanted or the variable
    /// `OTEL_METRICS_EXPORTER` has `otlp`.
    pub fn read(
        configured: Configured,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let env = Environment(&lookup);
        if !is_on(&env, configured.is_wanted)? {
            return Ok(None);
        }
        let protocol = configured.protocol.map_or_else(|| env.protocol(&METRICS), Ok)?;
        let interval = match configured.interval {
            None => env.millis("OTEL_METRIC_EXPORT_INTERVAL")?,
            own => own,
        };
        let endpoint = env.endpoint(&METRICS, configured.endpoint, protocol)?;
        Ok(Some(Self {
            endpoint: endpoint.unwrap_or_else(|| local(protocol)),
            protocol,
            interval: interval.unwrap_or(INTERVAL),
            timeout: env.timeout(&METRICS, "OTEL_METRIC_EXPORT_TIMEOUT")?.unwrap_or(TIMEOUT),
            headers: env.headers(HEADERS)?,
            service_name: env.service_name(),
            is_gzip: env.is_gzip(&METRICS)?,
            security: env.security(&METRICS),
        }))
    }
}

/// The page is there in any case, so `prometheus` changes nothing.
fn is_on(env: &Environment<'_>, is_configured: bool) -> Result<bool, SettingsError> {
    if env.is_disabled() {
        return Ok(false);
    }
    let Some(list) = env.get(EXPORTER) else { return Ok(is_configured) };
    let mut is_on = is_configured;
    for exporter in list.split(',').map(str::trim) {
        match exporter {
            "otlp" => is_on = true,
            "none" => return Ok(false),
            "prometheus" => {}
            _ => return Err(refuse(EXPORTER, list, "otlp, prometheus, none")),
        }
    }
    Ok(is_on)
}

/// Where a collector on the same machine listens.
fn local(protocol: Protocol) -> String {
    match protocol {
        Protocol::Grpc => "http://localhost:4317".to_owned(),
        Protocol::HttpProtobuf => format!("http://localhost:4318{}", METRICS.path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

    fn read(
        configured: Configured,
        variables: &[(&str, &str)],
    ) -> Result<Option<Settings>, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        let lookup = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        Settings::read(configured, lookup).map_err(|error| error.to_string())
    }

    fn by_variables(variables: &[(&str, &str)]) -> Settings {
        let on = (EXPORTER, "otlp");
        read(Configured::default(), &[&[on], variables].concat()).unwrap().unwrap()
    }

    fn to(url: &str) -> Configured {
        Configured { is_wanted: true, endpoint: Some(url.into()), ..Configured::default() }
    }

    #[test]
    fn nothing_is_pushed_unless_somebody_asks_for_it() {
        let endpoint = (ALL, "http://collector:4317");
        for (configured, variables, is_on) in [
            (Configured::default(), &[endpoint][..], false),
            (Configured::default(), &[endpoint, (EXPORTER, "prometheus")], false),
            (Configured::default(), &[endpoint, (EXPORTER, "none")], false),
            (Configured::default(), &[(EXPORTER, "otlp")], true),
            (Configured::default(), &[(EXPORTER, "prometheus, otlp")], true),
            (Configured::default(), &[(EXPORTER, "otlp"), ("OTEL_SDK_DISABLED", "true")], false),
            (to("http://a:1"), &[], true),
            (to("http://a:1"), &[(EXPORTER, "prometheus")], true),
            (to("http://a:1"), &[(EXPORTER, "none")], false),
        ] {
            assert_eq!(read(configured, variables).unwrap().is_some(), is_on, "{variables:?}");
        }
    }

    #[test]
    fn an_endpoint_is_completed_as_its_protocol_needs() {
        let http = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf");
        for (variables, expected) in [
            (&[][..], "http://localhost:4317"),
            (&[http], "http://localhost:4318/v1/metrics"),
            (&[http, (ALL, "http://a:1/")], "http://a:1/v1/metrics"),
            (&[http, (ALL, "http://a:1"), (METRICS.endpoint, "http://b:2/x")], "http://b:2/x"),
            (&[(ALL, "collector:4317")], "http://collector:4317"),
        ] {
            assert_eq!(by_variables(variables).endpoint, expected, "{variables:?}");
        }
    }

    #[test]
    fn a_push_that_is_configured_goes_where_a_variable_says_instead() {
        let configured = Configured { is_wanted: true, ..Configured::default() };
        let settings = read(configured, &[(ALL, "http://a:1")]).unwrap().unwrap();
        assert_eq!(settings.endpoint, "http://a:1");
    }

    #[test]
    fn the_rest_is_as_the_variables_say_unless_it_is_configured() {
        let defaults = by_variables(&[]);
        assert_eq!((defaults.interval, defaults.timeout), (INTERVAL, TIMEOUT));
        let variables = [
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3000"),
            ("OTEL_SERVICE_NAME", "edge"),
        ];
        let set = by_variables(&variables);
        let seconds = [set.interval, set.timeout].map(|duration| duration.as_secs());
        assert_eq!((seconds, set.service_name.as_str()), ([5, 2], "edge"));
        let own = Configured { interval: Some(Duration::from_secs(7)), ..to("http://a:1") };
        let set = read(own, &variables).unwrap().unwrap();
        assert_eq!(set.interval, Duration::from_secs(7));
    }

    #[test]
    fn headers_are_decoded_and_never_shown() {
        let all = ("OTEL_EXPORTER_OTLP_HEADERS", "x-all=1");
        assert_eq!(by_variables(&[all]).headers["x-all"], "1");
        let own = (HEADERS, "authorization=Bearer%20secret, x-tenant=a");
        let set = by_variables(&[all, own]);
        assert_eq!(
            (&set.headers["authorization"], set.headers.len()),
            (&"Bearer secret".parse().unwrap(), 2)
        );
        assert!(!format!("{set:?}").contains("secret"));
        let broken = read(to("http://a:1"), &[(HEADERS, "secret")]).unwrap_err();
        assert_eq!(broken, format!("{HEADERS}: `…` is not understood; allowed: name=value,…"));
    }

    #[test]
    fn tls_and_compression_are_as_their_variables_say_the_own_ones_first() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all.pem"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/own.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ];
        let set = by_variables(&variables);
        let [ca, cert, key] = ["/own.pem", "/cert.pem", "/key.pem"].map(|file| Some(file.into()));
        let expected = ClientSettings { ca, client_cert: cert, client_key: key, server_name: None };
        assert_eq!((set.is_gzip, set.security), (true, expected));
        let own = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none");
        assert!(!by_variables(&[variables[0], own]).is_gzip);
        assert!(!by_variables(&[]).is_gzip);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (name, value) in [
            (EXPORTER, "console"),
            (METRICS.protocol, "http/json"),
            (METRICS.endpoint, "ftp://collector:4317"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ] {
            let variables = [(name, value), (EXPORTER, "otlp")];
            let error = read(Configured::default(), &variables).unwrap_err();
            assert!(error.starts_with(&format!("{name}: `{value}` is not understood")), "{error}");
        }
    }
}
