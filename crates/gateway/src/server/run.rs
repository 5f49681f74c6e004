//! Runs the client listener and the admin listener until the shutdown signal, and then drains the
//! gateway.

use super::accept_loop::AcceptLoop;
use super::connection::handler::ConnectionHandler;
use super::connection::state::ServerState;
use super::limits::ServerLimits;
use super::tls::ServerTls;
use super::{admin_listener, listener, memory_monitor};
use crate::proxy::ProxyState;
use crate::proxy::access::RevocationSweep;
use crate::proxy::extensions::Extension;
use axum::Router;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_net::tls::Credentials;
use tokenweir_protocol::clock;
use tokenweir_protocol::units;
use tokenweir_request::observe::ExchangeRegistry;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior};

/// A server with bound listeners that does not serve yet.
pub struct Server {
    /// Accepts connections of clients.
    pub client_listener: TcpListener,
    /// Accepts connections of operators.
    pub admin_listener: TcpListener,
    /// Proxy, limits and TLS, which reloads replace.
    pub state: Arc<ServerState>,
    /// Serves the requests of operators.
    pub admin_router: Router,
    /// The TLS settings of both listeners.
    pub tls: ServerTls,
}

/// The result of the drain at the end of the gateway, as [`Server::run`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// All client connections ended before the deadline of the drain.
    Whole,
    /// Some client connections were open at the deadline of the drain, and were aborted.
    DeadlineExceeded,
    /// The server stopped because this essential task ended. The gateway was drained first.
    TaskFailed(BackgroundTask),
}

/// Time between two log messages about the progress of a drain.
const DRAIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two sweeps. A sweep examines all open streams, for example to detect stalls.
const STREAM_SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl Server {
    /// Serves until `shutdown` completes or the task of the admin listener ends, and then drains the gateway.
    /// Returns the result of the drain.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> DrainOutcome {
        let Self {
            client_listener,
            admin_listener,
            state,
            admin_router,
            tls,
        } = self;
        let initial_limits = **state.limits.load();
        let proxy = state.proxy.clone();
        let limiter = state.connection_limiter.clone();
        listener::configure_keepalive(&client_listener, initial_limits.write_timeout);
        listener::configure_keepalive(&admin_listener, initial_limits.write_timeout);
        let serving = admin_listener::serve(
            admin_listener,
            tls.admin_acceptor,
            admin_router,
            initial_limits,
            limiter.clone(),
        );
        let mut admin_task = supervise::spawn_once(BackgroundTask::ADMIN_LISTENER, serving);
        let mut background = start_background_tasks(&state, tls.credentials);
        let handler = ConnectionHandler::new(state.clone(), tls.client_acceptor);
        let mut accept_loop = AcceptLoop::new(client_listener, handler, limiter);
        let mut failed_task = None;
        let stop_signal = async {
            tokio::select! {
                () = shutdown => {}
                () = admin_task.wait_for_end() => failed_task = Some(BackgroundTask::ADMIN_LISTENER),
            }
        };
        accept_loop.accept_until(stop_signal).await;
        if let Some(task) = failed_task {
            tracing::error!(
                task = task.as_str(),
                "an essential task ended: the gateway drains and exits with an error"
            );
        }
        let limits = **state.limits.load();
        let outcome = drain(accept_loop, &proxy, limits, &mut background).await;
        failed_task.map_or(outcome, DrainOutcome::TaskFailed)
    }
}

