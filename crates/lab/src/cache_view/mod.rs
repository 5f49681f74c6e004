//! The knowledge of a gateway about the prefix caches of the backends: the prompts that it sent, the
//! KV events of the engines, or the messages of the other gateways.

mod peer_messages;
mod pending_prompts;
mod published_caches;

pub(super) use peer_messages::{PeerMessage, PeerMessages};
pub(super) use pending_prompts::PendingPrompts;
pub(super) use published_caches::PublishedCaches;

use serde::Serialize;
use std::str::FromStr;
use std::time::Duration;

/// Source of the cached tokens of a prompt, for the policies of the gateway. The reimplementations
/// of other routers keep their own sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheView {
    /// The prompts that the gateway sent, as in the gateway without KV events.
    #[default]
    Approximate,
    /// The contents of the caches as KV events publish them, and the own prompts without output.
    Exact,
    /// The prompts of all gateways, which tell each other what they send. They also tell the
    /// pending prompt tokens.
    Exchange,
}

/// The exchange between gateways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExchangeSettings {
    /// Time from sending a message to its arrival.
    pub delay: Duration,
    /// Share of the messages that are lost, from 0 to 1.
    pub loss: f64,
}

impl Default for ExchangeSettings {
    fn default() -> Self {
        Self { delay: DEFAULT_EXCHANGE_DELAY, loss: 0.0 }
    }
}

/// Default delay of a message: two hops in a data centre and the batching of a message bus.
pub const DEFAULT_EXCHANGE_DELAY: Duration = Duration::from_millis(5);
/// Time from the end of an engine step to the arrival of its KV events. On vLLM 0.32 the median was
/// 0.5 to 6 ms after the timestamp of the event.
pub(super) const EVENT_DELAY: Duration = Duration::from_millis(1);

impl CacheView {
    /// All views.
    pub const ALL: [Self; 3] = [Self::Approximate, Self::Exact, Self::Exchange];

    /// Name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Approximate => "approximate",
            Self::Exact => "exact",
            Self::Exchange => "exchange",
        }
    }
}

impl FromStr for CacheView {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let view = Self::ALL.into_iter().find(|view| view.name() == text);
        view.ok_or("expected approximate, exact or exchange")
    }
}
