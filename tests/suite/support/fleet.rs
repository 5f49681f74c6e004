//! A gateway in front of simulated replicas.

use super::gateway::{Running, Setup, start_with};
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_core::dialect::Load;
use tokenweir_sim::{Replica, Settings, Sim};
use tokio::task::JoinHandle;

/// A gateway and its replicas.
pub(crate) struct Fleet {
    /// The gateway.
    pub gateway: Running,
    /// The replicas.
    pub replicas: Vec<Arc<Replica>>,
    /// Where they are.
    pub replica_addrs: Vec<SocketAddr>,
    serving: JoinHandle<()>,
}

impl Fleet {
    pub(crate) async fn start(count: u16) -> Self {
        Self::start_with(count, Setup::default()).await
    }

    /// A gateway that differs from the default.
    pub(crate) async fn start_with(count: u16, setup: Setup) -> Self {
        let settings = Settings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            replicas: count,
            ..Settings::default()
        };
        let sim = Sim::bind(&settings).await.unwrap();
        let replica_addrs = sim.addrs().to_vec();
        let replicas = (0..usize::from(count)).map(|index| sim.replica(index).unwrap()).collect();
        let serving = tokio::spawn(sim.run(std::future::pending()));
        let gateway = start_with(&replica_addrs, setup).await;
        Self { gateway, replicas, replica_addrs, serving }
    }

    /// Requests that the engines were told to give up.
    pub(crate) fn aborts(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.stats().aborts).sum()
    }

    /// Prompt tokens that the engines have counted.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        let load = |replica: &Arc<Replica>| Load::read(replica.metrics().as_bytes());
        self.replicas.iter().filter_map(|replica| load(replica).prompt_tokens).sum::<f64>() as u64
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