/// Drains the gateway. Accepts connections for the drain delay, then waits until open streams have ended, but
/// not longer than the drain timeout, and closes the connections.
async fn drain(
    mut accept_loop: AcceptLoop,
    proxy: &ProxyState,
    limits: ServerLimits,
    background: &mut Vec<SupervisedTask>,
) -> DrainOutcome {
    proxy.draining.set(true);
    let open_streams = &proxy.open_streams;
    let ServerLimits {
        drain_delay,
        drain_timeout,
        ..
    } = limits;
    tracing::info!(
        open = open_streams.open(),
        drain_delay = %units::duration::format(drain_delay),
        deadline = %units::duration::format(drain_timeout),
        "draining: waiting for open requests to end"
    );
    let remaining_streams = open_streams.clone();
    background.push(supervise::spawn(
        BackgroundTask::DRAIN_PROGRESS,
        move || log_drain_progress(remaining_streams.clone()),
    ));
    accept_loop
        .accept_until(tokio::time::sleep(drain_delay))
        .await;
    open_streams.close_tunnels();
    let mut connections = accept_loop.stop_accepting().await;
    let ended = async { while connections.join_next().await.is_some() {} };
    let drained = tokio::time::timeout(drain_timeout, ended).await;
    let outcome = if drained.is_ok() {
        DrainOutcome::Whole
    } else {
        DrainOutcome::DeadlineExceeded
    };
    if outcome == DrainOutcome::DeadlineExceeded {
        open_streams.begin_shutdown();
    }
    connections.shutdown().await;
    for ending in proxy.extensions.iter().filter_map(Extension::shutdown) {
        ending.await;
    }
    outcome
}

/// Starts the background tasks that run as long as the server. Dropping the returned value ends a task.
fn start_background_tasks(
    state: &Arc<ServerState>,
    credentials: Arc<Credentials>,
) -> Vec<SupervisedTask> {
    let proxy = state.proxy.clone();
    let swept_state = state.clone();
    let mut tasks = vec![
        supervise::spawn(BackgroundTask::STALL_SWEEP, move || {
            sweep_streams(swept_state.clone())
        }),
        supervise::spawn(BackgroundTask::CERTIFICATES, move || {
            credentials.clone().run()
        }),
        supervise::spawn(BackgroundTask::ADMISSION, move || {
            proxy.admission.clone().run()
        }),
    ];
    let overload_guard = state.proxy.overload_guard.clone();
    tasks.extend(state.limits.load().max_memory_bytes.map(|max_bytes| {
        supervise::spawn(BackgroundTask::MEMORY_WATCH, move || {
            memory_monitor::monitor_memory(max_bytes, overload_guard.clone())
        })
    }));
    tasks
}

/// Logs the number of open requests every [`DRAIN_PROGRESS_INTERVAL`].
async fn log_drain_progress(open_streams: Arc<ExchangeRegistry>) {
    loop {
        tokio::time::sleep(DRAIN_PROGRESS_INTERVAL).await;
        tracing::info!(
            open = open_streams.open(),
            "still draining: waiting for open requests"
        );
    }
}

/// In an endless loop, detects stalled streams and streams whose API key was removed, and calls the sweeps of
/// options. The delay of the loop's timer also shows how late the runtime runs tasks.
async fn sweep_streams(state: Arc<ServerState>) {
    let mut ticks = tokio::time::interval(STREAM_SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let proxy = &state.proxy;
    let mut revocation = RevocationSweep::new(&proxy.access);
    loop {
        let delay = next_tick_delay(&mut ticks).await;
        proxy.telemetry.on_scheduling_delay(delay);
        revocation.sweep(&proxy.access, &proxy.open_streams, clock::now());
        proxy.open_streams.sweep(clock::now());
        proxy
            .extensions
            .iter()
            .for_each(|value| value.sweep(clock::now()));
        state
            .abort_registry
            .sweep(clock::now(), state.limits.load().write_timeout);
    }
}

/// Waits for the next tick. Returns its delay: the time for which no worker thread of the runtime was free for
/// the task.
async fn next_tick_delay(ticks: &mut Interval) -> Duration {
    let due = ticks.tick().await.into_std();
    clock::now().saturating_duration_since(due)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocked_runtime_delays_ticks() {
        let mut ticks = tokio::time::interval(STREAM_SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        assert_eq!(next_tick_delay(&mut ticks).await, Duration::ZERO);
        assert_eq!(next_tick_delay(&mut ticks).await, Duration::ZERO);
        // While the runtime's time advances, no task runs.
        let blocked = Duration::from_secs(2);
        tokio::time::advance(STREAM_SWEEP_INTERVAL + blocked).await;
        assert_eq!(next_tick_delay(&mut ticks).await, blocked);
        assert_eq!(next_tick_delay(&mut ticks).await, Duration::ZERO);
    }
}
