//! Gathers facts over the network. No request has a side effect on a backend. Most paths are read with `GET`. A
//! path whose usual method has side effects is tested with `OPTIONS`, for which servers do nothing. Only the
//! optional probe puts load on an engine.

mod client;
mod gateway;
mod probe;

pub use client::{ExtraHeader, GatherOptions, GatherTarget, ServerClient};
pub use gateway::{GatewayAnswers, bare, gateway};

use super::endpoints;
use super::facts::{BackendFacts, GatherError, GatheredResponse, IdleConnection, TargetKey};
use http::header::HeaderName;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::dialect::{PATHS, RAY_SERVE_HEALTH_PATH};
use tokenweir_protocol::clock;
use tokio::net::TcpStream;

/// A path that does not exist on any server.
pub(super) const UNKNOWN_PATH: &str = "/tokenweir-doctor";

pub(super) const PROBE_REQUEST_ID: HeaderValue = HeaderValue::from_static("tokenweir-doctor");
pub(super) const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Gathers all facts about one backend. If the backend does not respond to `/health`, no further request is
/// sent. The pages are fetched one after the other, while another connection measures the idle timeout. The
/// probe comes last, if the options ask for it.
pub async fn gather_backend(target: GatherTarget, options: &GatherOptions) -> BackendFacts {
    let client = |url: &BackendAddress, key| {
        ServerClient::new(url.clone(), key, options.outbound.clone(), options.timeout)
    };
    let metrics = target.metrics_url.clone().map(|url| {
        // The key of the backend is not sent to another host or port. The gateway follows this rule too.
        let key = if url.address == target.url {
            target.key.clone()
        } else {
            TargetKey::None
        };
        (client(&url.address, key), url.path)
    });
    let client = client(&target.url, target.key.clone());
    let mut health = client.get("/health").await;
    if health
        .as_ref()
        .is_ok_and(|answer| answer.status == StatusCode::NOT_FOUND)
    {
        let of_proxy = client.get(RAY_SERVE_HEALTH_PATH).await;
        if of_proxy.as_ref().is_ok_and(GatheredResponse::is_ok) {
            health = of_proxy;
        }
    }
    let mut backend = unreached_backend(target);
    let is_reached = health.is_ok();
    backend.health = health;
    if !is_reached {
        return backend;
    }
    let pages = fetch_pages(&client, metrics.as_ref(), backend);
    let idle = measure_idle_connection(&client, options);
    let (mut backend, idle) = tokio::join!(pages, idle);
    backend.idle = idle;
    backend.publisher_answers = try_publisher(&backend, options.timeout).await;
    if options.probe {
        let models = backend.served();
        let model = models.as_ref().and_then(|models| models.first());
        backend.probe = Some(probe::run_probe(&client, model.map(|model| &*model.id)).await);
    }
    backend
}

/// The facts about a backend to which no request has been sent yet.
pub(crate) fn unreached_backend(target: GatherTarget) -> BackendFacts {
    BackendFacts {
        id: target.id,
        url: target.url,
        key: target.key,
        health: Err(GatherError::NotAttempted),
        version: Err(GatherError::NotAttempted),
        models: Err(GatherError::NotAttempted),
        models_without_key: None,
        metrics: Err(GatherError::NotAttempted),
        options: Vec::new(),
        event_sources: Err(GatherError::NotAttempted),
        publisher_answers: None,
        idle: None,
        probe: None,
    }
}

/// Fetches all pages of a backend one after the other over one connection. `metrics`: the client and the path
/// of the metrics page, if the page has a URL of its own.
async fn fetch_pages(
    client: &ServerClient,
    metrics: Option<&(ServerClient, PathAndQuery)>,
    mut backend: BackendFacts,
) -> BackendFacts {
    let with_id = Some((REQUEST_ID_HEADER, PROBE_REQUEST_ID));
    backend.version = client.request(Method::GET, "/version", with_id).await;
    backend.models = client.get("/v1/models").await;
    if matches!(backend.key, TargetKey::Known(_)) {
        backend.models_without_key = Some(client.without_key().get("/v1/models").await);
    }
    backend.metrics = match metrics {
        Some((client, path)) => client.get(path.as_str()).await,
        None => client.get(PATHS[0]).await,
    };
    if metrics.is_none() && backend.metrics.is_ok() && backend.load().is_none() {
        let alternative = client.get(PATHS[1]).await;
        if alternative
            .as_ref()
            .is_ok_and(|answer| answer.load().is_some())
        {
            backend.metrics = alternative;
        }
    }
    if backend.is_vllm() {
        backend.event_sources = client.without_key().get("/kv_event_sources").await;
        for path in [UNKNOWN_PATH].into_iter().chain(endpoints::paths()) {
            let answer = client.request(Method::OPTIONS, path, None).await;
            backend
                .options
                .push((path, answer.ok().map(|answer| answer.status)));
        }
    }
    backend
}

/// Whether a connection to the first publisher of KV events can be opened. Like the gateway, the doctor
/// connects to the port of the publisher on the host of the backend. `None`: the backend lists no publisher
/// with a port.
async fn try_publisher(backend: &BackendFacts, timeout: Duration) -> Option<bool> {
    let endpoints = backend.event_endpoints();
    let port: u16 = endpoints.first()?.rsplit_once(':')?.1.parse().ok()?;
    let (host, _) = backend.url.host_and_port();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let opened = tokio::time::timeout(timeout, TcpStream::connect((host, port))).await;
    Some(matches!(opened, Ok(Ok(_))))
}

/// Measures how long the backend keeps an idle connection open. Reads one response on a new connection, and
/// waits up to `options.idle` until the backend closes the connection. `None`: the options ask for no
/// measurement, or no response arrived.
async fn measure_idle_connection(
    client: &ServerClient,
    options: &GatherOptions,
) -> Option<IdleConnection> {
    if options.idle.is_zero() {
        return None;
    }
    let client = client.on_new_connections();
    client.get("/health").await.ok()?;
    let idle_since = clock::now();
    let is_closed = match client.take_idle_connection() {
        Some(mut open) => tokio::time::timeout(options.idle, open.until_closed())
            .await
            .is_ok(),
        None => true,
    };
    let after = clock::now().saturating_duration_since(idle_since);
    Some(if is_closed {
        IdleConnection::Closed(after)
    } else {
        IdleConnection::Open(after)
    })
}
