//! Messages between gateways: the prompts that they send and their pending prompt tokens.

use std::collections::VecDeque;
use std::time::Duration;
use tokenweir_core::routing::mix;

/// A message of one gateway to another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PeerMessage {
    /// The gateway that sends the message.
    pub(crate) from: usize,
    /// The gateway that receives it.
    pub(crate) to: usize,
    /// The backend that it is about.
    pub(crate) backend: usize,
    /// Number of the request that was sent to the backend. `None`: a first output or an end.
    pub(crate) sent: Option<usize>,
    /// Prompt tokens of the sender that the backend still has to compute. An absolute number, so
    /// the next message repairs a lost one.
    pub(crate) pending_tokens: f64,
}

/// The messages in transit. All have the same delay, so they arrive in the order of sending.
#[derive(Debug)]
pub(crate) struct PeerMessages {
    in_transit: VecDeque<PeerMessage>,
    loss: f64,
    random: fastrand::Rng,
}

/// The pending prompt tokens that the other gateways told one gateway.
#[derive(Debug)]
pub(crate) struct PeerBacklogs {
    /// By sender and position of the backend: tokens, and the time of arrival.
    backlogs: Vec<Vec<(f64, Duration)>>,
}

/// Mixed with the seed of a run, so that the losses do not change its other random numbers.
const LOSS_SEED: u64 = 0x6c6f_7373;

impl PeerMessages {
    /// No message in transit. `loss`: share of the messages that are lost.
    pub(crate) fn new(loss: f64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(mix(seed ^ LOSS_SEED));
        Self { in_transit: VecDeque::new(), loss, random }
    }

    /// Sends a message. Returns whether it will arrive.
    pub(crate) fn send(&mut self, message: PeerMessage) -> bool {
        let arrives = self.random.f64() >= self.loss;
        if arrives {
            self.in_transit.push_back(message);
        }
        arrives
    }

    /// The oldest message in transit.
    pub(crate) fn receive(&mut self) -> Option<PeerMessage> {
        self.in_transit.pop_front()
    }
}

impl PeerBacklogs {
    /// Nothing told yet.
    pub(crate) fn new(gateways: usize, backends: usize) -> Self {
        Self { backlogs: vec![vec![(0.0, Duration::ZERO); backends]; gateways] }
    }

    /// A message arrives.
    pub(crate) fn receive(&mut self, message: &PeerMessage, now: Duration) {
        self.backlogs[message.from][message.backend] = (message.pending_tokens, now);
    }

    /// Prompt tokens of the other gateways that a backend still has to compute, if it computes one
    /// token in `per_token` seconds. The number falls with time, so a lost message about a first
    /// output has no lasting effect.
    pub(crate) fn tokens(&self, backend: usize, per_token: f64, now: Duration) -> f64 {
        let remaining = |backlogs: &Vec<(f64, Duration)>| {
            let (tokens, at) = backlogs[backend];
            let computed = now.saturating_sub(at).as_secs_f64() / per_token.max(f64::MIN_POSITIVE);
            (tokens - computed).max(0.0)
        };
        self.backlogs.iter().map(remaining).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_tokens_are_computed_at_the_speed_of_the_backend_and_replaced_by_the_next_message() {
        let mut backlogs = PeerBacklogs::new(3, 2);
        let told = |from, pending_tokens| PeerMessage {
            from,
            to: 0,
            backend: 1,
            sent: None,
            pending_tokens,
        };
        backlogs.receive(&told(1, 1_000.0), Duration::from_secs(1));
        backlogs.receive(&told(2, 400.0), Duration::from_secs(1));
        let tokens = |backlogs: &PeerBacklogs, millis| {
            backlogs.tokens(1, 0.001, Duration::from_millis(millis)).round() as u32
        };
        assert_eq!((tokens(&backlogs, 1_000), tokens(&backlogs, 1_500)), (1_400, 500));
        assert_eq!(tokens(&backlogs, 9_000), 0);
        backlogs.receive(&told(1, 0.0), Duration::from_secs(1));
        assert_eq!(tokens(&backlogs, 1_000), 400);
    }
}
