//! The section `limits`: limits on clients. The gateway rejects a request over a limit before the request
//! reaches a backend.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_settings::{
    CheckResult, ConfigSection, at_least_1ms, more_than_0, require, violation_of,
};

settings! {
    /// Limits on clients.
    #[derive(Copy, Eq)]
    pub struct LimitsConfig {
        /// Maximum size of a request body, in bytes.
        #[serde(with = "units::Size")]
        pub body: usize,
        /// Memory for the bodies of all requests together. `None`: a quarter of the memory that the
        /// process may use, and at least twice `body`.
        #[serde(with = "units::OptionalSize")]
        pub body_memory: Option<usize>,
        /// Maximum memory that streams keep for their continuation. One tenant or address may use half of
        /// it.
        #[serde(with = "units::Size")]
        pub continuation_memory: usize,
        /// Maximum time between two chunks of a request body.
        #[serde(with = "units::Duration")]
        pub body_idle_timeout: Duration,
        /// Maximum time in which a client does not read any byte of its response.
        #[serde(with = "units::Duration")]
        pub write_timeout: Duration,
        /// Maximum idle time of a client connection between two requests.
        #[serde(with = "units::Duration")]
        pub keep_alive: Duration,
        /// Maximum number of client connections. `None`: as many as the limit of open files allows.
        pub connections: Option<usize>,
        /// Maximum number of connections per client address. `None`: no limit.
        pub connections_per_client: Option<u32>,
        /// Maximum number of requests in flight. `None`: as many as the limit of open files allows.
        pub requests_in_flight: Option<usize>,
        /// Maximum number of requests in flight per client address. `None`: no limit.
        pub requests_per_client: Option<u32>,
        /// Memory of the process above which the gateway rejects new requests. `None`: no limit.
        #[serde(with = "units::OptionalSize")]
        pub memory: Option<usize>,
    }
}

/// Minimum of `memory`, in bytes. With a lower limit the gateway would reject every request.
const MIN_MEMORY_LIMIT_BYTES: usize = 64 << 20;

/// Minimum of `body_memory` as a multiple of `body`. The gateway holds a body twice while it edits
/// the body.
const MIN_BUFFERED_BODIES: usize = 2;
/// Default of `body_memory`: the memory that the process may use, divided by this number.
const BODY_MEMORY_DIVISOR: usize = 4;
/// Default of `body_memory` if the memory that the process may use is unknown, in bytes.
const DEFAULT_BODY_MEMORY_BYTES: usize = 1 << 30;

impl LimitsConfig {
    /// Maximum memory for the bodies of all requests together, in bytes. `available_bytes`: the
    /// memory that the process may use. `None`: unknown.
    pub fn body_memory(&self, available_bytes: Option<usize>) -> usize {
        let default_bytes = available_bytes.map_or(DEFAULT_BODY_MEMORY_BYTES, |available| {
            available / BODY_MEMORY_DIVISOR
        });
        let min_bytes = self.body.saturating_mul(MIN_BUFFERED_BODIES);
        self.body_memory
            .unwrap_or_else(|| default_bytes.max(min_bytes))
    }
}

impl Default for LimitsConfig {
    /// Bodies up to 64 MiB. Timeouts: 30 s between chunks of a body, 1 min for writes, 75 s between
    /// requests. As many connections and requests as the limit of open files allows.
    fn default() -> Self {
        Self {
            body: 64 << 20,
            body_memory: None,
            continuation_memory: 256 << 20,
            body_idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            keep_alive: Duration::from_secs(75),
            connections: None,
            connections_per_client: None,
            requests_in_flight: None,
            requests_per_client: None,
            memory: None,
        }
    }
}

/// Values, rules and reload class of the section `limits`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = LimitsConfig;

    fn check(limits: &LimitsConfig, _: &C) -> CheckResult {
        at_least_1ms("limits.body_idle_timeout", limits.body_idle_timeout)?;
        at_least_1ms("limits.keep_alive", limits.keep_alive)?;
        at_least_1ms("limits.write_timeout", limits.write_timeout)?;
        more_than_0("limits.body", limits.body)?;
        more_than_0("limits.connections", limits.connections)?;
        let per_client = limits.connections_per_client.map(|max| max as usize);
        more_than_0("limits.connections_per_client", per_client)?;
        more_than_0("limits.requests_in_flight", limits.requests_in_flight)?;
        let per_client = limits.requests_per_client.map(|max| max as usize);
        more_than_0("limits.requests_per_client", per_client)?;
        let min_body_memory = limits.body.saturating_mul(MIN_BUFFERED_BODIES);
        if limits
            .body_memory
            .is_some_and(|bytes| bytes < min_body_memory)
        {
            let problem =
                "this must be at least twice limits.body, because an edited body is held twice";
            return Err(violation_of(["limits.body_memory", "limits.body"], problem));
        }
        let is_limit = limits
            .memory
            .is_none_or(|bytes| bytes >= MIN_MEMORY_LIMIT_BYTES);
        require(
            is_limit,
            "limits.memory",
            "this must be 64MiB or more, or null for no limit",
        )
    }

    // The file descriptor budget fixes these limits at the start.
    fn reloaded(old: &LimitsConfig, new: &LimitsConfig) -> LimitsConfig {
        LimitsConfig {
            connections: old.connections,
            connections_per_client: old.connections_per_client,
            requests_in_flight: old.requests_in_flight,
            requests_per_client: old.requests_per_client,
            memory: old.memory,
            ..*new
        }
    }
}
