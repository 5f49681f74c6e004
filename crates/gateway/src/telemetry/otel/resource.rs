//! The OpenTelemetry resource of spans, which identifies the program and the process that sent them.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use percent_encoding::percent_decode_str;
use std::fs;

/// The name of the program in spans, and the default of the resource attribute `service.name`.
pub(super) const PROGRAM_NAME: &str = "tokenweir";
pub(super) const RESOURCE_ATTRIBUTES_VARIABLE: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Returns the resource: the service name, the version, the instance, and the attributes in
/// `OTEL_RESOURCE_ATTRIBUTES`, which take precedence.
pub(in crate::telemetry) fn resource(service_name: &str) -> Resource {
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance_id()),
    ];
    let variable = std::env::var(RESOURCE_ATTRIBUTES_VARIABLE).unwrap_or_default();
    let configured = parse_attributes(&variable).map(|(key, value)| KeyValue::new(key, value));
    Resource::builder_empty()
        .with_attributes(attributes)
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(configured)
        .with_service_name(service_name.to_owned())
        .build()
}

/// Returns the keys and values of `OTEL_RESOURCE_ATTRIBUTES`: comma-separated pairs in which commas and equals
/// signs are percent-encoded. The SDK's own detector does not decode them.
pub(super) fn parse_attributes(variable: &str) -> impl Iterator<Item = (String, String)> {
    let decode = |text: &str| {
        percent_decode_str(text.trim())
            .decode_utf8_lossy()
            .into_owned()
    };
    let pairs = variable.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(move |(key, value)| (decode(key), decode(value)))
}

/// Returns the resource attribute that identifies this gateway process: host name and process id. A restart in
/// the same pod changes neither, so the time series of the gateway continue. Two gateways on one host have
/// different process ids.
fn instance_id() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

/// The name of this machine, or of the pod in Kubernetes.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    name.or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::Key;

    #[test]
    fn otel_resource_attributes_are_percent_decoded() {
        let parsed = parse_attributes("team=a%2Cb, deployment.environment = prod%20eu,x=1%3D2=3,y");
        let expected = [
            ("team", "a,b"),
            ("deployment.environment", "prod eu"),
            ("x", "1=2=3"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(parsed.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_resource_names_program_version_and_instance() {
        let resource = resource("edge");
        let value = |key| {
            resource
                .get(&Key::from_static_str(key))
                .map(|value| value.to_string())
        };
        assert_eq!(value("service.name").as_deref(), Some("edge"));
        assert_eq!(
            value("service.version").as_deref(),
            Some(env!("CARGO_PKG_VERSION"))
        );
        let id = value("service.instance.id").unwrap();
        assert!(id.ends_with(&format!(":{}", std::process::id())), "{id}");
    }
}
