//! From a valid configuration to a running gateway, and back: bind both ports, look at the
//! replicas, serve, and on the signal stop accepting, let streams end, cut what is left, flush.

mod guard;
mod listener;

use crate::admin::{self, Admin};
use crate::backend::client::Client;
use crate::backend::pool::Pool;
use crate::backend::{Keeper, watch};
use crate::clock;
use crate::error::Error;
use crate::observe::Live;
use crate::proxy::{Answer, Gateway, handle};
use crate::telemetry::Telemetry;
use futures_util::FutureExt;
use guard::{Answered, Guarded};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
pub use listener::{BindError, bind};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Limits on what a client may send, and how long it is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest request head in bytes.
    pub head: usize,
    /// Most headers.
    pub headers: usize,
    /// Longest wait for a request head on a connection.
    pub head_timeout: Duration,
    /// Longest wait for streams to end once the gateway is told to stop.
    pub drain: Duration,
}

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
        let Self { clients, operators, gateway, admin, limits } = self;
        let operators = tokio::spawn(serve_operators(operators, admin::router(admin.clone())));
        let sweeper = tokio::spawn(sweep(gateway.live.clone()));
        let admission = tokio::spawn(gateway.admission.clone().run());
        let live = gateway.live.clone();
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let http = http(&limits);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                (stream, peer) = listener::accept(&clients) => {
                    let watcher = graceful.watcher();
                    connections.spawn(serve(http.clone(), stream, peer, watcher, gateway.clone()));
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

/// Looks again and again for streams that have fallen silent.
async fn sweep(live: Arc<Live>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        live.sweep(clock::now());
    }
}

fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(limits.headers)
        .max_buf_size(limits.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1_000)
        .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(16 << 20)
        .keep_alive_interval(Some(Duration::from_secs(20)));
    builder
}

/// Serves one connection until it ends.
async fn serve(
    http: auto::Builder<TokioExecutor>,
    stream: TcpStream,
    peer: SocketAddr,
    watcher: Watcher,
    gateway: Arc<Gateway>,
) {
    let answered = Answered::default();
    let stream = Guarded::new(stream, answered.clone());
    let service =
        service_fn(move |request| answer(gateway.clone(), peer, request, answered.clone()));
    let connection = http.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// A panic ends one request, never the process.
async fn answer(
    gateway: Arc<Gateway>,
    peer: SocketAddr,
    request: Request<Incoming>,
    answered: Answered,
) -> Result<Response<Answer>, Infallible> {
    let serving = AssertUnwindSafe(handle(&gateway, peer.ip(), request)).catch_unwind();
    let response = serving.await.unwrap_or_else(|_| {
        tracing::error!(%peer, "a request made the gateway panic");
        Error::Internal.response().map(Either::Left)
    });
    answered.tell();
    Ok(response)
}

async fn serve_operators(listener: TcpListener, router: axum::Router) {
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the admin port failed");
    }
}
