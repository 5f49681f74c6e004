//! Simulated vLLM replicas: real sockets and vLLM's wire over a model of its engine. They answer
//! with made-up words at a GPU's pace, and their caches, queues and metrics behave as a real
//! replica's do. Made for tests, for load and for trying the gateway without a GPU.

pub mod blocks;
pub mod engine;
mod generation;
pub mod page;
mod replica;
mod request;
mod routes;
mod sequence;
mod server;
mod settings;
mod spans;
pub mod telemetry;
pub mod text;
pub mod wire;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_otlp::ExporterBuildError;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use self::replica::{Replica, Stats};
pub use self::settings::{Positive, Settings};
use self::spans::Spans;

/// Replicas whose ports are open but do not answer yet.
#[derive(Debug)]
pub struct Sim {
    listeners: Vec<TcpListener>,
    addrs: Vec<SocketAddr>,
    replicas: Vec<Arc<Replica>>,
}

/// The simulator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A port cannot be had.
    #[error("replica {number} cannot listen on {addr}")]
    Listen {
        /// The replica, from 0.
        number: u16,
        /// The address it should have.
        addr: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The ports that follow the first would go past the last.
    #[error("{replicas} replicas do not fit after port {first}")]
    NoPortsLeft {
        /// The first port.
        first: u16,
        /// How many replicas were asked for.
        replicas: u16,
    },
    /// The collector of spans has no such address.
    #[error("the span exporter could not be built")]
    Spans(#[from] ExporterBuildError),
}

impl Sim {
    /// Opens one port per replica: the one in the settings and those that follow it, or with port
    /// 0 any that are free. Says which address cannot be had. Needs a runtime, for spans.
    pub async fn bind(settings: &Settings) -> Result<Self, BindError> {
        let endpoint = settings.otlp_traces_endpoint.as_deref();
        let spans = endpoint.map(Spans::start).transpose()?.map(Arc::new);
        let mut sim = Self { listeners: Vec::new(), addrs: Vec::new(), replicas: Vec::new() };
        for number in 0..settings.replicas {
            let addr = settings.addr(number).ok_or(BindError::NoPortsLeft {
                first: settings.listen.port(),
                replicas: settings.replicas,
            })?;
            let failed = |source| BindError::Listen { number, addr, source };
            let listener = TcpListener::bind(addr).await.map_err(failed)?;
            sim.addrs.push(listener.local_addr().map_err(failed)?);
            sim.listeners.push(listener);
            sim.replicas.push(Replica::new(settings, number, spans.clone()));
        }
        Ok(sim)
    }

    /// The address of each replica.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// What happened in a replica so far. `None` if there is no such replica.
    pub fn stats(&self, replica: usize) -> Option<Stats> {
        self.replica(replica).map(|replica| replica.stats())
    }

    /// A replica, to be watched while [`run`](Self::run) has the simulator.
    pub fn replica(&self, replica: usize) -> Option<Arc<Replica>> {
        self.replicas.get(replica).cloned()
    }

    /// Answers until `shutdown` is ready. Then all connections are cut, as if the servers had been
    /// killed.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        for (listener, replica) in self.listeners.into_iter().zip(self.replicas) {
            let engine = Arc::clone(&replica);
            tasks.spawn(async move { engine.run().await });
            tasks.spawn(server::serve(listener, replica));
        }
        shutdown.await;
    }
}

#[cfg(test)]
mod tests;
