//! Renders facts and findings: as text of any width for people, and as one JSON object.

use super::checks::{self, CHECKS};
use super::facts::{BackendFacts, DoctorFacts, IdleConnection, StreamProbe};
use super::finding::{Finding, FindingSeverity, Remark};
use super::signal_names::{EngineMetricNames, names};
use super::text_report::TextReport;
use serde_json::{Map, Value, json};
use tokenweir_engine::dialect::EngineKind;

/// The report as one JSON object, for programs.
pub fn json(facts: &DoctorFacts, findings: &[Finding]) -> Value {
    let counts = FindingSeverity::ALL.map(|severity| {
        let name = severity.as_str().to_owned();
        (name, count_of(findings, severity).into())
    });
    json!({
        "tokenweir": env!("CARGO_PKG_VERSION"),
        "backends": facts.backends.iter().map(backend_json).collect::<Vec<_>>(),
        "collector": facts.collector.as_ref().map(|collector| json!({
            "endpoint": collector.endpoint,
            "protocol": collector.protocol,
            "problem": collector.problem,
        })),
        "findings": findings,
        "counts": Map::from_iter(counts),
        "checks": CHECKS.map(|(name, _)| name),
        "checks_made": checks::made(facts),
    })
}

fn backend_json(backend: &BackendFacts) -> Value {
    let load = backend.load();
    let engine_metrics = names(backend.page().unwrap_or_default());
    let engine_metrics: Map<String, Value> = engine_metrics
        .into_iter()
        .map(|(signal, names)| (signal.to_owned(), names.into()))
        .collect();
    let models = backend.served().unwrap_or_default();
    let models = models.iter().map(|model| {
        json!({
            "id": &*model.id,
            "parent": model.parent.as_deref(),
            "max_model_len": model.entry.get("max_model_len"),
        })
    });
    json!({
        "name": backend.id,
        "url": backend.url.to_string(),
        "reached": backend.is_reached(),
        "server": backend.server().map(EngineKind::as_str),
        "version": backend.version_text(),
        "front_end": front_end(backend),
        "models": models.collect::<Vec<_>>(),
        "kv_capacity_tokens": load.and_then(|load| load.capacity()),
        "answers_in_seconds": backend.health.as_ref().ok().map(|answer| answer.took.as_secs_f64()),
        "metrics_in_seconds": backend.metrics.as_ref().ok().map(|answer| answer.took.as_secs_f64()),
        "engine_metrics": engine_metrics,
        "idle_connection": backend.idle.map(|idle| match idle {
            IdleConnection::Closed(after) => json!({ "closed_after_seconds": after.as_secs_f64() }),
            IdleConnection::Open(after) => json!({ "open_after_seconds": after.as_secs_f64() }),
        }),
        "probe": backend.probe.as_ref().and_then(|probe| probe.as_ref().ok()).map(probe_json),
    })
}

fn probe_json(probe: &StreamProbe) -> Value {
    let seconds_after_start = |at: std::time::Instant| {
        at.saturating_duration_since(probe.timings.accepted)
            .as_secs_f64()
    };
    json!({
        "path": probe.path,
        "status": probe.status.as_u16(),
        "first_output_seconds": probe.timings.first_output.map(seconds_after_start),
        "last_output_seconds": probe.timings.last_output.map(seconds_after_start),
        "output_events": probe.observed.output_events,
        "input_tokens": probe.observed.usage.input,
        "output_tokens": probe.observed.usage.output,
        "cached_tokens": probe.observed.usage.cached,
    })
}

fn front_end(backend: &BackendFacts) -> Option<&'static str> {
    let is_vllm = backend.server() == Some(EngineKind::Vllm);
    is_vllm.then(|| {
        if backend.is_rust_front_end() {
            "rust"
        } else {
            "python"
        }
    })
}

/// The report as text in lines of at most `width` columns, with ANSI colours. The caller removes the colours if
/// the output is not a terminal.
pub fn text(facts: &DoctorFacts, findings: &[Finding], width: usize) -> String {
    let mut report = TextReport::new(width);
    for backend in &facts.backends {
        report.named(&backend.id, &describe_backend(backend));
    }
    for table in engine_metric_tables(facts) {
        report.empty_line();
        report.paragraph(&format!("engine metrics of {}", table.backends.join(", ")));
        for (signal, names) in table.signals {
            let names = if names.is_empty() {
                "-".to_owned()
            } else {
                names.join(" ")
            };
            report.row(&format!("{signal:<15} {names}"));
        }
    }
    for finding in findings {
        report.empty_line();
        render_finding(&mut report, finding, facts.backends.len());
    }
    report.empty_line();
    report.summary(&render_summary(facts, findings));
    report.text
}

/// The rest of the line about a backend, after its name: its URL, server, models, KV cache capacity and response
/// time.
fn describe_backend(backend: &BackendFacts) -> String {
    let mut parts = Vec::new();
    if backend.url.authority() != backend.id {
        parts.push(backend.url.to_string());
    }
    parts.push(describe_server(backend));
    let models = backend.served().unwrap_or_default();
    if !models.is_empty() {
        let models: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        parts.push(format!("serves {}", models.join(", ")));
    }
    if let Some(tokens) = backend.load().and_then(|load| load.capacity()) {
        parts.push(format!("{tokens} tokens of KV cache"));
    }
    if let Ok(answer) = &backend.health {
        let milliseconds = answer.took.as_secs_f64() * 1e3;
        parts.push(format!("answers in {milliseconds:.1} ms"));
    }
    format!("  {}", parts.join("  "))
}

