//! Scrapes of the metrics of the simulated engines.

use super::Simulation;
use super::event::SimulationEvent;
use super::gateway::SimulatedGateway;
use crate::routers::SessionGate;
use tokenweir_routing::LoadReport;

impl Simulation<'_> {
    pub(super) fn scrape(&mut self, gateway: usize, backend: usize) {
        self.read_metrics(gateway, backend);
        self.drain_queue(gateway);
        // Scrapes stop after the last arrival. Otherwise the simulation would never end.
        if !self.is_over() {
            let next = self.now + self.scrape_interval;
            self.schedule(next, SimulationEvent::Scrape(gateway, backend));
        }
    }

    /// Whether all requests have arrived and no request waits in a gateway.
    pub(super) fn is_over(&self) -> bool {
        let is_idle = |gateway: &SimulatedGateway| {
            let holds_none = gateway.gate.as_ref().is_none_or(SessionGate::is_empty);
            holds_none && gateway.queue.is_empty()
        };
        self.arrived_requests == self.requests.len() && self.gateways.iter().all(is_idle)
    }

    fn read_metrics(&mut self, gateway: usize, backend: usize) {
        let state = &self.engines[backend];
        if state.is_down {
            return;
        }
        let load = &state.reported_load;
        let report = LoadReport {
            kv_usage: Some(load.kv_usage),
            waiting: load.waiting as f64,
            running: load.running as f64,
            capacity: Some(state.spec.capacity().into()),
            tokens: Some((load.prompt_tokens + load.generation_tokens) as f64),
            token_gaps: Some(state.token_gaps),
        };
        let scraper = &mut self.gateways[gateway];
        let now = self.setup.epoch + self.now;
        let estimator = &scraper.load_estimators[backend];
        estimator.on_report(&report, &estimator.local_load(), now);
        scraper.update_load_hint(backend, now);
        scraper.reported_loads[backend] = report;
        scraper.reported_adapters[backend].clone_from(&state.reported_adapters);
        let health = &mut scraper.health[backend];
        if std::mem::take(&mut health.is_down) {
            // The counters of the engine started from 0 again, which shows the restart.
            estimator.on_restart();
            health.breaker.on_recovery(now);
        }
    }
}
