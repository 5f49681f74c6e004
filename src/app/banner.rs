//! What a person sees at the start: what listens, what each replica serves, whether its metrics
//! were understood, and where traces go.

use super::assembly::Assembly;
use crate::admin;
use crate::clock;
use crate::telemetry::vitals::BackendVitals;
use std::fmt::Write;

/// Shows it on standard error.
pub(super) fn show(assembly: &Assembly) {
    eprint!("{}", text(assembly));
}

fn text(assembly: &Assembly) -> String {
    let mut text = String::new();
    let traces = match &assembly.traces {
        Some(endpoint) => format!("to {endpoint}"),
        None => "off; set OTEL_EXPORTER_OTLP_ENDPOINT to a collector".into(),
    };
    let lines = [
        ("clients", format!("http://{}/v1", assembly.listen)),
        ("admin", format!("http://{}  /metrics /status /config /readyz", assembly.operators)),
        ("policy", assembly.pool.policy().name().into()),
        ("traces", traces),
    ];
    // Writing to a string cannot fail.
    let _ = writeln!(text, "tokenweir {}", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<8}  {value}");
    }
    let now = clock::now();
    for backend in assembly.pool.backends() {
        let _ = writeln!(text, "  backend   {}", describe(&admin::vitals(backend, now)));
    }
    if !assembly.pool.is_ready() {
        let _ = writeln!(text, "  not ready: no replica is up yet; each is tried again and again");
    }
    text
}

/// One replica on one line.
pub(super) fn describe(backend: &BackendVitals) -> String {
    let mut line = format!("{}  {}", backend.url, backend.health);
    if let Some(reason) = &backend.reason {
        return format!("{line}  {reason}");
    }
    if let Some(version) = &backend.version {
        line += &format!("  vLLM {version}");
    }
    if !backend.models.is_empty() {
        line += &format!("  serves {}", backend.models.join(", "));
    }
    match (backend.metrics_error, backend.kv_capacity_tokens) {
        (Some(error), _) => line += &format!("  metrics: {error}, routed by requests in flight"),
        (None, Some(tokens)) => line += &format!("  metrics ok, {tokens} tokens of KV cache"),
        (None, None) => line += "  metrics ok",
    }
    line
}
