//! From a valid configuration to a running gateway, and back: bind both ports, look at the
//! replicas, serve, and on the signal stop accepting, let streams end, cut what is left, flush.

mod connections;
mod door;
mod framing;
mod guard;
mod held;
mod leashing;
mod limits;
mod listener;
mod memory;
mod operators;
mod pace;

use crate::admin::{self, Admin};
use crate::backend::client::Client;
use crate::backend::pool::Pool;
use crate::backend::{Keeper, watch};
use crate::clock;
use crate::observe::{Leashes, Live};
use crate::proxy::Gateway;
use crate::telemetry::Telemetry;
use crate::tls::{Acceptor, Credentials};
pub use connections::Connections;
use door::Door;
use hyper_util::server::graceful::GracefulShutdown;
pub use limits::Limits;
pub use listener::{BindError, bind};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// A gateway with its ports bound, before it serves.
pub struct Server {
    /// Where clients connect.
    pub clients: TcpListener,
    /// Where operators connect.
    pub operators: TcpListener,
    /// What serves requests.
    pub gateway: Arc<Gateway>,
    /// What operators see.
    pub admin: Arc<Admin>,
    /// The limits.
    pub limits: Limits,
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
}

/// How often the open streams are looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

impl Server {
    /// Serves until `shutdown`, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self { clients, operators, gateway, admin, limits, connections: counted, tls } = self;
        listener::find_the_gone(&clients, limits.write_timeout);
        let router = admin::router(admin.clone());
        let operators = tokio::spawn(operators::serve(operators, tls.operators, router));
        let leashes = Leashes::new(clock::now());
        let sweeper = tokio::spawn(sweep(gateway.live.clone(), leashes.clone(), limits));
        let memory =
            limits.memory.map(|most| tokio::spawn(memory::watch(most, gateway.gate.clone())));
        let credentials = tokio::spawn(tls.credentials.run());
        let admission = tokio::spawn(gateway.admission.clone().run());
        let live = gateway.live.clone();
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let door = Door::new(tls.clients, limits, counted.clone(), leashes, gateway.clone());
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                (stream, peer) = listener::accept(&clients, &counted) => {
                    if let Some((stream, place)) = door.admit(stream, peer) {
                        let watcher = graceful.watcher();
                        connections.spawn(door.clone().serve(stream, peer, place, watcher));
                    }
                }
                Some(_) = connections.join_next() => {}
                () = &mut shutdown => break,
            }
        }
        admin.draining.store(true, Ordering::Relaxed);
        drop(clients);
        let open = connections.len();
        tracing::info!(connections = open, deadline = ?limits.drain, "draining");
        let ended = tokio::time::timeout(limits.drain, graceful.shutdown()).await;
        let drained = if ended.is_ok() { Drained::Whole } else { Drained::Cut };
        if drained == Drained::Cut {
            live.cut_all();
        }
        connections.shutdown().await;
        sweeper.abort();
        admission.abort();
        operators.abort();
        credentials.abort();
        if let Some(memory) = memory {
            memory.abort();
        }
        drained
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
async fn sweep(live: Arc<Live>, leashes: Arc<Leashes>, limits: Limits) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        live.sweep(clock::now());
        leashes.sweep(clock::now(), limits.write_timeout);
    }
}
