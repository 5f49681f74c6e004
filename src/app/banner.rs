//! The start banner: the listeners, the limits, the policy, the telemetry targets, and the state of
//! each backend.

use super::application::Application;
use super::logging::LogWriters;
use crate::admin;
use crate::telemetry::sanitize;
use crate::telemetry::status::BackendStatusSnapshot;
use std::fmt::Write;
use tokenweir_core::clock;
use tokenweir_core::model::ServedModel;

/// Maximum number of models shown per backend.
const MAX_LISTED_MODELS: usize = 20;

/// Prints the banner to standard error, in the format of the process log.
pub(crate) fn show(application: &Application, logs: &LogWriters) {
    if logs.is_json {
        render(application).lines().for_each(|line| tracing::info!("{}", line.trim()));
    } else {
        eprint!("{}", render(application));
    }
}

fn render(application: &Application) -> String {
    let mut text = String::new();
    let traces = match &application.traces {
        Some(endpoint) => format!("to {endpoint}"),
        None => "off; set OTEL_EXPORTER_OTLP_ENDPOINT to a collector".into(),
    };
    let [client_scheme, admin_scheme] =
        application.is_https.map(|is_https| if is_https { "https" } else { "http" });
    let limits = match application.connections {
        usize::MAX => "no limit of connections".into(),
        max => format!("{max} connections, each with a request"),
    };
    let mut lines = vec![
        ("clients", format!("{client_scheme}://{}/v1", application.listen)),
        (
            "admin",
            format!(
                "{admin_scheme}://{}  a page, /metrics /status /decisions /config /readyz",
                application.operators
            ),
        ),
        ("limits", limits),
        ("policy", application.pool.policy().name().into()),
        ("traces", traces),
    ];
    if let Some(endpoint) = &application.pushed_to {
        lines.push(("metrics", format!("at /metrics, and pushed to {endpoint}")));
    }
    if let Some(file) = &application.captured_in {
        lines.push(("capture", format!("to {}, without texts of requests", file.display())));
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "tokenweir {}", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<8}  {value}");
    }
    let now = clock::now();
    for backend in application.pool.backends().iter() {
        let _ = writeln!(
            text,
            "  backend   {}",
            sanitize::line(&describe_backend(&admin::backend_status(backend, now)))
        );
    }
    let readiness = application.pool.readiness(now);
    if !readiness.is_ready() {
        let summary = readiness.summary();
        let _ = writeln!(text, "  not ready: {summary}; health checks continue");
    }
    text
}

/// The first [`MAX_LISTED_MODELS`] models of a list, and the number of further models.
fn list_models(models: &[ServedModel]) -> String {
    let shown: Vec<&str> = models.iter().take(MAX_LISTED_MODELS).map(|model| &*model.id).collect();
    let shown = shown.join(", ");
    let more = models.len().saturating_sub(MAX_LISTED_MODELS);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// The line of one backend.
fn describe_backend(backend: &BackendStatusSnapshot) -> String {
    let mut parts = vec![backend.url.clone(), backend.health.into()];
    if let Some(reason) = &backend.reason {
        parts.push(reason.clone());
        return parts.join("  ");
    }
    parts.extend(backend.version.as_ref().map(|version| format!("vLLM {version}")));
    if !backend.models.is_empty() {
        parts.push(format!("serves {}", list_models(&backend.models)));
    }
    parts.push(match (backend.metrics_error, backend.kv_capacity_tokens) {
        (Some(error), _) => format!("metrics: {error}, routed by requests in flight"),
        (None, Some(tokens)) => format!("metrics ok, {tokens} tokens of KV cache"),
        (None, None) => "metrics ok".into(),
    });
    parts.join("  ")
}
