//! Causes a fault in the demo, and prints what the gateway reports about it.

use super::args::DemoFault;
use crate::commands::admin_client::AdminClient;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::clock;
use tokenweir_routing::PolicyKind;
use tokenweir_sim::{PositiveNumber, SimulatorSettings};
use tokenweir_top::status_lines;

/// Time from the start of the demo to the start of a fault, except for faults that exist from the start.
const FAULT_DELAY: Duration = Duration::from_secs(15);
/// Time between two reports of the demo about the state of the gateway.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for a response of the admin listener.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests per second that a demo without a fault serves easily.
const USUAL_RATE: f64 = 4.0;
/// Requests per second of the demo with the fault `drain`. Three of its backends can serve this rate, but not
/// one.
const DRAIN_RATE: f64 = 12.0;
/// Requests per second of the demo with the fault `kv`. Their sequences do not fit into the small KV caches of
/// its backends.
const KV_RATE: f64 = 24.0;

impl DemoFault {
    pub(super) fn add_to(self, settings: &mut SimulatorSettings) {
        match self {
            Self::Slow => {
                settings.max_num_seqs = 8;
                settings.faults.slow_factor = PositiveNumber::new(16.0);
            }
            Self::Hang => settings.faults.hang_after = Some(FAULT_DELAY.into()),
            Self::Drain => settings.max_num_seqs = 4,
            Self::Kv => settings.blocks = 56,
        }
    }

    /// Returns the routing policy under which the fault takes effect. `None`: the default policy.
    pub(super) fn policy(self) -> Option<PolicyKind> {
        (self == Self::Slow).then_some(PolicyKind::RoundRobin)
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Slow => "the last backend is 16 times as slow as the others",
            Self::Hang => "the last backend stops answering after 15 s, like a stopped process",
            Self::Drain => "after 15 s all backends but one are drained",
            Self::Kv => "the KV caches are too small for the load",
        }
    }
}

/// Returns the number of requests per second of the demo without `--rate`.
pub(super) fn default_rate(fault: Option<DemoFault>) -> f64 {
    match fault {
        Some(DemoFault::Drain) => DRAIN_RATE,
        Some(DemoFault::Kv) => KV_RATE,
        _ => USUAL_RATE,
    }
}

/// Causes the part of a fault that begins during the demo, and prints a report of the gateway after each
/// interval. Runs until the future is dropped.
pub(super) async fn run(fault: Option<DemoFault>, admin: BackendAddress, backends: Vec<String>) {
    let description = fault.map_or("none", DemoFault::description);
    eprintln!("\nFault: {description}. A report of the gateway follows every 30 s.");
    let Ok(client) = AdminClient::new(&admin, None, ADMIN_TIMEOUT) else {
        return;
    };
    let start = clock::now();
    tokio::time::sleep(FAULT_DELAY).await;
    if fault == Some(DemoFault::Drain) {
        for backend in backends.iter().skip(1) {
            if let Err(problem) = client.set_drained(backend, true).await {
                eprintln!("cannot drain {backend}: {problem}");
            }
        }
    }
    for report in 1_u32.. {
        let elapsed = REPORT_INTERVAL * report;
        tokio::time::sleep_until((start + elapsed).into()).await;
        eprintln!("\n--- after {} s", elapsed.as_secs());
        let report = match client.get("/streams").await {
            Ok(body) => match serde_json::from_slice(&body) {
                Ok(gateway) => status_lines(&gateway).join("\n"),
                Err(error) => error.to_string(),
            },
            Err(problem) => problem,
        };
        eprintln!("{report}");
    }
}
