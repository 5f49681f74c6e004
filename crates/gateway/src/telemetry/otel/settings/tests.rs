//! Tests of the settings that result from environment variables.

use super::environment::{
    ENDPOINT_VARIABLE, PROTOCOL_VARIABLES, SDK_DISABLED_VARIABLE, SERVICE_NAME_VARIABLE,
    TRACES_ENDPOINT_VARIABLE,
};
use super::*;
use crate::telemetry::otel::resource::RESOURCE_ATTRIBUTES_VARIABLE;
use tokenweir_protocol::trace_context::Propagation;

fn read(variables: &[(&str, &str)]) -> Result<TracingSettings, OtelSettingsError> {
    resolve_with(TracingConfig::default(), variables)
}

fn resolve_with(
    configured: TracingConfig,
    variables: &[(&str, &str)],
) -> Result<TracingSettings, OtelSettingsError> {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
    TracingSettings::read(configured, |name| {
        find(name).map(|(_, value)| (*value).to_owned())
    })
}

fn sampler(name: &str, arg: &str) -> Result<(bool, f64), String> {
    let read = read(&[(SAMPLER_VARIABLE, name), (SAMPLER_ARG_VARIABLE, arg)]);
    let sampler = read.map_err(|error| error.to_string())?.propagation.sampler;
    Ok((sampler.is_parent_based, sampler.ratio))
}

#[test]
fn six_values_select_a_sampler() {
    for (name, arg, expected) in [
        ("", "", (true, 0.05)),
        ("always_on", "0.5", (false, 1.0)),
        ("always_off", "", (false, 0.0)),
        ("traceidratio", "0.25", (false, 0.25)),
        ("traceidratio", "", (false, 1.0)),
        ("parentbased_always_on", "", (true, 1.0)),
        ("parentbased_always_off", "", (true, 0.0)),
        ("parentbased_traceidratio", "0", (true, 0.0)),
    ] {
        assert_eq!(sampler(name, arg), Ok(expected), "{name} {arg}");
    }
}

#[test]
fn an_error_names_variable_and_allowed_values() {
    let unknown = "OTEL_TRACES_SAMPLER: `jaeger_remote` is invalid; allowed: \
         always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, \
         parentbased_traceidratio";
    assert_eq!(sampler("jaeger_remote", ""), Err(unknown.into()));
    for arg in ["1.5", "-0.1", "NaN", "ten"] {
        let message =
            format!("OTEL_TRACES_SAMPLER_ARG: `{arg}` is invalid; allowed: a number from 0 to 1");
        assert_eq!(sampler("traceidratio", arg), Err(message));
    }
    for (name, value) in [
        (EXPORTER_VARIABLE, "zipkin"),
        (PROTOCOL_VARIABLES[1], "http/json"),
        (ENDPOINT_VARIABLE, "ftp://collector:4317"),
        (ENDPOINT_VARIABLE, "http://"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        (PROPAGATORS_VARIABLE, "tracecontext,jaeger"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), (name, value));
    }
}

#[test]
fn tracing_needs_an_endpoint_and_no_veto() {
    let endpoint = (ENDPOINT_VARIABLE, "http://collector:4317");
    assert!(read(&[endpoint]).unwrap().endpoint.is_some());
    for variables in [
        &[][..],
        &[(ENDPOINT_VARIABLE, "")],
        &[endpoint, (SDK_DISABLED_VARIABLE, "TRUE")],
        &[
            endpoint,
            (EXPORTER_VARIABLE, "none"),
            (SAMPLER_VARIABLE, "unknown"),
        ],
    ] {
        assert_eq!(read(variables).unwrap().endpoint, None, "{variables:?}");
    }
}

#[test]
fn the_url_gets_scheme_and_path() {
    let http = (PROTOCOL_VARIABLES[1], "http/protobuf");
    for (variables, expected) in [
        (
            &[(ENDPOINT_VARIABLE, "collector:4317")][..],
            "http://collector:4317",
        ),
        (
            &[
                (ENDPOINT_VARIABLE, "http://a:1"),
                (TRACES_ENDPOINT_VARIABLE, "http://b:2"),
            ],
            "http://b:2",
        ),
        (
            &[http, (ENDPOINT_VARIABLE, "http://a:1/")],
            "http://a:1/v1/traces",
        ),
        (
            &[http, (ENDPOINT_VARIABLE, "a:1/otlp")],
            "http://a:1/otlp/v1/traces",
        ),
        (
            &[http, (TRACES_ENDPOINT_VARIABLE, "http://a:1/spans")],
            "http://a:1/spans",
        ),
        (
            &[
                http,
                (PROTOCOL_VARIABLES[0], "grpc"),
                (ENDPOINT_VARIABLE, "http://a:1"),
            ],
            "http://a:1",
        ),
    ] {
        let endpoint = read(variables).unwrap().endpoint;
        assert_eq!(endpoint.as_deref(), Some(expected), "{variables:?}");
    }
}

