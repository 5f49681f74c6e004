//! What continues a response whose backend cannot complete it.

use super::exchange::Exchange;
use crate::continuation::InterruptionCause;
use http_body::Body;
use std::task::{Context, Poll};

/// Why a response needs another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// The cause.
    pub cause: InterruptionCause,
    /// Whether the response ends if no other backend continues it. Otherwise its backend may go on.
    pub is_final: bool,
    /// Whether the backend ended its body as HTTP requires. The connection of a process that died breaks
    /// instead.
    pub ended_in_order: bool,
}

/// Continues a response whose backend cannot complete it.
pub trait Continue<B: Body, T> {
    /// Polls for the body of another backend, which continues the response. The implementation passes
    /// that backend to the exchange and replaces the guard. `None`: no backend continues the response,
    /// and the exchange has the reason.
    fn poll_continue(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        guard: &mut T,
        interrupted: Interrupted,
    ) -> Poll<Option<B>>;
}
