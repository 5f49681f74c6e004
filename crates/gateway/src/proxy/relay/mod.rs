//! Sends a request to a backend, and to further backends while attempts fail before their first
//! output.

mod failover;
mod unread;

pub(super) use failover::send;
pub(super) use unread::send as send_unread;
