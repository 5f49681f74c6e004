//! The flags of `demo`.

use clap::Args;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_core::units;

/// Arguments of `tokenweir demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Stop after this time, such as 30s. [default: run until interrupted]
    #[arg(long = "duration", value_name = "DURATION", env = "TOKENWEIR_DEMO_DURATION")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Address of the client listener.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    #[arg(env = "TOKENWEIR_DEMO_LISTEN")]
    pub listen: SocketAddr,
    /// Address of the admin listener (metrics, health, state).
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    #[arg(env = "TOKENWEIR_DEMO_ADMIN")]
    pub admin: SocketAddr,
    /// Number of simulated backends.
    #[arg(long, value_name = "N", default_value_t = 3, env = "TOKENWEIR_DEMO_BACKENDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub backends: u16,
    /// Requests per second.
    #[arg(long, value_name = "RATE", default_value_t = 4.0, env = "TOKENWEIR_DEMO_RATE")]
    #[arg(value_parser = parse_rate)]
    pub rate: f64,
}

fn parse_rate(text: &str) -> Result<f64, &'static str> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or("expected a number above 0")
}
