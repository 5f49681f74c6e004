//! The whole thing on one machine without a GPU: simulated replicas, a gateway and a light load.

use super::args::Demo;
use super::load::{self, Tally};
use crate::app::assembly::Assembly;
use crate::app::{banner, logs, signals};
use crate::commands::{failed, variable, wrong};
use crate::config::{Config, Given, Log, Overrides, Source};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_net::client::{Client, Limits};
use tokenweir_sim::Sim;
use tokio::sync::oneshot;

/// Runs until Ctrl-C, or for the time asked for.
pub(crate) async fn run(demo: Demo) -> ExitCode {
    let settings = tokenweir_sim::Settings {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        replicas: demo.replicas,
        ..tokenweir_sim::Settings::default()
    };
    let model = settings.models.first().cloned().unwrap_or_default();
    let sim = match Sim::bind(&settings).await {
        Ok(sim) => sim,
        Err(error) => return failed(&error),
    };
    let overrides = overrides(&demo, sim.addrs());
    let replicas = tokio::spawn(sim.run(std::future::pending()));
    let mut loaded = match Config::load(None, overrides) {
        Ok(loaded) => loaded,
        Err(error) => return wrong(&error),
    };
    // A light load, and whoever looks at one request wants its trace.
    loaded.config.tracing.ratio = Some(1.0);
    let logs = logs::start(&Log { access: false, ..loaded.config.log.clone() });
    let assembly = match Assembly::new(&loaded, Overrides::default(), &logs, variable).await {
        Ok(assembly) => assembly,
        Err(error) => return failed(&error),
    };
    banner::show(&assembly, &logs);
    show_what_to_try(&assembly, &model, &demo);
    let Ok(gateway) = Address::parse(&format!("http://{}", assembly.listen)) else {
        return ExitCode::FAILURE;
    };
    let tally = Arc::new(Tally::default());
    let client = Client::new(Limits::default());
    let (stop_load, stopped) = oneshot::channel();
    let load = tokio::spawn(load::run(gateway, client, model, demo.rate, tally.clone(), stopped));
    let ended = assembly
        .run(async move {
            stop(demo.duration).await;
            let _ = stop_load.send(());
            // The gateway goes last: a request that comes when it has stopped accepting would fail.
            let _ = load.await;
        })
        .await;
    replicas.abort();
    let summary = summary(&tally);
    if ended.is_ok() { summary } else { ExitCode::FAILURE }
}

async fn stop(after: Option<Duration>) {
    match after {
        None => signals::stop().await,
        Some(time) => tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = signals::stop() => {}
        },
    }
}

fn overrides(demo: &Demo, replicas: &[SocketAddr]) -> Overrides {
    let flag = |name: &str| Source::Flag(name.to_owned());
    let urls = replicas.iter().filter_map(|addr| Address::parse(&format!("http://{addr}")).ok());
    Overrides {
        backends: Some(Given { value: urls.collect(), source: flag("demo") }),
        listen: Some(Given { value: demo.listen, source: flag("--listen") }),
        admin: Some(Given { value: demo.admin, source: flag("--admin") }),
        ..Overrides::default()
    }
}

fn show_what_to_try(assembly: &Assembly, model: &str, demo: &Demo) {
    let body = format!(
        r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}"#
    );
    eprintln!();
    eprintln!("{} requests per second are under way. Watch them:", demo.rate);
    eprintln!();
    eprintln!("  http://{}/  in a browser", assembly.operators);
    eprintln!();
    eprintln!("Or try:");
    eprintln!();
    eprintln!(
        "  curl -N http://{}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        assembly.listen
    );
    eprintln!("  curl http://{}/metrics", assembly.operators);
    eprintln!("  curl http://{}/status", assembly.operators);
    eprintln!("  curl http://{}/explain", assembly.operators);
    eprintln!();
    eprintln!("Stop with Ctrl-C.");
}

fn summary(tally: &Tally) -> ExitCode {
    let (served, failed) =
        (tally.served.load(Ordering::Relaxed), tally.failed.load(Ordering::Relaxed));
    eprintln!("served {served} requests, {failed} failed");
    if served > 0 && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
