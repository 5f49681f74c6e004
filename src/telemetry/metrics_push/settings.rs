//! Settings of the metrics push. They come from the configuration. The standard `OTEL_*`
//! environment variables provide the values that are not configured.

use crate::telemetry::otel::settings::environment::{
    OtelEnvironment, OtlpSignalVariables, invalid_value,
};
use crate::telemetry::otel::{OtelSettingsError, OtlpProtocol};
use http::HeaderMap;
use std::time::Duration;
use tokenweir_net::tls::TlsClientSettings;

/// The resolved settings of the metrics push.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsPushSettings {
    /// The URL of the collector. With OTLP over HTTP it includes the path.
    pub endpoint: String,
    /// The OTLP transport.
    pub protocol: OtlpProtocol,
    /// Time from one push to the next.
    pub interval: Duration,
    /// Longest duration of one push.
    pub timeout: Duration,
    /// Additional headers of every request to the collector.
    pub headers: HeaderMap,
    /// Resource attribute `service.name` of the pushed metrics.
    pub service_name: String,
    /// Whether requests to the collector are compressed with gzip.
    pub is_gzip: bool,
    /// Whether histograms have exponential buckets instead of the bounds of the metrics page.
    pub is_exponential: bool,
    /// The TLS certificate and key files that are used if the endpoint is an `https` URL.
    pub security: TlsClientSettings,
}

/// The values from the configuration file. They override the `OTEL_*` environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetricsPushConfig {
    /// Whether the configuration enables the metrics push. The variables `OTEL_METRICS_EXPORTER`
    /// and `OTEL_SDK_DISABLED` can still disable the push.
    pub is_wanted: bool,
    /// Base URL of the collector. `None`: taken from an environment variable.
    pub endpoint: Option<String>,
    /// The OTLP transport. `None`: taken from an environment variable.
    pub protocol: Option<OtlpProtocol>,
    /// Time from one push to the next. `None`: taken from an environment variable.
    pub interval: Option<Duration>,
}

