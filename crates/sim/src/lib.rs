//! Simulated vLLM backends: vLLM's HTTP API on real sockets, with a model of its engine. They generate made-up
//! words at the speed of a GPU. Their caches, queues and metrics behave as in vLLM. They serve tests, load
//! tests and trials of the gateway without a GPU.

pub mod blocks;
mod sequence;
pub mod text;

pub mod engine;
pub mod wire;

mod generation_progress;
pub mod telemetry;

mod positive_number;

mod faults;

mod settings;

mod simulated_backend;

mod generation;

mod http;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_otlp::ExporterBuildError;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use self::faults::SimulatedFaults;
pub use self::positive_number::PositiveNumber;
pub use self::settings::SimulatorSettings;
pub use self::simulated_backend::{SimulatedBackend, SimulatedBackendStats};
pub use self::telemetry::KvEventPorts;
use self::telemetry::{KvEventPublisher, RequestSpanExporter};

/// Simulated backends with bound listeners. They do not respond before [`run`](Self::run).
#[derive(Debug)]
pub struct Simulator {
    listeners: Vec<BackendListeners>,
    addrs: Vec<SocketAddr>,
    backends: Vec<Arc<SimulatedBackend>>,
}

#[derive(Debug)]
struct BackendListeners {
    http: TcpListener,
    /// The listeners for KV events. `None`: no KV events are published.
    kv_events: Option<KvEventListeners>,
}

#[derive(Debug)]
struct KvEventListeners {
    live: TcpListener,
    replay: TcpListener,
}

/// Why the simulator could not start.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorBindError {
    /// The listener of a backend could not be bound.
    #[error("backend {number} cannot listen on {addr}")]
    Listen {
        /// Index of the backend, from 0.
        number: u16,
        /// The address of the backend.
        addr: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The ports from the first port to 65535 do not suffice for all backends.
    #[error("there are no ports for {backends} backends from port {first} on: choose a lower port")]
    NoPortsLeft {
        /// The port of the first backend.
        first: u16,
        /// The requested number of backends.
        backends: u16,
    },
    /// The exporter to the span collector could not be built, for example because of an invalid
    /// URL.
    #[error("the exporter to the OTLP collector could not be built: check the URL")]
    Spans(#[from] ExporterBuildError),
}

impl Simulator {
    /// Binds the listeners of the backends to consecutive ports, from the configured port on. With port 0, the
    /// operating system chooses every port. The error names the address that could not be bound. Must be called
    /// in a Tokio runtime, because the span exporter needs one.
    pub async fn bind(settings: &SimulatorSettings) -> Result<Self, SimulatorBindError> {
        let endpoint = settings.otlp_traces_endpoint.as_deref();
        let spans = endpoint
            .map(RequestSpanExporter::start)
            .transpose()?
            .map(Arc::new);
        let mut sim = Self {
            listeners: Vec::new(),
            addrs: Vec::new(),
            backends: Vec::new(),
        };
        for number in 0..settings.backends {
            let (http, addr) = listen(settings, settings.listen.port(), number).await?;
            let mut kv_events = None;
            let mut publisher = None;
            if let Some(first) = settings.kv_events_port {
                let (live, live_addr) = listen(settings, first, number).await?;
                let first = settings.kv_events_replay_port;
                let (replay, replay_addr) = listen(settings, first, number).await?;
                let ports = KvEventPorts {
                    live: live_addr.port(),
                    replay: replay_addr.port(),
                };
                publisher = Some(KvEventPublisher::new(settings.block_size, ports));
                kv_events = Some(KvEventListeners { live, replay });
            }
            sim.addrs.push(addr);
            sim.listeners.push(BackendListeners { http, kv_events });
            sim.backends.push(SimulatedBackend::new(
                settings,
                number,
                spans.clone(),
                publisher,
            ));
        }
        Ok(sim)
    }

    /// The address of the listener of each backend.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns the backend with an index, so that a test can observe it while [`run`](Self::run) owns the
    /// simulator. `None`: there is no such backend.
    pub fn backend(&self, index: usize) -> Option<Arc<SimulatedBackend>> {
        self.backends.get(index).cloned()
    }

    /// Serves requests until `shutdown` completes. All connections are then closed at once, without further
    /// bytes of open responses, as if the backends had been killed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        for (listeners, backend) in self.listeners.into_iter().zip(self.backends) {
            let engine = Arc::clone(&backend);
            tasks.spawn(async move { engine.run().await });
            let fail_after = backend.settings.faults.fail_after;
            let serve = async move {
                tokio::join!(
                    http::serve(listeners.http, Arc::clone(&backend)),
                    serve_kv_events(listeners.kv_events, &backend)
                );
            };
            tasks.spawn(async move {
                match fail_after {
                    // At this time, the future of the server is dropped, which closes its listeners and
                    // connections.
                    Some(time) => drop(tokio::time::timeout(*time, serve).await),
                    None => serve.await,
                }
            });
        }
        shutdown.await;
    }
}

/// Binds a listener of a backend. `first`: the port of the first backend.
async fn listen(
    settings: &SimulatorSettings,
    first: u16,
    number: u16,
) -> Result<(TcpListener, SocketAddr), SimulatorBindError> {
    let backends = settings.backends;
    let no_ports_left = SimulatorBindError::NoPortsLeft { first, backends };
    let addr = settings.addr(first, number).ok_or(no_ports_left)?;
    let failed = |source| SimulatorBindError::Listen {
        number,
        addr,
        source,
    };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    Ok((listener, addr))
}

/// Serves subscribers of KV events until the future is dropped. From the time at which the backend hangs,
/// serves none.
async fn serve_kv_events(listeners: Option<KvEventListeners>, backend: &SimulatedBackend) {
    let Some(KvEventListeners { live, replay }) = listeners else {
        return;
    };
    let Some(kv_events) = &backend.kv_events else {
        return;
    };
    let mut serve = std::pin::pin!(kv_events.serve(live, replay));
    let hangs = async {
        match backend.settings.faults.hang_after {
            Some(time) => tokio::time::sleep(*time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = &mut serve => {}
        () = hangs => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
