//! The start banner: the listeners, the limits, the policy, the telemetry targets, and the state of
//! each backend.

use super::listeners::BoundListeners;
use super::options::AttachedOptions;
use super::process::logging::LogWriters;
use super::telemetry_pipeline::TelemetryWorkers;
use crate::admin;
use crate::config::Config;
use crate::options::with_options;
use std::fmt::Write;
#[cfg(feature = "tools")]
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::status::BackendStatusSnapshot;
use tokenweir_gateway::telemetry::sanitize;
use tokenweir_option::OutputTarget;
use tokenweir_protocol::clock;

/// Maximum number of models shown per backend.
const MAX_LISTED_MODELS: usize = 20;

/// The addresses and settings that the start banner shows in addition to the state of the backends.
pub(crate) struct StartSummary {
    #[cfg(feature = "tools")]
    pub(crate) listen: SocketAddr,
    #[cfg(feature = "tools")]
    pub(crate) admin: SocketAddr,
    client_url: String,
    admin_url: String,
    /// Whether the admin listener requires a token.
    has_admin_token: bool,
    /// Maximum number of client connections. `usize::MAX`: no limit.
    max_connections: usize,
    /// The OTLP endpoint of spans. `None`: spans are not exported.
    traces: Option<String>,
    /// The destinations to which options write requests.
    outputs: Vec<OutputTarget>,
    pool: Arc<BackendPool>,
}

impl StartSummary {
    pub(super) fn new(
        config: &Config,
        listeners: &BoundListeners,
        workers: &TelemetryWorkers,
        pool: &Arc<BackendPool>,
    ) -> Self {
        let listen = listeners.clients.address();
        let admin = listeners.admin_address(*config.admin);
        let scheme = |is_https: bool| if is_https { "https" } else { "http" };
        let client_scheme = scheme(listeners.tls.client_acceptor.is_some());
        let admin_scheme = scheme(listeners.tls.admin_acceptor.is_some());
        Self {
            #[cfg(feature = "tools")]
            listen,
            #[cfg(feature = "tools")]
            admin,
            client_url: format!("{client_scheme}://{listen}/v1"),
            admin_url: format!("{admin_scheme}://{admin}"),
            has_admin_token: config.access.admin_token.is_some(),
            max_connections: listeners.limits.max_connections,
            traces: workers.traces_endpoint().map(str::to_owned),
            outputs: AttachedOptions::outputs(config),
            pool: pool.clone(),
        }
    }

    /// The destination to which the option with this key writes requests. `None`: it writes none.
    #[cfg(feature = "options")]
    fn output(&self, key: &str) -> Option<&str> {
        let output = self.outputs.iter().find(|output| output.key == key)?;
        Some(&output.target)
    }
}

/// Defines [`log_start`]: the names of the fields of a log line must be constants.
macro_rules! define_log_start {
    ({} $($key:ident: $option:ty $(, $description:literal)? $(, reads $read:expr)? $(, facet $facet:expr)?;)*) => {
        /// Logs the settings of the gateway as fields.
        fn log_start(summary: &StartSummary) {
            let max_connections = summary.max_connections;
            tracing::info!(
                version = env!("CARGO_PKG_VERSION"),
                clients = summary.client_url,
                admin = summary.admin_url,
                admin_token = summary.has_admin_token,
                policy = summary.pool.policy().name(),
                max_connections = (max_connections != usize::MAX).then_some(max_connections),
                traces = summary.traces,
                $($key = summary.output(stringify!($key)),)*
                "gateway started"
            );
        }
    };
}

with_options!(define_log_start {});

/// Prints the banner to standard error, in the format of the process log.
pub(crate) fn show(summary: &StartSummary, logs: &LogWriters) {
    if logs.is_json {
        log_fields(summary);
    } else {
        eprint!("{}", render(summary));
    }
}

