//! What clients may have and take. Whatever is over a limit is refused before a replica sees it.

use super::Config;
use super::rules::{Broken, broken};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_core::units;

/// What clients may have and take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Longest body, in bytes.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub body: usize,
    /// Memory that the bodies of all requests may take together. `None`: a quarter of the memory that
    /// the process may use, and room for two bodies at least.
    #[serde(with = "units::optional_bytes")]
    #[schemars(with = "Option<units::schema::Size>")]
    pub body_memory: Option<usize>,
    /// Longest request line and headers together, in bytes.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub header: usize,
    /// Most headers.
    pub headers_count: usize,
    /// Longest wait for a request head.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub header_timeout: Duration,
    /// Longest pause in a body.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub body_idle_timeout: Duration,
    /// Longest time in which a client takes nothing.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub write_timeout: Duration,
    /// Longest pause between two requests.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub keep_alive: Duration,
    /// Most connections. `None`: as the limit of open files allows.
    pub connections: Option<usize>,
    /// Most connections of one address. `None`: no limit.
    pub connections_per_client: Option<u32>,
    /// Most streams of one HTTP/2 connection.
    pub streams_per_connection: u32,
    /// Most requests in flight. `None`: as the limit of open files allows.
    pub requests_in_flight: Option<usize>,
    /// Most requests in flight of one address. `None`: no limit.
    pub requests_per_client: Option<u32>,
    /// Memory of the process above which no requests are taken. `None`: no limit.
    #[serde(with = "units::optional_bytes")]
    #[schemars(with = "Option<units::schema::Size>")]
    pub memory: Option<usize>,
}

/// Shortest buffer for a request head that the HTTP server can work with, in bytes.
const MIN_HEADER: usize = 8 << 10;
/// Least memory that can be a limit: less would refuse everything.
const MIN_MEMORY: usize = 64 << 20;

/// The memory of bodies suffices for one that is edited, which is held twice.
const BODIES_AT_LEAST: usize = 2;
/// The share of the process's memory that bodies may take.
const BODY_SHARE: usize = 4;
/// The memory of bodies if that of the process cannot be found out.
const USUAL_BODY_MEMORY: usize = 1 << 30;

impl Limits {
    /// Memory that the bodies of all requests may take together, if the process may use so much.
    pub fn body_memory(&self, available: Option<usize>) -> usize {
        let usual = available.map_or(USUAL_BODY_MEMORY, |available| available / BODY_SHARE);
        let least = self.body.saturating_mul(BODIES_AT_LEAST);
        self.body_memory.unwrap_or_else(|| usual.max(least))
    }
}

impl Default for Limits {
    /// Bodies of 64 MiB, heads of 64 KiB and 100 headers; 10 s for a head, 30 s for more of a body,
    /// a minute to take something, 75 s between requests; as many as there are files to open.
    fn default() -> Self {
        Self {
            body: 64 << 20,
            body_memory: None,
            header: 64 << 10,
            headers_count: 100,
            header_timeout: Duration::from_secs(10),
            body_idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_mins(1),
            keep_alive: Duration::from_secs(75),
            connections: None,
            connections_per_client: None,
            streams_per_connection: 200,
            requests_in_flight: None,
            requests_per_client: None,
            memory: None,
        }
    }
}

/// The first rule that is broken.
pub(super) fn check(config: &Config) -> Result<(), Broken> {
    let limits = &config.limits;
    if limits.header < MIN_HEADER {
        return Err(broken("limits.header", "this must be 8KiB or more"));
    }
    let durations = [
        ("limits.header_timeout", limits.header_timeout),
        ("limits.body_idle_timeout", limits.body_idle_timeout),
        ("limits.write_timeout", limits.write_timeout),
        ("limits.keep_alive", limits.keep_alive),
    ];
    if let Some((path, _)) =
        durations.iter().find(|(_, duration)| *duration < Duration::from_millis(1))
    {
        return Err(broken(path, "this must be 1ms or more"));
    }
    let counts = [
        ("limits.body", Some(limits.body)),
        ("limits.headers_count", Some(limits.headers_count)),
        ("limits.connections", limits.connections),
        ("limits.connections_per_client", limits.connections_per_client.map(|most| most as usize)),
        ("limits.requests_in_flight", limits.requests_in_flight),
        ("limits.requests_per_client", limits.requests_per_client.map(|most| most as usize)),
    ];
    if let Some((path, _)) = counts.iter().find(|(_, most)| *most == Some(0)) {
        return Err(broken(path, "this must be more than 0"));
    }
    if limits.streams_per_connection == 0 {
        return Err(broken("limits.streams_per_connection", "this must be more than 0"));
    }
    if limits.body_memory.is_some_and(|most| most < limits.body.saturating_mul(BODIES_AT_LEAST)) {
        let problem = "this must be twice limits.body or more: a body that is edited is held twice";
        return Err(broken("limits.body_memory", problem));
    }
    if limits.memory.is_some_and(|most| most < MIN_MEMORY) {
        return Err(broken("limits.memory", "this must be 64MiB or more; null for no limit"));
    }
    Ok(())
}
