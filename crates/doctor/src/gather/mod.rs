//! The asking: all of it in this folder, and all of it harmless. Pages are read with `GET`; paths
//! that act are asked for with `OPTIONS`, which no server of this kind acts on, and never with the
//! method that they serve. The one request that makes an engine work is sent if it is wished for.

mod ask;
mod gateway;
mod idle;
mod probe;

pub use ask::{Asker, More};
pub use gateway::{Told, bare, gateway};

use super::endpoints;
use super::facts::{Asked, Idle, Key, Replica, Silence};
use http::header::HeaderName;
use http::{HeaderValue, Method};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::dialect::{Load, PATHS};
use tokenweir_net::client::{Client, Limits};
use tokenweir_net::tls::Outbound;

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// The name of the replica.
    pub id: String,
    /// Where it is.
    pub url: Address,
    /// Its key.
    pub key: Key,
}

/// How to ask.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whom TLS believes.
    pub outbound: Arc<Outbound>,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Longest wait for an idle connection to be closed. Zero: it is not tried.
    pub idle: Duration,
    /// Whether a request is sent that makes the engine work.
    pub probe: bool,
}

/// A path that no server has.
pub(super) const NOWHERE: &str = "/tokenweir-doctor";

/// The request id that the version is asked with.
pub(super) const REQUEST_ID: HeaderValue = HeaderValue::from_static("tokenweir-doctor");
/// Its header.
pub(super) const REQUEST_ID_NAME: HeaderName = HeaderName::from_static("x-request-id");

/// How long an unused connection of these questions is kept.
const KEPT: Duration = Duration::from_secs(1);

/// Asks one replica everything. It takes as long as the longest of its answers, or as an idle
/// connection is waited for.
pub async fn replica(target: Target, plan: &Plan) -> Replica {
    let asker = asker(&target, plan);
    let health = asker.get("/health").await;
    let mut replica = unanswered(target);
    // What cannot be reached for one page cannot be reached for others.
    let is_reached = health.is_ok();
    replica.health = health;
    if !is_reached {
        return replica;
    }
    let pages = pages(&asker, replica);
    let idle = keeps_idle(&asker, plan);
    let (mut replica, idle) = tokio::join!(pages, idle);
    replica.idle = idle;
    if plan.probe {
        let models = replica.served();
        let model = models.as_ref().and_then(|models| models.first());
        replica.probe = Some(probe::probe(&asker, model.map(|model| &*model.id)).await);
    }
    replica
}

/// Asks for one page.
pub async fn page(target: &Target, path: &'static str, plan: &Plan) -> Asked {
    asker(target, plan).get(path).await
}

fn asker(target: &Target, plan: &Plan) -> Asker {
    let limits =
        Limits { connect: plan.timeout, headers: plan.timeout, idle: KEPT, ..Limits::default() };
    let client = Client::with_tls(limits, plan.outbound.clone());
    Asker::new(client, target, plan.timeout)
}

fn unanswered(target: Target) -> Replica {
    Replica {
        id: target.id,
        url: target.url,
        key: target.key,
        health: Err(Silence::NotAsked),
        version: Err(Silence::NotAsked),
        models: Err(Silence::NotAsked),
        models_without_key: None,
        metrics: Err(Silence::NotAsked),
        options: Vec::new(),
        event_sources: Err(Silence::NotAsked),
        idle: None,
        probe: None,
    }
}

/// One after the other, over one connection, as a gateway asks.
async fn pages(asker: &Asker, mut replica: Replica) -> Replica {
    let with_id = Some((REQUEST_ID_NAME, REQUEST_ID));
    replica.version = asker.ask(Method::GET, "/version", with_id).await;
    replica.models = asker.get("/v1/models").await;
    if matches!(replica.key, Key::Known(_)) {
        replica.models_without_key = Some(asker.without_key().get("/v1/models").await);
    }
    replica.metrics = asker.get(PATHS[0]).await;
    let is_understood = |replica: &Replica| replica.page().is_some_and(is_page);
    if replica.metrics.is_ok() && !is_understood(&replica) {
        let elsewhere = asker.get(PATHS[1]).await;
        if elsewhere.as_ref().is_ok_and(|answer| answer.is_ok() && is_page(&answer.body)) {
            replica.metrics = elsewhere;
        }
    }
    if replica.is_vllm() {
        replica.event_sources = asker.without_key().get("/kv_event_sources").await;
        for path in [NOWHERE].into_iter().chain(endpoints::paths()) {
            let answer = asker.ask(Method::OPTIONS, path, None).await;
            replica.options.push((path, answer.ok().map(|answer| answer.status)));
        }
    }
    replica
}

fn is_page(page: &[u8]) -> bool {
    Load::read(page).is_understood()
}

async fn keeps_idle(asker: &Asker, plan: &Plan) -> Option<Idle> {
    if plan.idle.is_zero() {
        return None;
    }
    idle::idle(asker.target(), plan).await
}
