//! The knowledge of a gateway about the prefix caches of the backends. Its sources are the prompts that it
//! sent, the KV events of the engines, and the messages of other gateways.

mod block_counts;
mod known_texts;
mod published_cache;

pub(super) use block_counts::BlockCounts;
pub(super) use known_texts::KnownTexts;
pub(super) use published_cache::PublishedCache;

use std::str::FromStr;
use std::time::Duration;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The source from which the policies of the gateway get the number of cached tokens of a prompt. The
    /// reimplementations of other routers use their own sources.
    #[derive(Default)]
    pub enum CacheView {
        /// The prompts that the gateway sent, as in a real gateway without KV events.
        #[default]
        Approximate = "approximate",
        /// KV events as the real gateway uses them. They count only for texts that the gateway itself has
        /// sent, because it learns from its own responses which text a block has. Prompts of the gateway
        /// that have no output yet count as cached. For any other text, the gateway estimates from the
        /// prompts that it sent.
        Events = "events",
        /// The true contents of the caches, plus the gateway's own prompts without output. KV events can show
        /// no more than this.
        Exact = "exact",
        /// The prompts of all gateways. The gateways tell each other which prompts they send, and their
        /// pending prompt tokens.
        Exchange = "exchange",
        /// [`CacheView::Events`], but for other texts the gateway estimates from the prompts of all
        /// gateways. The gateways also tell each other their pending prompt tokens.
        EventsAndExchange = "events+exchange",
        /// [`CacheView::Exact`], plus the pending prompt tokens of the other gateways.
        ExactAndExchange = "exact+exchange",
    }
}

/// The message exchange between gateways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExchangeSettings {
    /// Time from sending a message to its arrival.
    pub delay: Duration,
    /// Share of the messages that are lost, from 0 to 1.
    pub loss: f64,
}

impl Default for ExchangeSettings {
    fn default() -> Self {
        Self {
            delay: DEFAULT_EXCHANGE_DELAY,
            loss: 0.0,
        }
    }
}

/// Default delay of a message between gateways: two network hops in a data centre, and the batching of a
/// message bus.
pub const DEFAULT_EXCHANGE_DELAY: Duration = Duration::from_millis(5);
/// Time from the end of an engine step to the arrival of the KV events of the step. With vLLM 0.32, the
/// measured median was 0.5 to 6 ms after the timestamp of the event.
pub(super) const EVENT_DELAY: Duration = Duration::from_millis(1);
/// Time from the end of a request until its simulated gateway knows which blocks have the text of the prompt.
/// The real gateway waits for the same time.
pub(super) const TEXT_DELAY: Duration = Duration::from_millis(250);

impl CacheView {
    /// Whether the gateways receive KV events.
    pub(super) const fn has_events(self) -> bool {
        !matches!(self, Self::Approximate | Self::Exchange)
    }

    /// Whether the events count only for texts that the gateway has sent.
    pub(super) const fn learns_texts(self) -> bool {
        matches!(self, Self::Events | Self::EventsAndExchange)
    }

    /// Whether the gateways send each other messages.
    pub(super) const fn has_exchange(self) -> bool {
        matches!(
            self,
            Self::Exchange | Self::EventsAndExchange | Self::ExactAndExchange
        )
    }
}

impl FromStr for CacheView {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let view = Self::ALL.into_iter().find(|view| view.as_str() == text);
        view.ok_or(
            "expected approximate, events, exact, exchange, events+exchange or exact+exchange",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_view_has_one_name() {
        for view in CacheView::ALL {
            assert_eq!(view.as_str().parse(), Ok(view));
            assert_eq!(serde_json::to_value(view).unwrap(), view.as_str());
        }
        assert!("oracle".parse::<CacheView>().is_err());
    }
}