#[test]
fn the_tracing_configuration_overrides_the_otel_environment_variables() {
    let configured = TracingConfig {
        endpoint: Some("http://own:4318".into()),
        protocol: Some(OtlpProtocol::HttpProtobuf),
        ratio: Some(0.1),
        ..TracingConfig::default()
    };
    let variables = [
        (ENDPOINT_VARIABLE, "http://a:1"),
        (PROTOCOL_VARIABLES[1], "grpc"),
        (SAMPLER_VARIABLE, "always_off"),
    ];
    let settings = resolve_with(configured, &variables).unwrap();
    assert_eq!(
        settings.endpoint.as_deref(),
        Some("http://own:4318/v1/traces")
    );
    assert_eq!(
        settings.propagation.sampler,
        Sampler {
            is_parent_based: true,
            ratio: 0.1
        }
    );
    let invalid = TracingConfig {
        ratio: Some(2.0),
        ..TracingConfig::default()
    };
    assert_eq!(resolve_with(invalid, &[]).unwrap_err().name, "ratio");
}

#[test]
fn the_service_name_overrides_resource_attributes() {
    let attributes = (
        RESOURCE_ATTRIBUTES_VARIABLE,
        "deployment.environment.name=test, service.name = edge",
    );
    assert_eq!(read(&[]).unwrap().service_name, "tokenweir");
    assert_eq!(read(&[attributes]).unwrap().service_name, "edge");
    let variables = [attributes, (SERVICE_NAME_VARIABLE, "front")];
    assert_eq!(read(&variables).unwrap().service_name, "front");
}

#[test]
fn batch_settings_come_from_the_environment() {
    let variables = [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
        ("OTEL_BSP_SCHEDULE_DELAY", "250"),
    ];
    let expected = SpanBatchSettings {
        queue: 64,
        size: 1_024,
        delay: Duration::from_millis(250),
    };
    assert_eq!(read(&variables).unwrap().batch, expected);
}

#[test]
fn the_latest_conventions_need_an_opt_in() {
    let opt_in = (
        SEMCONV_OPT_IN_VARIABLE,
        "http/dup, gen_ai_latest_experimental",
    );
    assert_eq!(read(&[]).unwrap().style.semconv, Semconv::V1_41);
    assert_eq!(read(&[opt_in]).unwrap().style.semconv, Semconv::Latest);
}

#[test]
fn span_limits_come_from_the_environment() {
    let variables = [
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "9"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "7"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
    ];
    let expected = SpanLimits {
        events: 0,
        text: 7,
        ..SpanLimits::default()
    };
    assert_eq!(read(&variables).unwrap().limits, expected);
}

#[test]
fn the_shorter_timeout_applies() {
    let timeout = |variables: &[(&str, &str)]| read(variables).unwrap().timeout.as_millis();
    let (shared, traces) = (
        "OTEL_EXPORTER_OTLP_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    );
    assert_eq!(timeout(&[]), 10_000);
    assert_eq!(timeout(&[(shared, "3000"), (traces, "4000")]), 4_000);
    assert_eq!(
        timeout(&[(shared, "3000"), ("OTEL_BSP_EXPORT_TIMEOUT", "2000")]),
        2_000
    );
}

#[test]
fn untrusted_trace_context_is_not_forwarded() {
    let propagation_with = |parent, variables: &[(&str, &str)]| {
        let configured = TracingConfig {
            parent,
            ..TracingConfig::default()
        };
        resolve_with(configured, variables).unwrap().propagation()
    };
    let endpoint = (ENDPOINT_VARIABLE, "http://collector:4317");
    assert_eq!(propagation_with(TraceParentMode::Continue, &[]), None);
    let default = TracingSettings::default().propagation;
    let propagation =
        propagation_with(TraceParentMode::Continue, &[endpoint]).map(|propagation| Propagation {
            rate_limit: None,
            ..propagation
        });
    assert_eq!(
        propagation,
        Some(default),
        "equal except for the rate limit"
    );
    for variables in [&[][..], &[endpoint, (SDK_DISABLED_VARIABLE, "true")]] {
        let propagation = propagation_with(TraceParentMode::Ignore, variables).unwrap();
        assert!(
            !propagation.sampler.should_sample(Some(true), u128::MAX),
            "{variables:?}"
        );
        assert_eq!(propagation.parent_mode, TraceParentMode::Ignore);
    }
}

#[test]
fn otel_propagators_accepts_only_supported_propagators_or_none() {
    assert_eq!(
        parse_propagators("tracecontext,baggage"),
        Some(PropagationFormats::default())
    );
    assert_eq!(parse_propagators("none"), Some(PropagationFormats::NONE));
    let b3 = PropagationFormats {
        b3: true,
        b3_multi: true,
        ..PropagationFormats::NONE
    };
    assert_eq!(parse_propagators("b3, b3multi"), Some(b3));
    for invalid in [
        "jaeger",
        "tracecontext,xray",
        "none,b3",
        "",
        "b3,,baggage",
        "B3",
    ] {
        assert_eq!(parse_propagators(invalid), None, "{invalid}");
    }
}