const EXPORTER_VARIABLE: &str = "OTEL_METRICS_EXPORTER";
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_METRICS_HEADERS";
/// The environment variables that apply to metrics only.
const METRICS_SIGNAL: OtlpSignalVariables = OtlpSignalVariables {
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
const AGGREGATION_VARIABLE: &str = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION";
const DEFAULT_INTERVAL: Duration = Duration::from_mins(1);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl MetricsPushSettings {
    /// Resolves the settings from the configuration and the environment variables. `lookup` returns
    /// the value of an environment variable. The result `None` means that metrics are not pushed.
    ///
    /// Metrics are pushed if the configuration enables the push or `OTEL_METRICS_EXPORTER` contains
    /// `otlp`. `OTEL_METRICS_EXPORTER=none` and `OTEL_SDK_DISABLED=true` disable the push.
    pub fn read(
        configured: MetricsPushConfig,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, OtelSettingsError> {
        let env = OtelEnvironment(&lookup);
        if !is_push_enabled(&env, configured.is_wanted)? {
            return Ok(None);
        }
        let protocol = configured.protocol.map_or_else(|| env.protocol(&METRICS_SIGNAL), Ok)?;
        let interval = match configured.interval {
            None => env.millis("OTEL_METRIC_EXPORT_INTERVAL")?,
            interval => interval,
        };
        let endpoint = env.endpoint(&METRICS_SIGNAL, configured.endpoint, protocol)?;
        Ok(Some(Self {
            endpoint: endpoint.unwrap_or_else(|| default_endpoint(protocol)),
            protocol,
            interval: interval.unwrap_or(DEFAULT_INTERVAL),
            timeout: env
                .timeout(&METRICS_SIGNAL, "OTEL_METRIC_EXPORT_TIMEOUT")?
                .unwrap_or(DEFAULT_TIMEOUT),
            headers: env.headers(HEADERS_VARIABLE)?,
            service_name: env.service_name(),
            is_gzip: env.is_gzip(&METRICS_SIGNAL)?,
            is_exponential: is_exponential(&env)?,
            security: env.security(&METRICS_SIGNAL),
        }))
    }
}

impl MetricsPushSettings {
    /// Whether the environment requests exponential histograms. An invalid value counts as no request;
    /// [`MetricsPushSettings::read`] reports the value.
    pub fn requests_exponential_histograms(lookup: impl Fn(&str) -> Option<String>) -> bool {
        is_exponential(&OtelEnvironment(&lookup)).unwrap_or(false)
    }
}

/// Whether metrics are pushed. `is_configured` is whether the configuration enables the push. The
/// exporter `prometheus` in `OTEL_METRICS_EXPORTER` has no effect, because the metrics page does
/// not depend on that variable.
fn is_push_enabled(
    env: &OtelEnvironment<'_>,
    is_configured: bool,
) -> Result<bool, OtelSettingsError> {
    if env.is_disabled() {
        return Ok(false);
    }
    let Some(list) = env.get(EXPORTER_VARIABLE) else { return Ok(is_configured) };
    let mut is_enabled = is_configured;
    for exporter in list.split(',').map(str::trim) {
        match exporter {
            "otlp" => is_enabled = true,
            "none" => return Ok(false),
            "prometheus" => {}
            _ => return Err(invalid_value(EXPORTER_VARIABLE, list, "otlp, prometheus, none")),
        }
    }
    Ok(is_enabled)
}

/// Whether the environment requests exponential histograms.
fn is_exponential(env: &OtelEnvironment<'_>) -> Result<bool, OtelSettingsError> {
    let value = env.get(AGGREGATION_VARIABLE);
    match value.as_deref().map(str::trim).map(str::to_ascii_lowercase).as_deref() {
        None | Some("explicit_bucket_histogram") => Ok(false),
        Some("base2_exponential_bucket_histogram") => Ok(true),
        Some(_) => Err(invalid_value(
            AGGREGATION_VARIABLE,
            value.unwrap_or_default(),
            "explicit_bucket_histogram, base2_exponential_bucket_histogram",
        )),
    }
}

/// The default endpoint: a collector on the same machine, on the default port of the transport.
fn default_endpoint(protocol: OtlpProtocol) -> String {
    match protocol {
        OtlpProtocol::Grpc => "http://localhost:4317".to_owned(),
        OtlpProtocol::HttpProtobuf => format!("http://localhost:4318{}", METRICS_SIGNAL.path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

    fn resolve_with(
        configured: MetricsPushConfig,
        variables: &[(&str, &str)],
    ) -> Result<Option<MetricsPushSettings>, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        let lookup = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        MetricsPushSettings::read(configured, lookup).map_err(|error| error.to_string())
    }

    fn settings_from_variables(variables: &[(&str, &str)]) -> MetricsPushSettings {
        let otlp_exporter = (EXPORTER_VARIABLE, "otlp");
        let variables = [&[otlp_exporter], variables].concat();
        resolve_with(MetricsPushConfig::default(), &variables).unwrap().unwrap()
    }

    fn config_with_endpoint(url: &str) -> MetricsPushConfig {
        MetricsPushConfig {
            is_wanted: true,
            endpoint: Some(url.into()),
            ..MetricsPushConfig::default()
        }
    }

    #[test]
    fn push_is_off_unless_enabled() {
        let endpoint = (BASE_ENDPOINT_VARIABLE, "http://collector:4317");
        for (configured, variables, is_enabled) in [
            (MetricsPushConfig::default(), &[endpoint][..], false),
            (MetricsPushConfig::default(), &[endpoint, (EXPORTER_VARIABLE, "prometheus")], false),
            (MetricsPushConfig::default(), &[endpoint, (EXPORTER_VARIABLE, "none")], false),
            (MetricsPushConfig::default(), &[(EXPORTER_VARIABLE, "otlp")], true),
            (MetricsPushConfig::default(), &[(EXPORTER_VARIABLE, "prometheus, otlp")], true),
            (
                MetricsPushConfig::default(),
                &[(EXPORTER_VARIABLE, "otlp"), ("OTEL_SDK_DISABLED", "true")],
                false,
            ),
            (config_with_endpoint("http://a:1"), &[], true),
            (config_with_endpoint("http://a:1"), &[(EXPORTER_VARIABLE, "prometheus")], true),
            (config_with_endpoint("http://a:1"), &[(EXPORTER_VARIABLE, "none")], false),
        ] {
            let settings = resolve_with(configured, variables).unwrap();
            assert_eq!(settings.is_some(), is_enabled, "{variables:?}");
        }
    }

    #[test]
    fn endpoint_is_completed_for_its_protocol() {
        let http = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf");
        for (variables, expected) in [
            (&[][..], "http://localhost:4317"),
            (&[http], "http://localhost:4318/v1/metrics"),
            (&[http, (BASE_ENDPOINT_VARIABLE, "http://a:1/")], "http://a:1/v1/metrics"),
            (
                &[
                    http,
                    (BASE_ENDPOINT_VARIABLE, "http://a:1"),
                    (METRICS_SIGNAL.endpoint, "http://b:2/x"),
                ],
                "http://b:2/x",
            ),
            (&[(BASE_ENDPOINT_VARIABLE, "collector:4317")], "http://collector:4317"),
        ] {
            assert_eq!(settings_from_variables(variables).endpoint, expected, "{variables:?}");
        }
    }

    #[test]
    fn enabled_push_without_endpoint_uses_the_variable() {
        let configured = MetricsPushConfig { is_wanted: true, ..MetricsPushConfig::default() };
        let variables = [(BASE_ENDPOINT_VARIABLE, "http://a:1")];
        let settings = resolve_with(configured, &variables).unwrap().unwrap();
        assert_eq!(settings.endpoint, "http://a:1");
    }

    #[test]
    fn configuration_overrides_variables_and_variables_override_defaults() {
        let defaults = settings_from_variables(&[]);
        assert_eq!((defaults.interval, defaults.timeout), (DEFAULT_INTERVAL, DEFAULT_TIMEOUT));
        let variables = [
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "3000"),
            ("OTEL_SERVICE_NAME", "edge"),
        ];
        let settings = settings_from_variables(&variables);
        let seconds = [settings.interval, settings.timeout].map(|duration| duration.as_secs());
        assert_eq!((seconds, settings.service_name.as_str()), ([5, 2], "edge"));
        let configured = MetricsPushConfig {
            interval: Some(Duration::from_secs(7)),
            ..config_with_endpoint("http://a:1")
        };
        let settings = resolve_with(configured, &variables).unwrap().unwrap();
        assert_eq!(settings.interval, Duration::from_secs(7));
    }

    #[test]
    fn headers_are_decoded_and_never_printed() {
        let shared = ("OTEL_EXPORTER_OTLP_HEADERS", "x-shared=1");
        assert_eq!(settings_from_variables(&[shared]).headers["x-shared"], "1");
        let specific = (HEADERS_VARIABLE, "authorization=Bearer%20secret, x-tenant=a");
        let settings = settings_from_variables(&[shared, specific]);
        assert_eq!(
            (&settings.headers["authorization"], settings.headers.len()),
            (&"Bearer secret".parse().unwrap(), 2)
        );
        assert!(!format!("{settings:?}").contains("secret"));
        let configured = config_with_endpoint("http://a:1");
        let error = resolve_with(configured, &[(HEADERS_VARIABLE, "secret")]).unwrap_err();
        assert_eq!(error, format!("{HEADERS_VARIABLE}: `…` is invalid; allowed: name=value,…"));
    }

    #[test]
    fn metrics_variables_for_tls_and_compression_win_over_shared_ones() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all.pem"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/own.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key.pem"),
        ];
        let settings = settings_from_variables(&variables);
        let [ca, cert, key] = ["/own.pem", "/cert.pem", "/key.pem"].map(|file| Some(file.into()));
        let expected =
            TlsClientSettings { ca, client_cert: cert, client_key: key, server_name: None };
        assert_eq!((settings.is_gzip, settings.security), (true, expected));
        let specific = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "none");
        assert!(!settings_from_variables(&[variables[0], specific]).is_gzip);
        assert!(!settings_from_variables(&[]).is_gzip);
    }

    #[test]
    fn histograms_are_exponential_only_on_request() {
        assert!(!settings_from_variables(&[]).is_exponential);
        for (value, expected) in
            [("explicit_bucket_histogram", false), ("Base2_Exponential_Bucket_Histogram", true)]
        {
            let settings = settings_from_variables(&[(AGGREGATION_VARIABLE, value)]);
            assert_eq!(settings.is_exponential, expected, "{value}");
        }
    }

    #[test]
    fn errors_name_the_invalid_variable_and_value() {
        for (name, value) in [
            (EXPORTER_VARIABLE, "console"),
            (METRICS_SIGNAL.protocol, "http/json"),
            (METRICS_SIGNAL.endpoint, "ftp://collector:4317"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            (AGGREGATION_VARIABLE, "exponential"),
        ] {
            let variables = [(name, value), (EXPORTER_VARIABLE, "otlp")];
            let error = resolve_with(MetricsPushConfig::default(), &variables).unwrap_err();
            assert!(error.starts_with(&format!("{name}: `{value}` is invalid")), "{error}");
        }
    }
}
