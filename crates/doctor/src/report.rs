//! Renders facts and findings: as text of any width for people, and as one JSON object.

use super::checks::{self, CHECKS};
use super::facts::{BackendFacts, DoctorFacts, IdleConnection, StreamProbe};
use super::finding::{Finding, FindingSeverity, Remark};
use super::signal_names::{EngineMetricNames, names};
use serde_json::{Map, Value, json};
use textwrap::{Options, WordSplitter, fill};
use tokenweir_engine::dialect::EngineKind;

/// Indentation of the reason and the remedy of a finding.
pub const INDENT: &str = "    ";
/// Minimum width of the text report, in columns. On a narrower terminal, the terminal itself wraps the lines.
pub const NARROWEST: usize = 30;

/// Parameters of the escape code for bold text (SGR, ECMA-48).
const BOLD: &str = "1";
/// Parameters of the escape code for bold red text.
pub const BOLD_RED: &str = "1;31";
/// Parameters of the escape code for bold yellow text.
pub const BOLD_YELLOW: &str = "1;33";
/// Parameters of the escape code for bold cyan text.
pub const BOLD_CYAN: &str = "1;36";

/// The report as one JSON object, for programs.
pub fn json(facts: &DoctorFacts, findings: &[Finding]) -> Value {
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.remark.severity == severity)
            .count()
    };
    json!({
        "tokenweir": env!("CARGO_PKG_VERSION"),
        "backends": facts.backends.iter().map(backend_json).collect::<Vec<_>>(),
        "collector": facts.collector.as_ref().map(|collector| json!({
            "endpoint": collector.endpoint,
            "protocol": collector.protocol,
            "problem": collector.problem,
        })),
        "findings": findings,
        "counts": {
            "error": count(FindingSeverity::Error),
            "warning": count(FindingSeverity::Warning),
            "note": count(FindingSeverity::Note),
        },
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
    let width = width.max(NARROWEST);
    let mut lines = Vec::new();
    for backend in &facts.backends {
        let line = describe_backend(backend);
        lines.push(wrap_paragraph(
            &line,
            "",
            INDENT,
            width,
            Some((&backend.id, BOLD)),
        ));
    }
    for (backends, signals) in engine_metric_tables(facts) {
        let heading = format!("engine metrics of {}", backends.join(", "));
        lines.extend([
            String::new(),
            wrap_paragraph(&heading, "", INDENT, width, None),
        ]);
        for (signal, names) in signals {
            let names = if names.is_empty() {
                "-".to_owned()
            } else {
                names.join(" ")
            };
            let line = format!("{signal:<15} {names}");
            lines.push(wrap_paragraph(&line, "  ", "      ", width, None));
        }
    }
    for finding in findings {
        lines.push(String::new());
        lines.extend(render_finding(finding, width, facts.backends.len()));
    }
    lines.extend([
        String::new(),
        fill(&render_summary(facts, findings), width),
        String::new(),
    ]);
    lines.join("\n")
}

/// One line about a backend: its name, URL, server, models, KV cache capacity and response time.
fn describe_backend(backend: &BackendFacts) -> String {
    let mut parts = vec![backend.id.clone()];
    if backend.url.authority() != backend.id {
        parts.push(backend.url.to_string());
    }
    match (backend.is_reached(), backend.server()) {
        (false, _) => parts.push("not reached".into()),
        (true, _) if backend.gateway_listener().is_some() => {
            parts.push("a tokenweir gateway".into());
        }
        (true, Some(EngineKind::Vllm)) => {
            let version = backend
                .version_text()
                .unwrap_or_else(|| "of unknown version".into());
            let front_end = if backend.is_rust_front_end() {
                " (Rust front end)"
            } else {
                ""
            };
            parts.push(format!("vLLM {version}{front_end}"));
        }
        (true, Some(other)) => parts.push(other.as_str().into()),
        (true, None) => parts.push("unknown server".into()),
    }
    let models = backend.served().unwrap_or_default();
    if !models.is_empty() {
        let models: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        parts.push(format!("serves {}", models.join(", ")));
    }
    if let Some(tokens) = backend.load().and_then(|load| load.capacity()) {
        parts.push(format!("{tokens} tokens of KV cache"));
    }
    if let Ok(answer) = &backend.health {
        parts.push(format!(
            "answers in {:.1} ms",
            answer.took.as_secs_f64() * 1e3
        ));
    }
    parts.join("  ")
}

/// The tables of metric names in the report. Each table has the names of its backends, and for each signal,
/// the names of the metrics that provide it. Backends with equal metric names share one table.
fn engine_metric_tables(facts: &DoctorFacts) -> Vec<(Vec<&str>, Vec<EngineMetricNames>)> {
    let mut tables: Vec<(Vec<&str>, Vec<EngineMetricNames>)> = Vec::new();
    for backend in facts
        .backends
        .iter()
        .filter(|backend| backend.load().is_some())
    {
        let signals = names(backend.page().unwrap_or_default());
        match tables.iter_mut().find(|(_, same)| *same == signals) {
            Some((backends, _)) => backends.push(&backend.id),
            None => tables.push((vec![&backend.id], signals)),
        }
    }
    tables
}

fn render_finding(finding: &Finding, width: usize, backend_count: usize) -> Vec<String> {
    let Finding {
        check,
        backends,
        remark,
    } = finding;
    let Remark {
        severity,
        observation,
        reason,
        remedy,
    } = remark;
    let subject = match backends.as_slice() {
        [] => String::new(),
        names if names.len() == backend_count && backend_count > 1 => "all backends: ".to_owned(),
        names => format!("{}: ", names.join(", ")),
    };
    let head = format!("{}  {subject}{observation}  [{check}]", severity.as_str());
    let styled = Some((severity.as_str(), severity_style(*severity)));
    let mut lines = vec![
        wrap_paragraph(&head, "", INDENT, width, styled),
        wrap_paragraph(reason, INDENT, INDENT, width, None),
    ];
    if let Some(remedy) = remedy {
        lines.push(wrap_paragraph(
            &format!("-> {remedy}"),
            INDENT,
            "       ",
            width,
            None,
        ));
    }
    lines
}

fn severity_style(severity: FindingSeverity) -> &'static str {
    match severity {
        FindingSeverity::Error => BOLD_RED,
        FindingSeverity::Warning => BOLD_YELLOW,
        FindingSeverity::Note => BOLD_CYAN,
    }
}

