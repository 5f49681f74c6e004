//! Tests of all checks with recorded responses of a real vLLM server. Each test starts from a healthy backend
//! and changes some of its responses.

mod backends;
mod fleet;

use super::*;
use crate::configuration::{ConfiguredBackend, ConfiguredModel, GatewaySettings};
use crate::facts::{
    CollectorFacts, GatewayFacts, GatherError, GatheredResponse, IdleConnection, StreamProbe,
    TargetKey,
};
use crate::finding::FindingSeverity;
use crate::{endpoints, gather};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime};
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::Timings;
use tokenweir_routing::PolicyKind;

const PYTHON: &str = include_str!("../../../../../tests/wire/metrics/python-metrics-idle.http");
const RUST: &str = include_str!("../../../../../tests/wire/metrics/rust-metrics-after.http");
const NO_STATS: &str =
    include_str!("../../../../../tests/wire/metrics/python-metrics-no-stats.http");
const BEFORE_0_9: &str = include_str!("../../../../../tests/pages/vllm_before_0_9.txt");
const MODELS: &str =
    r#"{"data":[{"id":"tiny","owned_by":"vllm","max_model_len":2048,"parent":null}]}"#;
/// The value of the `Date` header in the responses.
const DATE: &str = "Fri, 20 Nov 2026 16:19:34 GMT";

fn date_header_time() -> SystemTime {
    httpdate::parse_http_date(DATE).unwrap()
}

fn answer(status: u16, body: &str) -> GatheredResponse {
    let mut headers = HeaderMap::new();
    headers.insert("server", HeaderValue::from_static("uvicorn"));
    headers.insert("date", HeaderValue::from_static(DATE));
    headers.insert("x-request-id", HeaderValue::from_static("a"));
    GatheredResponse {
        status: StatusCode::from_u16(status).unwrap(),
        headers,
        body: Bytes::copy_from_slice(body.as_bytes()),
        sent_at: date_header_time(),
        received_at: date_header_time(),
        took: Duration::from_millis(2),
    }
}

/// The response, with its headers, from the text of a recorded HTTP response.
fn recorded(recording: &str) -> GatheredResponse {
    let (head, body) = recording.split_once("\r\n\r\n").unwrap();
    let mut answer = answer(200, body);
    for (name, value) in head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
    {
        answer.headers.insert(
            HeaderName::try_from(name).unwrap(),
            HeaderValue::try_from(value).unwrap(),
        );
    }
    answer
}

/// The facts about a healthy vLLM server with default settings.
fn backend(id: &str) -> BackendFacts {
    let paths = [gather::UNKNOWN_PATH].into_iter().chain(endpoints::paths());
    BackendFacts {
        id: id.to_owned(),
        url: BackendAddress::parse(&format!("http://{id}:8000")).unwrap(),
        key: TargetKey::None,
        health: Ok(answer(200, "")),
        version: Ok(answer(200, r#"{"version":"0.32.0"}"#)),
        models: Ok(answer(200, MODELS)),
        models_without_key: None,
        metrics: Ok(recorded(PYTHON)),
        options: paths
            .map(|path| (path, Some(StatusCode::NOT_FOUND)))
            .collect(),
        event_sources: Ok(answer(200, "{}")),
        publisher_answers: None,
        idle: Some(IdleConnection::Open(Duration::from_secs(6))),
        probe: Some(Ok(probe(STREAM, Duration::from_millis(3)))),
    }
}

const STREAM: &str =
    include_str!("../../../../../tests/wire/python/per-request-metrics-stream.http");

/// The result of a probe with a recorded stream whose events arrive at intervals of `gap`.
fn probe(recording: &str, gap: Duration) -> StreamProbe {
    let mut observer = ResponseObserver::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let mut now = clock::now();
    let mut timings = Timings::begin(now);
    let mut arrivals = Vec::new();
    for event in recording.lines().filter(|line| line.starts_with("data: ")) {
        now += gap;
        let arrival = observer.on_data(&Bytes::from(format!("{event}\n\n")), now, &mut timings);
        arrivals.extend((0..arrival.outputs).map(|_| now));
    }
    StreamProbe {
        path: "/v1/chat/completions",
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        observed: *observer.into_observed(),
        timings,
        arrivals,
        excerpt: String::new(),
        gave_up_after: None,
    }
}

fn facts(backends: Vec<BackendFacts>) -> DoctorFacts {
    DoctorFacts {
        backends,
        ..DoctorFacts::default()
    }
}

/// The findings about one healthy backend after `change` has modified its facts.
fn findings_after(change: impl FnOnce(&mut BackendFacts)) -> Vec<Finding> {
    let mut backend = backend("a");
    change(&mut backend);
    examine(&facts(vec![backend]))
}

fn findings_of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Remark> {
    let of_check = findings.iter().filter(|finding| finding.check == check);
    of_check.map(|finding| &finding.remark).collect()
}

/// The remark of the finding of `check`, which must have exactly one finding.
fn only_finding<'a>(findings: &'a [Finding], check: &str) -> &'a Remark {
    let selected = findings_of(findings, check);
    assert_eq!(selected.len(), 1, "{check}: {findings:#?}");
    selected[0]
}

/// The severity of the finding of `check`, which must have exactly one finding.
fn severity_of(findings: &[Finding], check: &str) -> FindingSeverity {
    only_finding(findings, check).severity
}

/// The remedy of the finding of `check`, which must have exactly one finding with a remedy.
fn remedy_of<'a>(findings: &'a [Finding], check: &str) -> &'a str {
    only_finding(findings, check).remedy.as_deref().unwrap()
}

fn highest_severity(findings: &[Finding]) -> Option<FindingSeverity> {
    findings.iter().map(|finding| finding.remark.severity).max()
}

fn model(name: &str, served_as: &str, backends: Option<&[&str]>) -> ConfiguredModel {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    ConfiguredModel {
        name: name.to_owned(),
        served_as: Some(served_as.to_owned()),
        backends: backends.map(owned),
    }
}

/// The findings about a gateway with this status document.
fn findings_of_gateway(status: Value, backends: Vec<BackendFacts>) -> Vec<Finding> {
    examine(&facts_of_gateway(status, backends))
}

fn facts_of_gateway(status: Value, backends: Vec<BackendFacts>) -> DoctorFacts {
    let url = BackendAddress::parse("http://admin:9090").unwrap();
    let gateway = Some(Ok(GatewayFacts {
        url,
        status: Ok(status),
        config_problem: None,
    }));
    DoctorFacts {
        backends,
        gateway,
        ..DoctorFacts::default()
    }
}

fn findings_with_config(config: GatewaySettings, backends: Vec<BackendFacts>) -> Vec<Finding> {
    examine(&DoctorFacts {
        config,
        is_configured: true,
        backends,
        ..DoctorFacts::default()
    })
}

/// The settings of a gateway without a configuration file.
impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            admin: (Ipv4Addr::LOCALHOST, 9090).into(),
            has_keys: false,
            has_admin_token: false,
            backends: Vec::new(),
            models: Vec::new(),
            objective_models: Vec::new(),
            policy: PolicyKind::KvAware,
            max_waiting: Some(4),
            idle_connection: Duration::from_secs(3),
            scrape_timeout: Duration::from_secs(2),
            max_page: 4 << 20,
            kv_events: None,
        }
    }
}