/// Logs the content of the banner as fields, with one line for the gateway and one line for each backend.
fn log_fields(summary: &StartSummary) {
    log_start(summary);
    let now = clock::now();
    for backend in summary.pool.backends().iter() {
        let BackendStatusSnapshot { backend, facts, .. } = admin::backend_status(backend, now);
        tracing::info!(
            backend = sanitize::line(&backend),
            url = facts.url,
            health = facts.health,
            reason = facts.reason.as_deref().map(sanitize::line),
            version = facts.version.as_deref().map(sanitize::line),
            models = sanitize::line(&list_models(&facts.models)),
            metrics = facts
                .scrape_error
                .as_deref()
                .or(facts.scrape_age_seconds.map(|_| "ok")),
            kv_capacity_tokens = facts.kv_capacity_tokens,
            "backend at start"
        );
    }
    let readiness = summary.pool.readiness(now);
    if !readiness.is_ready {
        tracing::warn!(
            states = readiness.summary(),
            "gateway not ready: health checks continue"
        );
    }
}

fn render(summary: &StartSummary) -> String {
    let mut text = String::new();
    let traces = match &summary.traces {
        Some(endpoint) => format!("to {endpoint}"),
        None => "off; set OTEL_EXPORTER_OTLP_ENDPOINT to a collector".into(),
    };
    let limits = match summary.max_connections {
        usize::MAX => "no limit of connections".into(),
        max => format!("{max} connections, each with a request"),
    };
    let token = if summary.has_admin_token {
        "a token is required"
    } else {
        "no token"
    };
    let paths = "a page, /metrics /status /decisions /config /readyz";
    let mut lines = vec![
        ("clients", summary.client_url.clone()),
        ("admin", format!("{}  {paths}; {token}", summary.admin_url)),
        ("limits", limits),
        ("policy", summary.pool.policy().name().into()),
        ("traces", traces),
    ];
    let outputs = summary.outputs.iter();
    lines.extend(outputs.map(|output| (output.name, output.text.clone())));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "tokenweir {}", env!("CARGO_PKG_VERSION"));
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<8}  {value}");
    }
    let now = clock::now();
    for backend in summary.pool.backends().iter() {
        let _ = writeln!(
            text,
            "  backend   {}",
            sanitize::line(&describe_backend(&admin::backend_status(backend, now)))
        );
    }
    let readiness = summary.pool.readiness(now);
    if !readiness.is_ready {
        let states = readiness.summary();
        let _ = writeln!(text, "  not ready: {states}; health checks continue");
    }
    text
}

/// Lists the first [`MAX_LISTED_MODELS`] models and the number of further models as text.
fn list_models(models: &[String]) -> String {
    let shown: Vec<&str> = models
        .iter()
        .take(MAX_LISTED_MODELS)
        .map(String::as_str)
        .collect();
    let shown = shown.join(", ");
    let omitted = models.len().saturating_sub(MAX_LISTED_MODELS);
    if omitted == 0 {
        shown
    } else {
        format!("{shown} and {omitted} more")
    }
}

/// Renders the banner line of one backend: its name, URL and health, and then its models or the reason of a
/// failure.
fn describe_backend(status: &BackendStatusSnapshot) -> String {
    let BackendStatusSnapshot { backend, facts, .. } = status;
    // Without a configured name, the name of a backend is its address.
    let has_name = !facts.url.ends_with(&format!("//{backend}"));
    let name = has_name.then(|| backend.clone());
    let mut parts: Vec<String> = name
        .into_iter()
        .chain([facts.url.clone(), facts.health.clone()])
        .collect();
    if let Some(reason) = &facts.reason {
        parts.push(reason.clone());
        return parts.join("  ");
    }
    parts.extend(
        facts
            .version
            .as_ref()
            .map(|version| format!("vLLM {version}")),
    );
    if !facts.models.is_empty() {
        parts.push(format!("serves {}", list_models(&facts.models)));
    }
    parts.push(match (&facts.scrape_error, facts.kv_capacity_tokens) {
        (Some(error), _) => format!("metrics: {error}, routed by requests in flight"),
        (None, Some(tokens)) => format!("metrics ok, {tokens} tokens of KV cache"),
        (None, None) => "metrics ok".into(),
    });
    parts.join("  ")
}
