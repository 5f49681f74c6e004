//! What a person sees at the start: what listens, what each replica serves, whether its metrics
//! were understood, and where traces go.

use super::assembly::Assembly;
use super::logs::Logs;
use crate::admin;
use crate::telemetry::tame;
use crate::telemetry::vitals::BackendVitals;
use std::fmt::Write;
use tokenweir_core::clock;
use tokenweir_core::model::Model;

/// Models of a replica that are listed.
const MOST_MODELS: usize = 20;

/// Shows it on standard error, in the form of the log there.
pub(crate) fn show(assembly: &Assembly, logs: &Logs) {
    if logs.is_json {
        text(assembly).lines().for_each(|line| tracing::info!("{}", line.trim()));
    } else {
        eprint!("{}", text(assembly));
    }
}

fn text(assembly: &Assembly) -> String {
    let mut text = String::new();
    let traces = match &assembly.traces {
        Some(endpoint) => format!("to {endpoint}"),
        None => "off; set OTEL_EXPORTER_OTLP_ENDPOINT to a collector".into(),
    };
    let [clients, admin] =
        assembly.is_https.map(|is_https| if is_https { "https" } else { "http" });
    let limits = match assembly.connections {
        usize::MAX => "any number of connections".into(),
        most => format!("{most} connections, each with a request"),
    };
    let mut lines = vec![
        ("clients", format!("{clients}://{}/v1", assembly.listen)),
        (
            "admin",
            format!(
                "{admin}://{}  a page, /metrics /status /explain /config /readyz",
                assembly.operators
            ),
        ),
        ("limits", limits),
        ("policy", assembly.pool.policy().name().into()),
        ("traces", traces),
    ];
    if let Some(endpoint) = &assembly.pushed_to {
        lines.push(("metrics", format!("at /metrics, and pushed to {endpoint}")));
    }
    if let Some(file) = &assembly.captured_in {
        lines.push(("capture", format!("to {}, without any text", file.display())));
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "tokenweir {}", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<8}  {value}");
    }
    let now = clock::now();
    for backend in assembly.pool.backends().iter() {
        let _ =
            writeln!(text, "  backend   {}", tame::line(&describe(&admin::vitals(backend, now))));
    }
    let readiness = assembly.pool.readiness(now);
    if !readiness.is_ready() {
        let why = readiness.summary();
        let _ = writeln!(text, "  not ready: {why}; each is looked at again and again");
    }
    text
}

/// The first models of a list, and how many more there are.
fn served(models: &[Model]) -> String {
    let shown: Vec<&str> = models.iter().take(MOST_MODELS).map(|model| &*model.id).collect();
    let shown = shown.join(", ");
    let more = models.len().saturating_sub(MOST_MODELS);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// One replica on one line.
fn describe(backend: &BackendVitals) -> String {
    let mut parts = vec![backend.url.clone(), backend.health.into()];
    if let Some(reason) = &backend.reason {
        parts.push(reason.clone());
        return parts.join("  ");
    }
    parts.extend(backend.version.as_ref().map(|version| format!("vLLM {version}")));
    if !backend.models.is_empty() {
        parts.push(format!("serves {}", served(&backend.models)));
    }
    parts.push(match (backend.metrics_error, backend.kv_capacity_tokens) {
        (Some(error), _) => format!("metrics: {error}, routed by requests in flight"),
        (None, Some(tokens)) => format!("metrics ok, {tokens} tokens of KV cache"),
        (None, None) => "metrics ok".into(),
    });
    parts.join("  ")
}
