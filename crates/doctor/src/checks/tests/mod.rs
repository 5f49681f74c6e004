//! Each check over answers of a real vLLM, as they are and with one thing wrong.

mod fleet;
mod replicas;

use super::*;
use crate::configuration::{Backend, Configuration, Model};
use crate::facts::{Answer, Collector, Gateway, Idle, Key, Probe, Silence};
use crate::finding::Severity;
use crate::{endpoints, gather};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime};
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::observe::Observer;
use tokenweir_core::openai::Api;
use tokenweir_core::record::Timings;

const PYTHON: &str = include_str!("../../../../../tests/wire/metrics/python-metrics-idle.http");
const RUST: &str = include_str!("../../../../../tests/wire/metrics/rust-metrics-after.http");
const NO_STATS: &str =
    include_str!("../../../../../tests/wire/metrics/python-metrics-no-stats.http");
const BEFORE_0_9: &str = include_str!("../../../../../tests/pages/vllm_before_0_9.txt");
const MODELS: &str =
    r#"{"data":[{"id":"tiny","owned_by":"vllm","max_model_len":2048,"parent":null}]}"#;
/// What vLLM 0.32 sent as its `Date`.
const DATE: &str = "Fri, 20 Nov 2026 16:19:34 GMT";

fn noon() -> SystemTime {
    httpdate::parse_http_date(DATE).unwrap()
}

fn answer(status: u16, body: &str) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert("server", HeaderValue::from_static("uvicorn"));
    headers.insert("date", HeaderValue::from_static(DATE));
    headers.insert("x-request-id", HeaderValue::from_static("a"));
    Answer {
        status: StatusCode::from_u16(status).unwrap(),
        headers,
        body: Bytes::copy_from_slice(body.as_bytes()),
        clock: [noon(); 2],
        took: Duration::from_millis(2),
    }
}

/// A recording, with its own headers.
fn recorded(recording: &str) -> Answer {
    let (head, body) = recording.split_once("\r\n\r\n").unwrap();
    let mut answer = answer(200, body);
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
        answer
            .headers
            .insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
    }
    answer
}

/// A vLLM with nothing to say but what its defaults are.
fn replica(id: &str) -> Replica {
    let paths = [gather::NOWHERE].into_iter().chain(endpoints::paths());
    Replica {
        id: id.to_owned(),
        url: Address::parse(&format!("http://{id}:8000")).unwrap(),
        key: Key::None,
        health: Ok(answer(200, "")),
        version: Ok(answer(200, r#"{"version":"0.32.0"}"#)),
        models: Ok(answer(200, MODELS)),
        models_without_key: None,
        metrics: Ok(recorded(PYTHON)),
        options: paths.map(|path| (path, Some(StatusCode::NOT_FOUND))).collect(),
        event_sources: Ok(answer(200, "{}")),
        idle: Some(Idle::Open(Duration::from_secs(6))),
        probe: Some(Ok(probe(STREAM, Duration::from_millis(3)))),
    }
}

const STREAM: &str =
    include_str!("../../../../../tests/wire/python/per-request-metrics-stream.http");

/// A recorded stream, whose events come so long after one another.
fn probe(recording: &str, gap: Duration) -> Probe {
    let mut observer = Observer::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let mut now = clock::now();
    let mut timings = Timings::begin(now);
    let mut arrivals = Vec::new();
    for event in recording.lines().filter(|line| line.starts_with("data: ")) {
        now += gap;
        let arrival = observer.on_data(&Bytes::from(format!("{event}\n\n")), now, &mut timings);
        arrivals.extend((0..arrival.outputs).map(|_| now));
    }
    Probe {
        path: "/v1/chat/completions",
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        observed: observer.into_observed(),
        timings,
        arrivals,
        excerpt: String::new(),
        given_up: None,
    }
}

fn facts(replicas: Vec<Replica>) -> Facts {
    Facts { replicas, ..Facts::default() }
}

/// What is found of one replica that differs from a good one.
fn found(change: impl FnOnce(&mut Replica)) -> Vec<Finding> {
    let mut replica = replica("a");
    change(&mut replica);
    examine(&facts(vec![replica]))
}

/// The findings of one check.
fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|finding| finding.check == check).collect()
}

/// The only finding of one check.
fn one<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let of = of(findings, check);
    assert_eq!(of.len(), 1, "{check}: {findings:#?}");
    of[0]
}

fn worst(findings: &[Finding]) -> Option<Severity> {
    findings.iter().map(|finding| finding.severity).max()
}

fn model(name: &str, served_as: &str, backends: Option<&[&str]>) -> Model {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    Model {
        name: name.to_owned(),
        served_as: Some(served_as.to_owned()),
        backends: backends.map(owned),
    }
}

fn configured(config: Configuration, replicas: Vec<Replica>) -> Vec<Finding> {
    examine(&Facts { config, is_configured: true, replicas, ..Facts::default() })
}
