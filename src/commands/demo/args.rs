//! The flags of `demo`.

use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_engine::address::parse_listen_address;
use tokenweir_protocol::units;

/// Arguments of `tokenweir demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Stop after this time, such as 30s. [default: run until interrupted]
    #[arg(long = "duration", value_name = "DURATION", value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Address of the client listener.
    #[arg(long, value_name = "[IP]:PORT", default_value = "127.0.0.1:8080")]
    #[arg(value_parser = parse_listen_address)]
    pub listen: SocketAddr,
    /// Address of the admin listener (metrics, health, state).
    #[arg(long, value_name = "[IP]:PORT", default_value = "127.0.0.1:9090")]
    #[arg(value_parser = parse_listen_address)]
    pub admin: SocketAddr,
    /// Number of simulated backends.
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub backends: u16,
    /// Requests per second. [default: 4; 12 with --fault drain, 24 with kv]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Fault to show: it begins after 15s, and the state of the gateway is printed every 30s.
    #[arg(long, value_enum)]
    pub fault: Option<DemoFault>,
}

/// A fault of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoFault {
    /// The last backend needs 16 times as long for each step, from the start. The policy is
    /// `round_robin`, which does not avoid it.
    Slow,
    /// The last backend stops answering, like a stopped process.
    Hang,
    /// An operator drains all backends but one, which cannot carry the load.
    Drain,
    /// The KV caches are too small for the load, from the start: engines preempt requests.
    Kv,
}

fn parse_rate(text: &str) -> Result<f64, &'static str> {
    let rate = text
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or("expected a number above 0")
}
