//! Turns of sessions that a gateway holds, for the routers of products that admit sessions.

use super::Simulation;
use super::event::SimulationEvent;
use super::gateway::QueuedArrival;
use crate::routers::{SessionGate, SessionTurn, Turn};
use std::time::Duration;

impl Simulation<'_> {
    /// Sends a request, or holds it as a turn of its session.
    pub(super) fn admit_or_hold(&mut self, gateway: usize, arrival: QueuedArrival) {
        let turn = self.turn(arrival.number);
        let gate = self.gateways[gateway].gate.as_mut();
        let Some((turn, gate)) = turn.zip(gate) else {
            return self.admit(gateway, arrival);
        };
        gate.enter(Turn {
            number: arrival.number,
            session: turn.session,
            tokens: self.requests[arrival.number].prompt_tokens.into(),
            arrived: arrival.arrived_at.as_secs_f64(),
        });
        self.release_turns(gateway);
    }

    /// The backend at which the session of a request must stay. `None`: the router picks one.
    pub(super) fn session_backend(&self, gateway: usize, number: usize) -> Option<usize> {
        let gate = self.gateways[gateway].gate.as_ref()?;
        gate.backend(self.turn(number)?.session)
    }

    /// Records the end of a turn with this number of output tokens, and sends the turns that now may pass.
    pub(super) fn end_turn(&mut self, number: usize, output: u32) {
        let gateway = self.in_flight[number].gateway;
        let turn = self.turn(number);
        let gate = self.gateways[gateway].gate.as_mut();
        let Some((turn, gate)) = turn.zip(gate) else {
            return;
        };
        let tokens = self.requests[number].prompt_tokens + output;
        gate.end(&turn, tokens.into(), self.now.as_secs_f64());
        self.release_turns(gateway);
    }

    pub(super) fn tick_gate(&mut self, gateway: usize) {
        if let Some(gate) = &mut self.gateways[gateway].gate {
            gate.tick();
        }
        self.release_turns(gateway);
        if !self.is_over() {
            self.schedule_gate_tick(gateway);
        }
    }

    pub(super) fn schedule_gate_tick(&mut self, gateway: usize) {
        let rule = self.gateways[gateway].gate.as_ref().map(SessionGate::rule);
        if let Some(rule) = rule {
            let at = self.now + Duration::from_secs_f64(rule.tick_seconds());
            self.schedule(at, SimulationEvent::GateTick(gateway));
        }
    }

    fn turn(&self, number: usize) -> Option<SessionTurn> {
        self.turns.get(number).copied().flatten()
    }

    fn release_turns(&mut self, gateway: usize) {
        let now = self.now.as_secs_f64();
        let next = |simulation: &mut Self| simulation.gateways[gateway].gate.as_mut()?.release(now);
        while let Some(turn) = next(self) {
            let number = turn.number;
            let arrived_at = Duration::from_secs_f64(turn.arrived);
            self.admit(gateway, QueuedArrival { number, arrived_at });
        }
    }
}
