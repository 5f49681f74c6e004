//! Runs simulated backends, a gateway and a light load in one process, without a GPU.

use super::args::{DemoArgs, DemoFault};
use super::fault;
use super::load::{self, DemoCounters};
use crate::app::application::Application;
use crate::app::banner::{self, StartSummary};
use crate::app::process::{logging, signals};
use crate::commands::{report_config_error, report_error, variable};
use crate::config::{Config, ConfigSource, LoadedConfig, LogConfig, OverrideValue, Overrides};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokenweir_doctor::facts::TargetKey;
use tokenweir_doctor::gather::ServerClient;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::tls::{Alpn, OutboundTls};
use tokenweir_sim::{Simulator, SimulatorSettings};
use tokio::sync::oneshot;

/// Maximum time until the response head. The gateway ends requests earlier.
const RESPONSE_TIMEOUT: Duration = Duration::from_hours(1);

/// Runs the demo until Ctrl-C or for `--duration`.
pub(crate) async fn run(demo: DemoArgs) -> ExitCode {
    let mut settings = SimulatorSettings {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        backends: demo.backends,
        ..SimulatorSettings::default()
    };
    if let Some(fault) = demo.fault {
        fault.add_to(&mut settings);
    }
    let model = settings.models.first().cloned().unwrap_or_default();
    let sim = match Simulator::bind(&settings).await {
        Ok(sim) => sim,
        Err(error) => return report_error(&error),
    };
    let mut loaded = match Config::load(None, build_overrides(&demo, sim.addrs())) {
        Ok(loaded) => loaded,
        Err(error) => return report_config_error(&error),
    };
    // The light load allows a trace for each request of the demo.
    loaded.config.tracing.ratio = Some(1.0);
    let backend_names = sim.addrs().iter().map(SocketAddr::to_string).collect();
    let backends = tokio::spawn(sim.run(std::future::pending()));
    let exit_code = run_gateway(demo, &loaded, model, backend_names).await;
    backends.abort();
    exit_code
}

/// Runs the gateway and the load, with the backends `backend_names`.
async fn run_gateway(
    demo: DemoArgs,
    loaded: &LoadedConfig,
    model: String,
    backend_names: Vec<String>,
) -> ExitCode {
    let rate = demo.rate.unwrap_or_else(|| fault::default_rate(demo.fault));
    let logs = logging::start(&LogConfig {
        access: false,
        ..loaded.config.log.clone()
    });
    let application = match Application::new(loaded, Overrides::default(), &logs, variable).await {
        Ok(application) => application,
        Err(error) => return report_error(&*error),
    };
    banner::show(&application.summary, &logs);
    print_examples(&application.summary, &model, rate);
    let address_of = |listener| BackendAddress::parse(&format!("http://{}", reachable(listener)));
    let Ok(gateway) = address_of(application.summary.listen) else {
        return ExitCode::FAILURE;
    };
    let Ok(admin) = address_of(application.summary.admin) else {
        return ExitCode::FAILURE;
    };
    let reports = tokio::spawn(fault::run(demo.fault, admin, backend_names));
    let counters = Arc::new(DemoCounters::default());
    let outbound = OutboundTls::with_native_roots(Alpn::Http1);
    let client = ServerClient::new(gateway, TargetKey::None, outbound, RESPONSE_TIMEOUT);
    let (stop_load, stopped) = oneshot::channel();
    let load = load::run(client, model, rate, counters.clone(), stopped);
    let load = tokio::spawn(load);
    let result = application
        .run(async move {
            wait_for_stop(demo.duration).await;
            let _ = stop_load.send(());
            // The load must end before the gateway stops, because later requests would fail.
            let _ = load.await;
        })
        .await;
    reports.abort();
    let exit_code = print_summary(&counters, demo.fault.is_some());
    if result.is_ok() {
        exit_code
    } else {
        ExitCode::FAILURE
    }
}

/// Waits for a shutdown signal, or at most for `limit`. `None`: no limit.
async fn wait_for_stop(limit: Option<Duration>) {
    match limit {
        None => signals::wait_for_shutdown().await,
        Some(time) => tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = signals::wait_for_shutdown() => {}
        },
    }
}

fn build_overrides(demo: &DemoArgs, backends: &[SocketAddr]) -> Overrides {
    let flag = |name: &str| ConfigSource::Flag(name.to_owned());
    let urls = backends
        .iter()
        .filter_map(|addr| BackendAddress::parse(&format!("http://{addr}")).ok());
    let policy = demo.fault.and_then(DemoFault::policy);
    Overrides {
        policy: policy.map(|value| OverrideValue {
            value,
            source: flag("--fault"),
        }),
        backends: Some(OverrideValue {
            value: urls.collect(),
            source: flag("--backends"),
        }),
        listen: Some(OverrideValue {
            value: demo.listen,
            source: flag("--listen"),
        }),
        admin: Some(OverrideValue {
            value: demo.admin,
            source: flag("--admin"),
        }),
        ..Overrides::default()
    }
}

fn reachable(listener: SocketAddr) -> SocketAddr {
    match listener.ip() {
        ip if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, listener.port()).into(),
        _ => listener,
    }
}

fn print_examples(gateway: &StartSummary, model: &str, rate: f64) {
    let body = format!(
        r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}"#
    );
    let StartSummary { listen, admin, .. } = gateway;
    eprintln!(
        "\nThe demo sends {rate} requests per second. Watch them:\n\n  \
         http://{admin}/  in a browser\n\n\
         Or try:\n\n  \
         curl -N http://{listen}/v1/chat/completions -H 'content-type: application/json' \
         -d '{body}'\n  \
         curl http://{admin}/metrics\n  \
         curl http://{admin}/status\n  \
         curl http://{admin}/decisions\n\n\
         Stop with Ctrl-C."
    );
}

/// Prints the numbers of served and failed requests. Returns a failure if no request was served, or if a
/// request failed in a demo without a fault.
fn print_summary(counters: &DemoCounters, has_fault: bool) -> ExitCode {
    let served = counters.served.load(Ordering::Relaxed);
    let failed = counters.failed.load(Ordering::Relaxed);
    eprintln!("served {served} requests, {failed} failed");
    if served > 0 && (failed == 0 || has_fault) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
