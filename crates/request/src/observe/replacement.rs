//! The stage that replaces the body of a response whose backend cannot complete it. It holds the end of the
//! response until the decision whether another backend continues it.

use super::exchange::Exchange;
use super::stages::InterruptionCause;
use super::stream_end::{Ending, LeaveReason, ObservedBodyError};
use bytes::Bytes;
use http_body::Body;
use std::task::{Context, Poll};

/// Why a response needs another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// Why the stream of the first backend was interrupted.
    pub cause: InterruptionCause,
    /// Whether the response ends if no other backend continues it. If false, its backend may continue it.
    pub is_final: bool,
    /// Whether the backend ended its body as HTTP requires. If the process of the backend dies, the connection
    /// breaks instead.
    pub ended_in_order: bool,
}

/// Continues a response whose backend cannot complete it.
pub trait Continue<B: Body, T> {
    /// Polls for the body of another backend that continues the response. The implementation passes that
    /// backend to the exchange and replaces the guard. `None`: no backend continues the response, and the
    /// reason is in the exchange.
    fn poll_continue(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        guard: &mut T,
        reason: Interrupted,
    ) -> Poll<Option<B>>;
}

pub(super) struct Replacement<B: Body, T> {
    source: Box<dyn Continue<B, T> + Send>,
    /// The end that is held. `None`: the response has not ended.
    held: Option<HeldEnd<B::Error>>,
}

/// The end of a response for which another body is awaited.
struct HeldEnd<E> {
    reason: Interrupted,
    /// How the response ends without another body. `None`: the response continues at its backend.
    ending: Option<Ending<E>>,
}

/// The result of waiting for another body.
pub(super) enum Replaced<B: Body> {
    /// The response continues with this body.
    Body(B),
    /// No other body was found. The client gets `data`, which was held back, and then the response has this `ending`.
    /// `None`: the response continues at its backend.
    Refused {
        data: Bytes,
        ending: Option<Ending<B::Error>>,
    },
}

impl<B: Body, T> Replacement<B, T> {
    /// A stage that replaces the body by the bodies that `source` finds.
    pub(super) fn new(source: Box<dyn Continue<B, T> + Send>) -> Self {
        Self { source, held: None }
    }

    pub(super) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Processes a chunk of the response. Its events can show that the backend cannot complete the response.
    pub(super) fn on_data(&mut self, exchange: &Exchange) {
        if let Some(cause) = exchange.cause_of_events() {
            let reason = Interrupted {
                cause,
                is_final: true,
                ended_in_order: false,
            };
            self.held = Some(HeldEnd {
                reason,
                ending: None,
            });
        }
    }

    /// Processes the end of the response. `None`: the end is held.
    pub(super) fn on_end(
        &mut self,
        exchange: &Exchange,
        ending: Ending<B::Error>,
    ) -> Option<Ending<B::Error>> {
        if let Some(cause) = exchange.cause_of_end(&ending) {
            let reason = Interrupted {
                cause,
                is_final: true,
                ended_in_order: ending.is_ok(),
            };
            self.held = Some(HeldEnd {
                reason,
                ending: Some(ending),
            });
            return None;
        }
        match ending {
            // The last event has arrived, so the response is complete although its body failed.
            Err(ObservedBodyError::Backend(_)) if exchange.has_last_event() => Some(Ok(())),
            ending => Some(ending),
        }
    }

    /// Makes the response leave its backend if another backend can continue it.
    pub(super) fn on_leave(&mut self, exchange: &Exchange, leave: LeaveReason) {
        if let Some(cause) = exchange.cause_of_leave(leave) {
            let reason = Interrupted {
                cause,
                is_final: false,
                ended_in_order: false,
            };
            self.held = Some(HeldEnd {
                reason,
                ending: None,
            });
        }
    }

    /// Polls for another body. `None`: no end is held.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        guard: &mut T,
    ) -> Option<Poll<Replaced<B>>> {
        let reason = self.held.as_ref()?.reason;
        let Poll::Ready(body) = self.source.poll_continue(cx, exchange, guard, reason) else {
            return Some(Poll::Pending);
        };
        let ending = self.held.take()?.ending;
        Some(Poll::Ready(match body {
            Some(body) => Replaced::Body(body),
            None if reason.cause == InterruptionCause::Diverged => Replaced::Refused {
                data: Bytes::new(),
                ending: Some(Err(ObservedBodyError::NotContinued)),
            },
            None => {
                let data = exchange.release_events();
                let ending = if exchange.has_last_event() {
                    Some(Ok(()))
                } else if reason.ended_in_order && exchange.is_continued() {
                    // A regular end of a later backend would hide that an earlier backend broke the stream.
                    Some(Err(ObservedBodyError::NotContinued))
                } else {
                    ending
                };
                Replaced::Refused { data, ending }
            }
        }))
    }
}
