//! A gateway with simulated backends.

use super::test_gateway::{Running, Setup, start_with};
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_sim::{SimulatedBackend, Simulator, SimulatorSettings};
use tokio::task::JoinHandle;

/// A gateway and its simulated backends.
pub(crate) struct Fleet {
    pub gateway: Running,
    pub backends: Vec<Arc<SimulatedBackend>>,
    pub backend_addrs: Vec<SocketAddr>,
    /// The task that runs the simulated backends. When it ends, all their connections close.
    pub serving: JoinHandle<()>,
}

impl Fleet {
    pub(crate) async fn start(count: u16) -> Self {
        Self::start_with(count, Setup::default()).await
    }

    /// Starts this many simulated backends, and a gateway with the settings `setup`.
    pub(crate) async fn start_with(count: u16, setup: Setup) -> Self {
        let settings = SimulatorSettings {
            backends: count,
            ..SimulatorSettings::default()
        };
        Self::simulate(settings, setup).await
    }

    /// Starts simulated backends with the settings `settings` at free ports, and a gateway with the settings
    /// `setup`.
    pub(crate) async fn simulate(settings: SimulatorSettings, setup: Setup) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let sim = Simulator::bind(&SimulatorSettings { listen, ..settings })
            .await
            .unwrap();
        let backend_addrs = sim.addrs().to_vec();
        let backends = (0..backend_addrs.len())
            .map(|index| sim.backend(index).unwrap())
            .collect();
        let serving = tokio::spawn(sim.run(std::future::pending()));
        let gateway = start_with(&backend_addrs, setup).await;
        Self {
            gateway,
            backends,
            backend_addrs,
            serving,
        }
    }

    pub(crate) fn sum(&self, value: fn(&EngineLoad) -> Option<f64>) -> f64 {
        let loads = self.backends.iter().map(|backend| backend.metrics());
        loads
            .filter_map(|page| value(&EngineLoad::read(page.as_bytes())))
            .sum()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
