//! Renders the state of a gateway as a few lines of text, for `tokenweir status`.

use super::formatting::{count, percent, seconds, span, text};
use tokenweir_api::{BackendSummary, GatewaySnapshot};

/// The state of a gateway and of its backends. Backends that get no requests come first.
pub fn status_lines(gateway: &GatewaySnapshot) -> Vec<String> {
    let mut state = gateway.state.label().to_owned();
    if !gateway.state_reasons.is_empty() {
        state = format!("{state}: {}", text(Some(&gateway.state_reasons.join("; "))));
    }
    let waiting: usize = gateway.queue.iter().map(|class| class.waiting).sum();
    let last = &gateway.last_minute;
    let ttft = last.ttft.map_or_else(String::new, |ttft| {
        format!(", TTFT p50 {}, p99 {}", seconds(Some(ttft.p50)), seconds(Some(ttft.p99)))
    });
    let up = gateway.backends.iter().filter(|backend| backend.up).count();
    let mut lines = vec![
        format!("tokenweir {}  {state}", text(Some(&gateway.version))),
        format!(
            "policy {}, up {}{}",
            text(Some(&gateway.policy)),
            span(gateway.uptime_seconds),
            if gateway.panic_mode { ", PANIC MODE: ejections are ignored" } else { "" }
        ),
        format!("requests   {} in flight, {waiting} in the queue", gateway.requests_in_flight),
        format!(
            "last {:<5} {} ended, {} failed, {} client disconnects{ttft}",
            span(last.seconds),
            last.requests,
            last.failed,
            last.client_disconnects
        ),
        format!("backends   {up} of {} take requests", gateway.backends.len()),
        String::new(),
    ];
    let mut backends: Vec<&BackendSummary> = gateway.backends.iter().collect();
    backends.sort_by_key(|backend| backend.up);
    let name_width = |backend: &&BackendSummary| text(Some(&backend.name)).chars().count();
    let width = backends.iter().map(name_width).max().unwrap_or_default().clamp(7, 40);
    lines.push(format!(
        "{:<width$} {:<11} {:>9} {:>7} {:>5} {:>7}",
        "BACKEND", "STATE", "IN FLIGHT", "WAITING", "KV", "TTFT"
    ));
    lines.extend(backends.into_iter().map(|backend| {
        let reason = backend.reason.as_deref().or(backend.scrape_error.as_deref());
        let reason = reason.map_or_else(String::new, |reason| format!("  {}", text(Some(reason))));
        format!(
            "{:<width$} {:<11} {:>9} {:>7} {:>5} {:>7}{reason}",
            text(Some(&backend.name)),
            text(Some(&backend.state)),
            backend.in_flight,
            count(backend.waiting),
            percent(backend.kv_usage),
            seconds(backend.ttft_seconds),
        )
    }));
    lines.extend(gateway.verdicts.iter().map(|verdict| {
        let severity = verdict.severity.as_str();
        let cause = verdict.cause.as_deref().unwrap_or(&verdict.meaning);
        format!(
            "{severity}: {}: {}: {}",
            text(Some(verdict.subject())),
            verdict.verdict,
            text(Some(cause))
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::GatewayState;
    use tokenweir_diagnose::Verdict;

    #[test]
    fn backends_without_requests_come_first_with_their_reason() {
        let backend = |name: &str, up, reason: Option<&str>| BackendSummary {
            name: name.to_owned(),
            state: if up { "available" } else { "down" }.to_owned(),
            up,
            reason: reason.map(str::to_owned),
            ..BackendSummary::default()
        };
        let verdict = Verdict { backend: "a".into(), verdict: "v".into(), ..Verdict::default() };
        let gateway = GatewaySnapshot {
            ready: true,
            state: GatewayState::Ready,
            backends: vec![backend("a", true, None), backend("b\u{1b}[2J", false, Some("timeout"))],
            verdicts: vec![verdict],
            ..GatewaySnapshot::default()
        };
        let lines = status_lines(&gateway);
        assert!(lines[0].ends_with("ready") && lines[4].ends_with("1 of 2 take requests"));
        assert!(lines[7].starts_with("b[2J") && lines[7].ends_with("  timeout"), "{lines:?}");
        assert!(lines[8].starts_with("a ") && lines[9].starts_with("warning: a: v: "), "{lines:?}");
    }
}
