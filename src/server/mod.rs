//! Runs the client listener and the admin listener, and drains the gateway at shutdown.
//!
//! [`Server::run`] accepts connections until the shutdown signal. It then keeps accepting for
//! `drain_delay`, closes the client listener, waits up to `drain_timeout` for open connections to
//! end, and aborts the connections that are left.

mod accept_loop;
mod admin_listener;
mod connection_handler;
mod connection_limiter;
mod guarded_body;
mod http1;
mod http1_connection;
mod http2;
mod limits;
mod listener;
mod memory_monitor;
mod stream_executor;
mod write_buffer;
mod write_timeout;

use crate::admin::{self, Admin};
use crate::backend::pool::BackendPool;
use crate::backend::{HealthCheckSupervisor, health_checker};
use crate::proxy::ProxyContext;
use crate::telemetry::Telemetry;
use accept_loop::AcceptLoop;
use arc_swap::ArcSwap;
use connection_handler::ConnectionHandler;
pub use connection_limiter::ConnectionLimiter;
pub use limits::ServerLimits;
pub use listener::{BindError, BoundSocket, bind_listener, bind_socket};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::{AbortRegistry, ExchangeRegistry};
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_net::tls::{Acceptor, Credentials};
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

/// A gateway with both listeners bound, before it serves.
pub struct Server {
    /// Accepts connections of clients.
    pub client_listener: TcpListener,
    /// Accepts connections of operators.
    pub admin_listener: TcpListener,
    /// Serves requests. Each request uses the context that is current when the request arrives.
    pub gateway: Arc<ArcSwap<ProxyContext>>,
    /// The state behind the admin listener.
    pub admin: Arc<Admin>,
    /// The limits. Each connection uses the limits that are current when it is accepted.
    pub limits: Arc<ArcSwap<ServerLimits>>,
    /// Counts and limits the connections of clients.
    pub connection_limiter: Arc<ConnectionLimiter>,
    /// TLS of both listeners.
    pub tls: ServerTls,
}

/// TLS of both listeners.
#[derive(Default)]
pub struct ServerTls {
    /// The TLS acceptor of the client listener. `None`: plain TCP.
    pub client_acceptor: Option<Acceptor>,
    /// The TLS acceptor of the admin listener. `None`: plain TCP.
    pub admin_acceptor: Option<Acceptor>,
    /// All certificates, keys and certificate authorities that are reloaded from files.
    pub credentials: Arc<Credentials>,
}

/// The result of [`Server::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every connection ended before the deadline.
    Whole,
    /// Some connections were aborted at the deadline.
    DeadlineExceeded,
    /// An essential task ended. Open requests were drained.
    TaskFailed(BackgroundTask),
}

/// Time between two log messages about the progress of a drain.
const DRAIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two sweeps over the open streams.
const STREAM_SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl Server {
    /// Serves until `shutdown` completes or the admin listener fails, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> DrainOutcome {
        let Self {
            client_listener,
            admin_listener,
            gateway,
            admin,
            limits,
            connection_limiter,
            tls,
        } = self;
        let initial_limits = **limits.load();
        listener::configure_keepalive(&client_listener, initial_limits.write_timeout);
        let router = admin::router(admin.clone());
        listener::configure_keepalive(&admin_listener, initial_limits.write_timeout);
        let serving = admin_listener::serve(
            admin_listener,
            tls.admin_acceptor,
            router,
            initial_limits,
            connection_limiter.clone(),
        );
        let mut admin_task = supervise::spawn_essential(BackgroundTask::AdminListener, serving);
        let open_streams = gateway.load().open_streams.clone();
        let abort_registry = AbortRegistry::new(clock::now());
        let overload_guard = gateway.load().overload_guard.clone();
        let admission = gateway.load().admission.clone();
        let (swept_streams, swept_registry, swept_limits) =
            (open_streams.clone(), abort_registry.clone(), limits.clone());
        let mut background = vec![
            supervise::spawn(BackgroundTask::StallSweep, move || {
                sweep_streams(swept_streams.clone(), swept_registry.clone(), swept_limits.clone())
            }),
            supervise::spawn(BackgroundTask::Certificates, move || tls.credentials.clone().run()),
            supervise::spawn(BackgroundTask::Admission, move || admission.clone().run()),
        ];
        background.extend(initial_limits.max_memory_bytes.map(|max_bytes| {
            supervise::spawn(BackgroundTask::MemoryWatch, move || {
                memory_monitor::monitor_memory(max_bytes, overload_guard.clone())
            })
        }));
        let is_draining = admin.draining.clone();
        let handler = ConnectionHandler::new(
            tls.client_acceptor,
            limits.clone(),
            connection_limiter.clone(),
            abort_registry,
            gateway,
            is_draining,
        );
        let mut accept_loop = AcceptLoop::new(client_listener, handler, connection_limiter);
        let mut failed_task = None;
        let end = async {
            tokio::select! {
                () = shutdown => {}
                task = admin_task.wait_for_end() => failed_task = Some(task),
            }
        };
        accept_loop.accept_until(end).await;
        admin.draining.store(true, Ordering::Relaxed);
        let ServerLimits { drain_delay, drain_timeout, .. } = **limits.load();
        tracing::info!(
            open = open_streams.open(),
            ?drain_delay,
            deadline = ?drain_timeout,
            "draining: waiting for open requests to end"
        );
        let remaining_streams = open_streams.clone();
        background.push(supervise::spawn(BackgroundTask::DrainProgress, move || {
            log_drain_progress(remaining_streams.clone())
        }));
        accept_loop.accept_until(tokio::time::sleep(drain_delay)).await;
        let mut connections = accept_loop.stop_accepting().await;
        let drained = tokio::time::timeout(drain_timeout, connections.drain()).await;
        let outcome =
            if drained.is_ok() { DrainOutcome::Whole } else { DrainOutcome::DeadlineExceeded };
        if outcome == DrainOutcome::DeadlineExceeded {
            open_streams.begin_shutdown();
        }
        connections.abort().await;
        failed_task.map_or(outcome, DrainOutcome::TaskFailed)
    }
}

/// Logs the number of open requests every [`DRAIN_PROGRESS_INTERVAL`].
async fn log_drain_progress(open_streams: Arc<ExchangeRegistry>) {
    loop {
        tokio::time::sleep(DRAIN_PROGRESS_INTERVAL).await;
        tracing::info!(open = open_streams.open(), "still draining");
    }
}

/// Starts the health check of each backend. Waits until each backend was checked once, for at
/// most `timeout`. The health checks end when the returned supervisor is dropped.
pub async fn start_health_checks(
    pool: &Arc<BackendPool>,
    client: &HttpClient,
    settings: health_checker::ScrapeSettings,
    telemetry: &Arc<Telemetry>,
    timeout: Duration,
) -> HealthCheckSupervisor {
    let supervisor =
        HealthCheckSupervisor::new(pool.clone(), client.clone(), settings, telemetry.clone());
    supervisor.wait_first_checks(timeout).await;
    supervisor
}

/// Finds stalled streams, and aborts streams whose client reads nothing for `write_timeout`.
async fn sweep_streams(
    open_streams: Arc<ExchangeRegistry>,
    abort_registry: Arc<AbortRegistry>,
    limits: Arc<ArcSwap<ServerLimits>>,
) {
    let mut ticks = tokio::time::interval(STREAM_SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        open_streams.sweep(clock::now());
        abort_registry.sweep(clock::now(), limits.load().write_timeout);
    }
}
