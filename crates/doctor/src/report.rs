//! Facts and findings as they are shown: for people on a terminal of any width, and as one JSON
//! object.

use super::checks::CHECKS;
use super::facts::{Facts, Idle, Probe, Replica};
use super::finding::{Finding, Severity};
use super::names::{Named, names};
use anstyle::{AnsiColor, Style};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use textwrap::{Options, fill};
use tokenweir_core::dialect::Server;

/// Where explanations begin in a line.
pub const INDENT: &str = "    ";
/// The narrowest that lines are made for; narrower terminals wrap them again.
pub const NARROWEST: usize = 30;

/// Everything, for programs.
pub fn json(facts: &Facts, findings: &[Finding]) -> Value {
    let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
    json!({
        "tokenweir": env!("CARGO_PKG_VERSION"),
        "replicas": facts.replicas.iter().map(replica).collect::<Vec<_>>(),
        "collector": facts.collector.as_ref().map(|it| json!({
            "endpoint": it.endpoint, "protocol": it.protocol, "problem": it.problem,
        })),
        "findings": findings,
        "counts": {
            "error": count(Severity::Error),
            "warning": count(Severity::Warning),
            "note": count(Severity::Note),
        },
        "checks": CHECKS.map(|check| check.name),
    })
}

fn replica(replica: &Replica) -> Value {
    let load = replica.load();
    let signals = names(replica.page().unwrap_or_default());
    let signals: Map<String, Value> =
        signals.into_iter().map(|(signal, names)| (signal.to_owned(), names.into())).collect();
    let models = replica.served().unwrap_or_default();
    let models = models.iter().map(|model| {
        json!({
            "id": &*model.id,
            "parent": model.parent.as_deref(),
            "max_model_len": model.entry.get("max_model_len"),
        })
    });
    json!({
        "name": replica.id,
        "url": replica.url.to_string(),
        "reached": replica.is_reached(),
        "server": replica.server().map(Server::as_str),
        "version": replica.version_text(),
        "front_end": front_end(replica),
        "models": models.collect::<Vec<_>>(),
        "kv_capacity_tokens": load.and_then(|load| load.capacity()),
        "answers_in_seconds": replica.health.as_ref().ok().map(|it| it.took.as_secs_f64()),
        "metrics_in_seconds": replica.metrics.as_ref().ok().map(|it| it.took.as_secs_f64()),
        "signals": signals,
        "idle_connection": replica.idle.map(|idle| match idle {
            Idle::Closed(after) => json!({ "closed_after_seconds": after.as_secs_f64() }),
            Idle::Open(after) => json!({ "open_after_seconds": after.as_secs_f64() }),
        }),
        "probe": replica.probe.as_ref().and_then(|it| it.as_ref().ok()).map(probe),
    })
}

fn probe(probe: &Probe) -> Value {
    let after =
        |at: std::time::Instant| at.saturating_duration_since(probe.timings.accepted).as_secs_f64();
    json!({
        "path": probe.path,
        "status": probe.status.as_u16(),
        "first_output_seconds": probe.timings.first_output.map(after),
        "last_output_seconds": probe.timings.last_output.map(after),
        "output_events": probe.observed.output_events,
        "input_tokens": probe.observed.usage.input,
        "output_tokens": probe.observed.usage.output,
        "cached_tokens": probe.observed.usage.cached,
    })
}

fn front_end(replica: &Replica) -> Option<&'static str> {
    let is_vllm = replica.server() == Some(Server::Vllm);
    is_vllm.then(|| if replica.is_rust_front_end() { "rust" } else { "python" })
}

/// Everything, for people, in lines of `width` columns. With colours, which whoever writes it may
/// have to take out.
pub fn text(facts: &Facts, findings: &[Finding], width: usize) -> String {
    let mut text = String::new();
    let width = width.max(NARROWEST);
    for replica in &facts.replicas {
        let line = described(replica);
        let style = Style::new().bold();
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{}", paragraph(&line, "", INDENT, width, Some((&replica.id, style))));
    }
    for (replicas, signals) in tables(facts) {
        let heading = format!("signals of {}", replicas.join(", "));
        let _ = writeln!(text, "\n{}", paragraph(&heading, "", INDENT, width, None));
        for (signal, names) in signals {
            let names = if names.is_empty() { "-".to_owned() } else { names.join(" ") };
            let line = format!("{signal:<15} {names}");
            let _ = writeln!(text, "{}", paragraph(&line, "  ", "      ", width, None));
        }
    }
    for finding in findings {
        let _ = write!(text, "\n{}", told(finding, width, facts.replicas.len()));
    }
    let _ = writeln!(text, "\n{}", fill(&summary(findings), width));
    text
}

fn described(replica: &Replica) -> String {
    let mut parts = vec![replica.id.clone()];
    if replica.url.authority() != replica.id {
        parts.push(replica.url.to_string());
    }
    match (replica.is_reached(), replica.server()) {
        (false, _) => parts.push("not reached".into()),
        (true, _) if replica.gateway_port().is_some() => parts.push("a tokenweir gateway".into()),
        (true, Some(Server::Vllm)) => {
            let version = replica.version_text().unwrap_or_else(|| "of unknown version".into());
            let front_end = if replica.is_rust_front_end() { " (Rust front end)" } else { "" };
            parts.push(format!("vLLM {version}{front_end}"));
        }
        (true, Some(other)) => parts.push(other.as_str().into()),
        (true, None) => parts.push("of an unknown kind".into()),
    }
    let models = replica.served().unwrap_or_default();
    if !models.is_empty() {
        let models: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        parts.push(format!("serves {}", models.join(", ")));
    }
    if let Some(tokens) = replica.load().and_then(|load| load.capacity()) {
        parts.push(format!("{tokens} tokens of KV cache"));
    }
    if let Ok(answer) = &replica.health {
        parts.push(format!("answers in {:.1} ms", answer.took.as_secs_f64() * 1e3));
    }
    parts.join("  ")
}

