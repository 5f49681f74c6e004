//! Admission control of the simulated gateways: a request waits in its gateway while all backends are
//! saturated. The queue is first come, first served, because the traffic has one tenant and one
//! priority class.

use super::Simulation;
use super::gateway::QueuedArrival;

impl Simulation<'_> {
    pub(super) fn handle_arrival(&mut self, number: usize) {
        self.arrived_requests += 1;
        let gateway = self.rng.usize(0..self.gateways.len());
        let arrived_at = self.now;
        let is_first = self.gateways[gateway].queue.is_empty();
        if !is_first || !self.dispatch(gateway, number, arrived_at) {
            self.gateways[gateway].queue.push_back(QueuedArrival { number, arrived_at });
        }
    }

    /// Sends the waiting requests of a gateway until all backends are saturated. Rejects those that
    /// have waited too long.
    pub(super) fn drain_queue(&mut self, gateway: usize) {
        let max_wait = self.setup.admission.map(|admission| admission.max_wait);
        while let Some(&QueuedArrival { number, arrived_at }) = self.gateways[gateway].queue.front()
        {
            if max_wait.is_some_and(|max_wait| self.now.saturating_sub(arrived_at) > max_wait) {
                self.end(number, None);
            } else if !self.dispatch(gateway, number, arrived_at) {
                return;
            }
            self.gateways[gateway].queue.pop_front();
        }
    }

    pub(super) fn queues_are_empty(&self) -> bool {
        self.gateways.iter().all(|gateway| gateway.queue.is_empty())
    }
}
