//! The section `tracing`: export of traces.

use http::Uri;
use tokenweir_engine::address::has_valid_port;
use tokenweir_gateway::telemetry::otel::TracingConfig;
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, require, share, violation_at};

/// Values, rules and reload class of the section `tracing`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = TracingConfig;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(tracing: &TracingConfig, _: &C) -> CheckResult {
        share("tracing.ratio", tracing.ratio)?;
        let problem = "write an http:// or https:// URL with {trace_id} and without a password";
        require(
            tracing.ui.as_deref().is_none_or(is_trace_link),
            "tracing.ui",
            problem,
        )?;
        match tracing.endpoint.as_deref().map(check_collector_url) {
            Some(Err(problem)) => Err(violation_at("tracing.endpoint", problem)),
            _ => Ok(()),
        }
    }
}

fn is_trace_link(url: &str) -> bool {
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    is_web && url.contains("{trace_id}") && !url.contains('@')
}

fn check_collector_url(endpoint: &str) -> Result<(), &'static str> {
    const NOT_URL: &str = "this is not a URL; write http://host:4317";
    let uri: Uri = endpoint.parse().map_err(|_| NOT_URL)?;
    let authority = uri.authority().ok_or(NOT_URL)?;
    if authority.as_str().contains('@') {
        return Err(
            "remove the user name and password, because the URL is shown: use \
             OTEL_EXPORTER_OTLP_HEADERS",
        );
    }
    if !has_valid_port(&uri) {
        return Err(NOT_URL);
    }
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok(()),
        Some(_) => Err("collectors need http:// or https://"),
    }
}
