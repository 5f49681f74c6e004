//! What a client may have and take, and for how long it is waited for.

use std::time::Duration;

/// Limits on clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest request head in bytes.
    pub head: usize,
    /// Most headers.
    pub headers: usize,
    /// Longest wait for a request head that has begun, for the first one and for the handshake of
    /// TLS.
    pub head_timeout: Duration,
    /// Longest wait for the next one.
    pub keep_alive: Duration,
    /// Longest time in which a client takes nothing of what there is for it.
    pub write_timeout: Duration,
    /// Most connections.
    pub connections: usize,
    /// Most of one address.
    pub connections_per_client: Option<u32>,
    /// Connections that are told at the same time why they are refused. Others are just closed.
    pub refusals: usize,
    /// Most connections to the admin port.
    pub admin_connections: usize,
    /// Most streams of one HTTP/2 connection.
    pub streams: u32,
    /// Most memory of the process, in bytes, with which it takes new work.
    pub memory: Option<u64>,
    /// How long connections are still accepted once the gateway is told to stop.
    pub drain_delay: Duration,
    /// Longest wait for streams to end after that.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: 64 << 10,
            headers: 100,
            head_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            write_timeout: Duration::from_mins(1),
            connections: usize::MAX,
            connections_per_client: None,
            refusals: 64,
            admin_connections: 64,
            streams: 200,
            memory: None,
            drain_delay: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}
