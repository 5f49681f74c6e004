//! The messages between the gateways of a simulation. A prompt is pending until an engine has computed it.

use super::Simulation;
use super::event::{PeerMessage, SimulationEvent};

impl Simulation<'_> {
    /// Records that a request has output or has ended, so that its prompt is no longer pending.
    pub(super) fn end_pending(&mut self, number: usize) {
        let request = &mut self.in_flight[number];
        if !std::mem::take(&mut request.is_pending) {
            return;
        }
        let gateway = request.gateway;
        let backend = request.backend;
        if self.setup.cache_view.has_events() {
            let blocks = &self.requests[number].prompt.blocks;
            self.gateways[gateway].pending_prompts[backend].remove(blocks);
        }
        self.tell_peers(gateway, backend, None);
    }

    /// Sends a message of the gateway `from` to the other gateways: which request it has sent to the backend,
    /// and how many of its prompt tokens are pending there.
    pub(super) fn tell_peers(&mut self, from: usize, backend: usize, sent: Option<usize>) {
        if !self.setup.cache_view.has_exchange() {
            return;
        }
        let local_load = self.gateways[from].load_estimators[backend].local_load();
        let pending_tokens = local_load.backlog;
        for to in (0..self.gateways.len()).filter(|to| *to != from) {
            let message = PeerMessage {
                from,
                to,
                backend,
                sent,
                pending_tokens,
            };
            if self.loss_rng.f64() >= self.setup.exchange.loss {
                let at = self.now + self.setup.exchange.delay;
                self.schedule(at, SimulationEvent::PeerMessage(message));
            }
        }
    }

    pub(super) fn receive_peer_message(&mut self, message: PeerMessage) {
        let gateway = &mut self.gateways[message.to];
        let estimator = &gateway.load_estimators[message.backend];
        let now = self.setup.epoch + self.now;
        estimator.set_other_backlog(message.from, message.pending_tokens, now);
        if let Some(number) = message.sent {
            let prompt = &self.requests[number].prompt;
            estimator.on_peer_prompt(prompt);
            gateway.candidate_sampler.sent(prompt, message.backend);
        }
    }
}