fn describe_server(backend: &BackendFacts) -> String {
    if !backend.is_reached() {
        return "not reached".to_owned();
    }
    if backend.gateway_listener().is_some() {
        return "a tokenweir gateway".to_owned();
    }
    match backend.server() {
        Some(EngineKind::Vllm) => {
            let version = backend.version_text();
            let version = version.as_deref().unwrap_or("of unknown version");
            let front_end = if backend.is_rust_front_end() {
                " (Rust front end)"
            } else {
                ""
            };
            format!("vLLM {version}{front_end}")
        }
        Some(other) => other.as_str().to_owned(),
        None => "unknown server".to_owned(),
    }
}

struct EngineMetricTable<'a> {
    backends: Vec<&'a str>,
    signals: Vec<EngineMetricNames>,
}

/// The tables of metric names in the report. Backends with equal metric names share one table.
fn engine_metric_tables(facts: &DoctorFacts) -> Vec<EngineMetricTable<'_>> {
    let mut tables: Vec<EngineMetricTable<'_>> = Vec::new();
    let backends = facts.backends.iter();
    for backend in backends.filter(|backend| backend.load().is_some()) {
        let signals = names(backend.page().unwrap_or_default());
        match tables.iter_mut().find(|table| table.signals == signals) {
            Some(table) => table.backends.push(&backend.id),
            None => tables.push(EngineMetricTable {
                backends: vec![&backend.id],
                signals,
            }),
        }
    }
    tables
}

fn render_finding(report: &mut TextReport, finding: &Finding, backend_count: usize) {
    let Remark {
        severity,
        observation,
        reason,
        remedy,
    } = &finding.remark;
    let subject = match finding.backends.as_slice() {
        [] => String::new(),
        names if names.len() == backend_count && backend_count > 1 => "all backends: ".to_owned(),
        names => format!("{}: ", names.join(", ")),
    };
    let words = format!("{subject}{observation}  [{}]", finding.check);
    report.finding(severity.as_str(), &words);
    report.detail(reason);
    if let Some(remedy) = remedy {
        report.remedy(remedy);
    }
}

fn render_summary(facts: &DoctorFacts, findings: &[Finding]) -> String {
    let mut counts = Vec::new();
    for severity in FindingSeverity::ALL.into_iter().rev() {
        let count = count_of(findings, severity);
        let plural = if count == 1 { "" } else { "s" };
        counts.push(format!("{count} {}{plural}", severity.as_str()));
    }
    let checks = match checks::made(facts) {
        made if made == CHECKS.len() => format!("{made} checks"),
        made => format!("{made} of {} checks", CHECKS.len()),
    };
    format!("{checks}: {}", counts.join(", "))
}

fn count_of(findings: &[Finding], severity: FindingSeverity) -> usize {
    let found = findings.iter();
    found
        .filter(|finding| finding.remark.severity == severity)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{GatherError, TargetKey};
    use crate::gather::{GatherTarget, unreached_backend};
    use crate::text_report::without_styles;
    use tokenweir_engine::address::BackendAddress;

    fn facts() -> DoctorFacts {
        let target = GatherTarget {
            id: "gpu-0".into(),
            url: BackendAddress::parse("http://10.0.0.7:8000").unwrap(),
            metrics_url: None,
            key: TargetKey::None,
        };
        let refused = GatherError::Connect("Connection refused (os error 111)".into());
        let backend = BackendFacts {
            health: Err(refused),
            ..unreached_backend(target)
        };
        DoctorFacts {
            backends: vec![backend],
            ..DoctorFacts::default()
        }
    }

    fn finding(observation: &str) -> Finding {
        let remark = Remark::error(observation)
            .because("No process listens there, or a wrong host name or a firewall prevents it.")
            .remedy("vllm serve --port 8000, or correct the URL of this backend");
        Finding {
            check: "reachable",
            backends: vec!["gpu-0".into()],
            remark,
        }
    }

    fn render_stripped(observation: &str, width: usize) -> String {
        let text = text(&facts(), &[finding(observation)], width);
        without_styles(&text)
    }

    #[test]
    fn a_report_with_forty_columns_has_all_words() {
        let shown = render_stripped("cannot connect: Connection refused (os error 111)", 40);
        for line in shown.lines() {
            assert!(line.chars().count() <= 40, "{line:?}");
        }
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "error gpu-0: cannot connect: Connection refused (os error 111) [reachable]",
            "a firewall prevents it.",
            "-> vllm serve --port 8000, or correct the URL of this backend",
            "3 of 30 checks: 1 error, 0 warnings, 0 notes",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let shown = render_stripped("text \u{1b}[2J\r\n end", 80);
        assert!(!shown.contains(['\u{1b}', '\r']), "{shown:?}");
        assert!(shown.contains("[2J"), "{shown:?}");
    }

    #[test]
    fn the_json_report_has_the_text_reports_content() {
        let json = json(&facts(), &[finding("cannot connect")]);
        assert_eq!(json["counts"]["error"], 1);
        assert_eq!(json["findings"][0]["backends"][0], "gpu-0");
        assert_eq!(json["findings"][0]["severity"], "error");
        assert_eq!(json["backends"][0]["reached"], false);
        assert_eq!(json["checks"].as_array().unwrap().len(), CHECKS.len());
    }
}
