//! Renders the state of a gateway as a few lines of text, for `tokenweir status`.

use super::formatting::{count, format_quantiles, number, percent, seconds, span, text};
use std::collections::BTreeMap;
use tokenweir_api::{
    AnswerCounts, BackendSummary, ClientSummary, GatewaySnapshot, condition_counts,
};
use tokenweir_diagnose::VerdictGroup;

/// The state of a gateway and of its backends. Backends that need attention are listed first.
pub fn status_lines(gateway: &GatewaySnapshot) -> Vec<String> {
    let mut lines = gateway_lines(gateway);
    lines.push(String::new());
    lines.extend(backend_table(&gateway.backends));
    lines.extend(main_clients(&gateway.clients));
    lines.extend(changes(gateway));
    let groups = VerdictGroup::fold(&gateway.verdicts);
    lines.extend(groups.iter().map(verdict_line));
    lines
}

/// The lines about the gateway: its state, its requests and the number of its backends.
fn gateway_lines(gateway: &GatewaySnapshot) -> Vec<String> {
    let mut state = gateway.state.label().to_owned();
    if !gateway.state_reasons.is_empty() {
        state = format!("{state}: {}", text(&gateway.state_reasons.join("; ")));
    }
    let waiting: usize = gateway.queue.iter().map(|class| class.waiting).sum();
    let held = gateway.held_because.as_deref();
    let held = held.map_or_else(String::new, |why| format!(": {}", text(why)));
    let last = &gateway.last_minute;
    let mut times = String::new();
    for (name, quantiles) in [("TTFT", last.ttft), ("first answer", last.first_answer)] {
        if quantiles.is_some() {
            times = times + ", " + &format_quantiles(name, quantiles);
        }
    }
    // The clock of a request starts when the gateway reads the request. A gateway without CPU time reads late,
    // so the times are too short.
    let mut verdicts = gateway.verdicts.iter();
    let is_starved = verdicts.any(|verdict| verdict.verdict == "gateway_starved");
    let bounds = if is_starved { " (lower bounds)" } else { "" };
    let mut client_errors = last.backend_client_errors.clone();
    for (status, count) in &last.gateway_client_errors {
        *client_errors.entry(*status).or_default() += count;
    }
    vec![
        format!(
            "tokenweir {}  {}{state}",
            text(&gateway.version),
            answers(&last.answers)
        ),
        format!(
            "policy {}, up {}{}",
            text(&gateway.policy),
            span(gateway.uptime_seconds),
            if gateway.panic_mode {
                ", PANIC MODE: ejections are ignored"
            } else {
                ""
            }
        ),
        format!(
            "requests   {} in flight, {waiting} in the queue{held}",
            gateway.requests_in_flight
        ),
        format!(
            "last {:<5} {} ended, {} failed, {}, {} refused, {} client disconnects{times}{bounds}",
            span(last.seconds),
            last.requests,
            last.failed,
            status_counts(&client_errors),
            last.refused,
            last.client_disconnects
        ),
        format!("backends   {}", text(&condition_counts(&gateway.backends))),
    ]
}

/// The share of good answers in the last minute, and the classes of bad answers, such as `98% good answers (12
/// empty)  `. Empty: there were no answers.
pub(super) fn answers(counts: &AnswerCounts) -> String {
    let Some(share) = counts.good_share() else {
        return String::new();
    };
    let bad = counts.bad();
    let bad = bad.iter().map(|(class, count)| format!("{count} {class}"));
    let bad: Vec<String> = bad.collect();
    let share = percent(Some(share));
    if bad.is_empty() {
        format!("{share} good answers  ")
    } else {
        format!("{share} good answers ({})  ", bad.join(", "))
    }
}

/// The number of 4xx responses, with their statuses, such as `14 4xx (401: 12, 404: 2)`.
pub(super) fn status_counts(by_status: &BTreeMap<u16, u64>) -> String {
    let total: u64 = by_status.values().sum();
    let statuses: Vec<String> = by_status
        .iter()
        .map(|(status, count)| format!("{status}: {count}"))
        .collect();
    if total == 0 {
        "0 4xx".to_owned()
    } else {
        format!("{total} 4xx ({})", statuses.join(", "))
    }
}

/// One line about the clients that cause the most work. `None`: there is at most one client.
pub(super) fn main_clients(ranked: &[ClientSummary]) -> Option<String> {
    let describe = |client: &ClientSummary| {
        let ClientSummary {
            requests,
            prompt_tokens,
            open_streams,
            refused,
            share_of,
            ..
        } = client;
        let share = percent(Some(client.share));
        let prompt_tokens = number(Some(*prompt_tokens as f64));
        format!(
            "{} {share} of the {share_of} ({requests} ended, {open_streams} open, {prompt_tokens} \
             prompt tokens, {refused} refused)",
            text(&client.name())
        )
    };
    let clients: Vec<String> = ranked.iter().take(MAX_CLIENTS).map(describe).collect();
    (ranked.len() > 1).then(|| format!("clients: {}", clients.join("; ")))
}

