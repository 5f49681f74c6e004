//! Messages between gateways. They state which prompts a gateway sends, and its pending prompt tokens.

use std::collections::VecDeque;
use tokenweir_routing::mix;

/// A message of one gateway to another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PeerMessage {
    /// The gateway that sends the message.
    pub(crate) from: usize,
    /// The gateway that receives the message.
    pub(crate) to: usize,
    /// The backend that the message is about.
    pub(crate) backend: usize,
    /// Number of the request that the gateway sent to the backend. `None`: the message is about a first
    /// output or the end of a request.
    pub(crate) sent: Option<usize>,
    /// Number of the sender's prompt tokens that the backend still has to compute. It is the total and not
    /// the change, so the next message also makes up for a lost one.
    pub(crate) pending_tokens: u64,
}

/// The messages in transit. All have the same delay, so they arrive in the order in which they were sent.
#[derive(Debug)]
pub(crate) struct PeerMessages {
    in_transit: VecDeque<PeerMessage>,
    loss: f64,
    random: fastrand::Rng,
}

/// A number that is combined with the seed of a run to draw the lost messages. So losses do not change the
/// other random numbers of the run.
const LOSS_SEED: u64 = 0x6c6f_7373;

impl PeerMessages {
    /// Creates the state without messages in transit. `loss`: share of the messages that are lost,
    /// from 0 to 1.
    pub(crate) fn new(loss: f64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(mix(seed ^ LOSS_SEED));
        Self { in_transit: VecDeque::new(), loss, random }
    }

    /// Sends a message. Returns whether the message will arrive.
    pub(crate) fn send(&mut self, message: PeerMessage) -> bool {
        let arrives = self.random.f64() >= self.loss;
        if arrives {
            self.in_transit.push_back(message);
        }
        arrives
    }

    /// Removes and returns the oldest message in transit. `None`: there is none.
    pub(crate) fn receive(&mut self) -> Option<PeerMessage> {
        self.in_transit.pop_front()
    }
}
