//! From a valid configuration to a running gateway, and back: bind both ports, look at the
//! replicas, serve, and on the signal stop accepting, let streams end, cut what is left, flush.

mod connections;
mod door;
mod front;
mod held;
mod http1;
mod http2;
mod leashing;
mod limits;
mod listener;
mod memory;
mod operators;
mod outbox;
mod pace;
mod wire;

use crate::admin::{self, Admin};
use crate::backend::pool::Pool;
use crate::backend::{Keeper, watch};
use crate::proxy::Gateway;
use crate::telemetry::Telemetry;
use arc_swap::ArcSwap;
pub use connections::Connections;
use door::Door;
use front::Front;
pub use limits::Limits;
pub use listener::{BindError, Reserved, bind, reserve};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::{Leashes, Live};
use tokenweir_net::client::Client;
use tokenweir_net::supervise::{self, Task};
use tokenweir_net::tls::{Acceptor, Credentials};
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

/// A gateway with its ports bound, before it serves.
pub struct Server {
    /// Where clients connect.
    pub clients: TcpListener,
    /// Where operators connect.
    pub operators: TcpListener,
    /// What serves requests: each has the one that is there when it comes.
    pub gateway: Arc<ArcSwap<Gateway>>,
    /// What operators see.
    pub admin: Arc<Admin>,
    /// The limits: each connection has those that are there when it comes.
    pub limits: Arc<ArcSwap<Limits>>,
    /// The connections of clients.
    pub connections: Arc<Connections>,
    /// The certificates.
    pub tls: Tls,
}

/// TLS of both ports.
#[derive(Default)]
pub struct Tls {
    /// Of the clients' port. `None`: without.
    pub clients: Option<Acceptor>,
    /// Of the operators' port.
    pub operators: Option<Acceptor>,
    /// All certificates, keys and authorities, to be looked after.
    pub credentials: Arc<Credentials>,
}

/// How the end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every connection ended by itself.
    Whole,
    /// Some were cut at the deadline.
    Cut,
    /// A task without which the server cannot go on has ended. Requests were drained.
    Failed(Task),
}

/// How often it is said how far a drain is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// How often the open streams are looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

impl Server {
    /// Serves until `shutdown`, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self { clients, operators, gateway, admin, limits, connections: counted, tls } = self;
        let at_start = **limits.load();
        listener::find_the_gone(&clients, at_start.write_timeout);
        let router = admin::router(admin.clone());
        listener::find_the_gone(&operators, at_start.write_timeout);
        let (acceptor, failures) = (tls.operators, counted.clone());
        let serving = operators::serve(operators, acceptor, router, at_start, failures);
        let mut operators = supervise::essential(Task::AdminListener, serving);
        let (live, leashes) = (gateway.load().live.clone(), Leashes::new(clock::now()));
        let gate = gateway.load().gate.clone();
        let admission = gateway.load().admission.clone();
        let (swept, of_streams, swept_limits) = (live.clone(), leashes.clone(), limits.clone());
        let mut background = vec![
            supervise::spawn(Task::StallSweep, move || {
                sweep(swept.clone(), of_streams.clone(), swept_limits.clone())
            }),
            supervise::spawn(Task::Certificates, move || tls.credentials.clone().run()),
            supervise::spawn(Task::Admission, move || admission.clone().run()),
        ];
        background.extend(at_start.memory.map(|most| {
            supervise::spawn(Task::MemoryWatch, move || memory::watch(most, gate.clone()))
        }));
        let is_draining = admin.draining.clone();
        let (limits_now, places) = (limits.clone(), counted.clone());
        let door = Door::new(tls.clients, limits_now, places, leashes, gateway, is_draining);
        let mut front = Front::new(clients, door, counted);
        let mut failed = None;
        let end = async {
            tokio::select! {
                () = shutdown => {}
                task = operators.ended() => failed = Some(task),
            }
        };
        front.accept_until(end).await;
        admin.draining.store(true, Ordering::Relaxed);
        let Limits { drain_delay, drain, .. } = **limits.load();
        tracing::info!(open = live.open(), ?drain_delay, deadline = ?drain, "draining");
        let left = live.clone();
        background.push(supervise::spawn(Task::DrainProgress, move || tell_progress(left.clone())));
        front.accept_until(tokio::time::sleep(drain_delay)).await;
        let mut closed = front.close().await;
        let ended = tokio::time::timeout(drain, closed.drain()).await;
        let drained = if ended.is_ok() { Drained::Whole } else { Drained::Cut };
        if drained == Drained::Cut {
            live.cut_all();
        }
        closed.cut().await;
        failed.map_or(drained, Drained::Failed)
    }
}

/// Says again and again how many requests are left.
async fn tell_progress(live: Arc<Live>) {
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        tracing::info!(open = live.open(), "still draining");
    }
}

/// Starts a watcher for each replica, and waits until each has been looked at or `patience` is
/// over. The watchers end with their keeper.
pub async fn watch_all(
    pool: &Arc<Pool>,
    client: &Client,
    settings: watch::Settings,
    telemetry: &Arc<Telemetry>,
    patience: Duration,
) -> Keeper {
    let keeper = Keeper::new(pool.clone(), client.clone(), settings, telemetry.clone());
    keeper.seen(patience).await;
    keeper
}

/// Looks again and again for streams that have fallen silent, or are not taken.
async fn sweep(live: Arc<Live>, leashes: Arc<Leashes>, limits: Arc<ArcSwap<Limits>>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        live.sweep(clock::now());
        leashes.sweep(clock::now(), limits.load().write_timeout);
    }
}
