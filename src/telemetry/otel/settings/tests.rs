//! Tables of the environment: what is set, and what comes of it.

use super::super::environment::{DISABLED, ENDPOINT, PROTOCOL, RESOURCE, SERVICE_NAME};
use super::*;
use tokenweir_core::trace_context::Propagation;

fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    read_with(Configured::default(), variables)
}

fn read_with(
    configured: Configured,
    variables: &[(&str, &str)],
) -> Result<Settings, SettingsError> {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
    Settings::read(configured, |name| find(name).map(|(_, value)| (*value).to_owned()))
}

fn sampler(name: &str, arg: &str) -> Result<(bool, f64), String> {
    let sampler = read(&[(SAMPLER, name), (SAMPLER_ARG, arg)]).map(|read| read.propagation.sampler);
    sampler
        .map(|sampler| (sampler.is_parent_based, sampler.ratio))
        .map_err(|error| error.to_string())
}

#[test]
fn a_sampler_is_one_of_six() {
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
fn an_error_names_the_variable_its_value_and_what_is_allowed() {
    let unknown = "OTEL_TRACES_SAMPLER: `jaeger_remote` is not understood; allowed: \
         always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, \
         parentbased_traceidratio";
    assert_eq!(sampler("jaeger_remote", ""), Err(unknown.into()));
    for arg in ["1.5", "-0.1", "NaN", "ten"] {
        let bad = format!(
            "OTEL_TRACES_SAMPLER_ARG: `{arg}` is not understood; allowed: a number from 0 to 1"
        );
        assert_eq!(sampler("traceidratio", arg), Err(bad));
    }
    for (name, value) in [
        (EXPORTER, "zipkin"),
        (PROTOCOL, "http/json"),
        (ENDPOINT, "ftp://collector:4317"),
        (ENDPOINT, "http://"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        (PROPAGATORS, "tracecontext,jaeger"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), (name, value));
    }
}

#[test]
fn traces_are_off_without_an_endpoint_or_when_they_are_told_to_be() {
    let to = (ENDPOINT, "http://collector:4317");
    assert!(read(&[to]).unwrap().endpoint.is_some());
    for off in [
        &[][..],
        &[(ENDPOINT, "")],
        &[to, (DISABLED, "TRUE")],
        &[to, (EXPORTER, "none"), (SAMPLER, "unknown")],
    ] {
        assert_eq!(read(off).unwrap().endpoint, None, "{off:?}");
    }
}

#[test]
fn an_endpoint_is_completed_as_its_protocol_needs() {
    let http = (PROTOCOL, "http/protobuf");
    for (variables, expected) in [
        (&[(ENDPOINT, "collector:4317")][..], "http://collector:4317"),
        (&[(ENDPOINT, "http://a:1"), (TRACES.endpoint, "http://b:2")], "http://b:2"),
        (&[http, (ENDPOINT, "http://a:1/")], "http://a:1/v1/traces"),
        (&[http, (ENDPOINT, "a:1/otlp")], "http://a:1/otlp/v1/traces"),
        (&[http, (TRACES.endpoint, "http://a:1/spans")], "http://a:1/spans"),
        (&[http, (TRACES.protocol, "grpc"), (ENDPOINT, "http://a:1")], "http://a:1"),
    ] {
        let endpoint = read(variables).unwrap().endpoint;
        assert_eq!(endpoint.as_deref(), Some(expected), "{variables:?}");
    }
}

#[test]
fn the_configuration_wins_over_the_environment() {
    let configured = Configured {
        endpoint: Some("http://own:4318".into()),
        protocol: Some(Protocol::HttpProtobuf),
        ratio: Some(0.1),
        ..Configured::default()
    };
    let variables = [(ENDPOINT, "http://a:1"), (PROTOCOL, "grpc"), (SAMPLER, "always_off")];
    let settings = read_with(configured, &variables).unwrap();
    assert_eq!(settings.endpoint.as_deref(), Some("http://own:4318/v1/traces"));
    assert_eq!(settings.propagation.sampler, Sampler { is_parent_based: true, ratio: 0.1 });
    let bad = Configured { ratio: Some(2.0), ..Configured::default() };
    assert_eq!(read_with(bad, &[]).unwrap_err().name, "ratio");
}

#[test]
fn a_service_name_of_its_own_wins_over_the_one_among_the_attributes() {
    let among = (RESOURCE, "deployment.environment.name=test, service.name = edge");
    assert_eq!(read(&[]).unwrap().service_name, "tokenweir");
    assert_eq!(read(&[among]).unwrap().service_name, "edge");
    assert_eq!(read(&[among, (SERVICE_NAME, "front")]).unwrap().service_name, "front");
}

#[test]
fn the_queue_is_as_large_as_the_environment_says() {
    let set = [("OTEL_BSP_MAX_QUEUE_SIZE", "64"), ("OTEL_BSP_SCHEDULE_DELAY", "250")];
    let expected = Batch { queue: 64, size: 1_024, delay: Duration::from_millis(250) };
    assert_eq!(read(&set).unwrap().batch, expected);
}

#[test]
fn the_newer_conventions_are_asked_for_by_name() {
    let opt_in = (SEMCONV, "http/dup, gen_ai_latest_experimental");
    assert_eq!(read(&[]).unwrap().style.semconv, Semconv::V1_41);
    assert_eq!(read(&[opt_in]).unwrap().style.semconv, Semconv::Latest);
    let configured = Configured { semconv: Some(Semconv::V1_41), ..Configured::default() };
    assert_eq!(read_with(configured, &[opt_in]).unwrap().style.semconv, Semconv::V1_41);
}

#[test]
fn spans_are_as_large_as_the_environment_says() {
    let set = [
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "9"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "7"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
    ];
    let expected = SpanLimits { events: 0, text: 7, ..SpanLimits::default() };
    assert_eq!(read(&set).unwrap().limits, expected);
}

#[test]
fn a_batch_is_waited_for_as_long_as_the_shorter_limit_says() {
    let timeout = |variables: &[(&str, &str)]| read(variables).unwrap().timeout.as_millis();
    let (all, traces) = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT");
    assert_eq!(timeout(&[]), 10_000);
    assert_eq!(timeout(&[(all, "3000"), (traces, "4000")]), 4_000);
    assert_eq!(timeout(&[(all, "3000"), ("OTEL_BSP_EXPORT_TIMEOUT", "2000")]), 2_000);
}

#[test]
fn a_caller_that_is_not_believed_does_not_pass_even_without_traces() {
    let with = |parent, variables: &[(&str, &str)]| {
        let configured = Configured { parent, ..Configured::default() };
        read_with(configured, variables).unwrap().propagation(tokenweir_core::clock::now())
    };
    let to = (ENDPOINT, "http://collector:4317");
    assert_eq!(with(Parent::Continue, &[]), None);
    let usual = Settings::default().propagation;
    let found = with(Parent::Continue, &[to]).map(|found| Propagation { limit: None, ..found });
    assert_eq!(found, Some(usual), "besides the limit of a second");
    for off in [&[][..], &[to, (DISABLED, "true")]] {
        let propagation = with(Parent::Ignore, off).unwrap();
        assert!(!propagation.sampler.decides(Some(true), u128::MAX), "{off:?}");
        assert_eq!(propagation.parent, Parent::Ignore);
    }
}