/// The names of signals, once for all replicas that have the same.
fn tables(facts: &Facts) -> Vec<(Vec<&str>, Vec<Named>)> {
    let mut tables: Vec<(Vec<&str>, Vec<Named>)> = Vec::new();
    for replica in facts.replicas.iter().filter(|replica| replica.load().is_some()) {
        let signals = names(replica.page().unwrap_or_default());
        match tables.iter_mut().find(|(_, same)| *same == signals) {
            Some((replicas, _)) => replicas.push(&replica.id),
            None => tables.push((vec![&replica.id], signals)),
        }
    }
    tables
}

fn told(finding: &Finding, width: usize, replicas: usize) -> String {
    let Finding { check, severity, seen, why, change, .. } = finding;
    let whose = match finding.replicas.as_slice() {
        [] => String::new(),
        all if all.len() == replicas && replicas > 1 => "all replicas: ".to_owned(),
        some => format!("{}: ", some.join(", ")),
    };
    let mut text = String::new();
    let head = format!("{}  {whose}{seen}  [{check}]", severity.as_str());
    let styled = Some((severity.as_str(), style(*severity)));
    let _ = writeln!(text, "{}", paragraph(&head, "", INDENT, width, styled));
    let _ = writeln!(text, "{}", paragraph(why, INDENT, INDENT, width, None));
    if let Some(change) = change {
        let change = format!("-> {change}");
        let _ = writeln!(text, "{}", paragraph(&change, INDENT, "       ", width, None));
    }
    text
}

fn style(severity: Severity) -> Style {
    let colour = match severity {
        Severity::Error => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Note => AnsiColor::Cyan,
    };
    colour.on_default().bold()
}

/// Wrapped. What it begins with may have a style: it is put there afterwards, so that it has no
/// width.
pub fn paragraph(
    words: &str,
    first: &str,
    next: &str,
    width: usize,
    styled: Option<(&str, Style)>,
) -> String {
    let options = Options::new(width).initial_indent(first).subsequent_indent(next);
    // What replicas say must not move the cursor.
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let lines = fill(&words, options);
    match styled.and_then(|(begin, style)| Some((begin, style, lines.strip_prefix(begin)?))) {
        Some((begin, style, rest)) => format!("{style}{begin}{style:#}{rest}"),
        None => lines,
    }
}

fn summary(findings: &[Finding]) -> String {
    let count = |severity: Severity| {
        let count = findings.iter().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", severity.as_str(), if count == 1 { "" } else { "s" })
    };
    let [errors, warnings, notes] = [Severity::Error, Severity::Warning, Severity::Note].map(count);
    format!("{} checks: {errors}, {warnings}, {notes}", CHECKS.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Key, Silence};
    use tokenweir_core::address::Address;

    fn facts() -> Facts {
        let silence = || Err(Silence::Connect("Connection refused (os error 111)".into()));
        let replica = Replica {
            id: "gpu-0".into(),
            url: Address::parse("http://10.0.0.7:8000").unwrap(),
            key: Key::None,
            health: silence(),
            version: silence(),
            models: silence(),
            models_without_key: None,
            metrics: silence(),
            options: Vec::new(),
            event_sources: Err(Silence::NotAsked),
            idle: None,
            probe: None,
        };
        Facts { replicas: vec![replica], ..Facts::default() }
    }

    fn finding(seen: &str) -> Finding {
        Finding {
            check: "reachable",
            severity: Severity::Error,
            replicas: vec!["gpu-0".into()],
            seen: seen.to_owned(),
            why: "Nobody listens there, or a name or a firewall is in the way.".into(),
            change: Some("vllm serve --port 8000, or correct the URL of this replica".into()),
        }
    }

    fn shown(seen: &str, width: usize) -> String {
        let text = text(&facts(), &[finding(seen)], width);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn forty_columns_are_enough_and_nothing_is_left_out() {
        let shown = shown("cannot connect: Connection refused (os error 111)", 40);
        for line in shown.lines() {
            assert!(line.chars().count() <= 40, "{line:?}");
        }
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "error gpu-0: cannot connect: Connection refused (os error 111) [reachable]",
            "a firewall is in the way.",
            "-> vllm serve --port 8000, or correct the URL of this replica",
            "1 error, 0 warnings, 0 notes",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn what_a_replica_says_cannot_move_the_cursor() {
        let shown = shown("it says \u{1b}[2J\r\n gone", 80);
        assert!(!shown.contains(['\u{1b}', '\r']), "{shown:?}");
        assert!(shown.contains("[2J"), "{shown:?}");
    }

    #[test]
    fn a_report_for_programs_has_what_the_one_for_people_has() {
        let json = json(&facts(), &[finding("cannot connect")]);
        assert_eq!(json["counts"]["error"], 1);
        assert_eq!(json["findings"][0]["replicas"][0], "gpu-0");
        assert_eq!(json["findings"][0]["severity"], "error");
        assert_eq!(json["replicas"][0]["reached"], false);
        assert_eq!(json["checks"].as_array().unwrap().len(), CHECKS.len());
    }
}