/// One line about the greatest differences from the last hour. `None`: there is no notable difference.
pub(super) fn changes(gateway: &GatewaySnapshot) -> Option<String> {
    let words: Vec<String> = gateway
        .changes
        .iter()
        .map(|change| format!("{} (for {})", text(&change.words), span(change.age_seconds)))
        .collect();
    (!words.is_empty()).then(|| format!("changed: {}", words.join("; ")))
}

/// Maximum number of clients in the line about the clients.
const MAX_CLIENTS: usize = 3;

/// The table of backends: a line of titles, and one line for each backend.
fn backend_table(backends: &[BackendSummary]) -> Vec<String> {
    let mut backends: Vec<&BackendSummary> = backends.iter().collect();
    backends.sort_by_key(|backend| backend.condition);
    let name_width = |backend: &&BackendSummary| text(&backend.name).chars().count();
    let width = backends
        .iter()
        .map(name_width)
        .max()
        .unwrap_or_default()
        .clamp(7, 60);
    let titles = format!(
        "{:<width$} {:<11} {:>7} {:>6} {:>5} {:>7} {:>9} {:>5}",
        "BACKEND", "STATE", "TTFT", "FAILED", "4XX", "WAITING", "IN FLIGHT", "KV"
    );
    let rows = backends
        .into_iter()
        .map(|backend| backend_line(backend, width));
    [titles].into_iter().chain(rows).collect()
}

/// Why the metrics of a backend cannot be read, in words.
fn scrape_words(error: &str) -> String {
    let why = match error {
        "status" => "it answers with an error status",
        "connect" => "no connection",
        "timeout" => "no answer in time",
        "truncated" => "it breaks off",
        "encoded" => "it is compressed",
        "too_large" => "it is longer than scrape.max_page",
        "not_understood" => "it lacks the numbers of requests",
        other => other,
    };
    format!("its metrics page cannot be read: {why}")
}

/// The line of the table about one backend. `width`: width of the column with the names, in characters.
fn backend_line(backend: &BackendSummary, width: usize) -> String {
    let scrape_error = backend.scrape_error.as_deref().map(scrape_words);
    let reasons = [&backend.condition_reason, &backend.reason, &scrape_error];
    let reason = reasons.into_iter().find_map(Option::as_deref);
    let reason = reason.map_or_else(String::new, |reason| format!("  {}", text(reason)));
    let events = backend
        .kv_events
        .as_deref()
        .filter(|state| *state != "exact");
    let events = events.map_or_else(String::new, |state| format!("  KV events: {}", text(state)));
    format!(
        "{:<width$} {:<11} {:>7} {:>6} {:>5} {:>7} {:>9} {:>5}{reason}{events}",
        text(&backend.name),
        text(backend.condition_word()),
        seconds(backend.ttft_seconds),
        percent(backend.failed_share),
        percent(backend.client_error_share),
        count(backend.waiting),
        backend.in_flight,
        percent(backend.kv_usage),
    )
}

fn verdict_line(group: &VerdictGroup<'_>) -> String {
    let verdict = group.first;
    let severity = verdict.severity.as_str();
    format!(
        "{severity}: {}: {}: {}",
        text(&group.subject()),
        verdict.verdict,
        text(verdict.cause_or_meaning())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::{BackendCondition, GatewayState, LastMinute};
    use tokenweir_diagnose::Verdict;

    #[test]
    fn backends_that_need_attention_come_first() {
        let backend = |name: &str, condition, reason: Option<&str>| BackendSummary {
            name: name.to_owned(),
            condition,
            condition_reason: reason.map(str::to_owned),
            ..BackendSummary::default()
        };
        let verdict = Verdict {
            verdict: "shedding".into(),
            ..Verdict::default()
        };
        let down = backend("b\u{1b}[2J", BackendCondition::Down, Some("timeout"));
        let gateway = GatewaySnapshot {
            state: GatewayState::Degraded,
            state_reasons: vec!["1 of 2 backends down".into(), "1 critical verdict".into()],
            backends: vec![backend("a", BackendCondition::Ok, None), down],
            verdicts: vec![verdict],
            last_minute: LastMinute {
                backend_client_errors: [(401, 12)].into(),
                gateway_client_errors: [(401, 1), (404, 2)].into(),
                ..LastMinute::default()
            },
            clients: ["bad", "good"]
                .map(|tenant| ClientSummary {
                    tenant: Some(tenant.into()),
                    key: Some("k".into()),
                    share: 0.72,
                    share_of: "prompt tokens".into(),
                    ..ClientSummary::default()
                })
                .into(),
            ..GatewaySnapshot::default()
        };
        let lines = status_lines(&gateway);
        assert!(lines[0].ends_with("degraded: 1 of 2 backends down; 1 critical verdict"));
        assert!(
            lines[3].contains(", 15 4xx (401: 13, 404: 2), 0 refused"),
            "{lines:?}"
        );
        assert!(lines[4].ends_with(" 1 ok, 1 down"), "{lines:?}");
        assert!(
            lines[7].starts_with("b[2J") && lines[7].ends_with("  timeout"),
            "{lines:?}"
        );
        assert!(lines[8].starts_with("a "), "{lines:?}");
        assert!(
            lines[9].starts_with("clients: tenant bad, key k 72% of the prompt"),
            "{lines:?}"
        );
        assert!(
            lines[10].starts_with("warning: all backends: shedding: "),
            "{lines:?}"
        );
    }
}