/// Wraps text to `width` columns. `first_indent` is the indentation of the first line, and `next_indent` that
/// of all other lines. `styled`: a prefix of the text and its style, such as `BOLD`. The style is applied after
/// wrapping, so that its escape codes do not count as columns.
pub fn wrap_paragraph(
    words: &str,
    first_indent: &str,
    next_indent: &str,
    width: usize,
    styled: Option<(&str, &str)>,
) -> String {
    // A flag such as `--max-num-seqs` is not split at its hyphens, so that a user can copy it.
    let options = Options::new(width)
        .initial_indent(first_indent)
        .subsequent_indent(next_indent)
        .word_splitter(WordSplitter::NoHyphenation);
    // Control characters from a backend must not reach the terminal.
    let words: String = words
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let lines = fill(&words, options);
    match styled.and_then(|(prefix, style)| Some((prefix, style, lines.strip_prefix(prefix)?))) {
        Some((prefix, style, suffix)) => format!("\x1b[{style}m{prefix}\x1b[0m{suffix}"),
        None => lines,
    }
}

/// A text without the escape codes of its styles.
pub fn without_styles(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest));
    std::iter::once(first).chain(rest).collect()
}

fn render_summary(facts: &DoctorFacts, findings: &[Finding]) -> String {
    let count = |severity: FindingSeverity| {
        let count = findings
            .iter()
            .filter(|finding| finding.remark.severity == severity)
            .count();
        format!(
            "{count} {}{}",
            severity.as_str(),
            if count == 1 { "" } else { "s" }
        )
    };
    let [errors, warnings, notes] = [
        FindingSeverity::Error,
        FindingSeverity::Warning,
        FindingSeverity::Note,
    ]
    .map(count);
    let checks = match checks::made(facts) {
        made if made == CHECKS.len() => format!("{made} checks"),
        made => format!("{made} of {} checks", CHECKS.len()),
    };
    format!("{checks}: {errors}, {warnings}, {notes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{GatherError, TargetKey};
    use crate::gather::{GatherTarget, unreached_backend};
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
    fn a_flag_is_not_split_at_its_hyphens() {
        for width in 30..80 {
            let text = wrap_paragraph(
                "Lower --max-num-batched-tokens now.",
                "-> ",
                "",
                width,
                None,
            );
            assert!(text.contains("--max-num-batched-tokens"), "{width}: {text}");
        }
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
