//! Limits and timeouts of the listeners.

use std::time::Duration;

/// Limits and timeouts of the client listener, the admin listener and the drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum size of a request head, in bytes.
    pub max_head_bytes: usize,
    /// Maximum number of headers of a request.
    pub max_headers: usize,
    /// Timeout for each of these, counted separately: the TLS handshake, the first request head of a
    /// connection, and a later request head from its first byte to its end.
    pub head_timeout: Duration,
    /// Time after which an idle connection that has served a request is closed.
    pub keep_alive_timeout: Duration,
    /// Maximum time for which response bytes wait while the client reads nothing. After that, the gateway
    /// aborts the response.
    pub write_timeout: Duration,
    /// Maximum number of client connections.
    pub max_connections: usize,
    /// Maximum number of connections of one client address. `None`: no limit.
    pub max_connections_per_client: Option<u32>,
    /// Maximum number of rejected client connections that stay open at one time until the client has read the
    /// error response. Further ones are closed as soon as the response is sent.
    pub max_concurrent_rejections: usize,
    /// Maximum number of connections to the admin listener.
    pub max_admin_connections: usize,
    /// Maximum number of concurrent streams of one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Resident memory of the process, in bytes, above which new requests are refused. `None`: no
    /// limit.
    pub max_memory_bytes: Option<u64>,
    /// Time after the shutdown signal in which the gateway still accepts client connections.
    pub drain_delay: Duration,
    /// Maximum wait for open requests after `drain_delay` and the close of the client listener. The gateway
    /// then aborts the remaining requests.
    pub drain_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_head_bytes: 64 << 10,
            max_headers: 100,
            head_timeout: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_mins(1),
            max_connections: usize::MAX,
            max_connections_per_client: None,
            max_concurrent_rejections: 64,
            max_admin_connections: 64,
            max_concurrent_streams: 200,
            max_memory_bytes: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
        }
    }
}
