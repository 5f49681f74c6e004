//! Renders a diagnosis as text of a given width.

use std::collections::BTreeMap;
use tokenweir_diagnose::{Diagnosis, Evidence, Verdict, VerdictSeverity};
use tokenweir_doctor::text_report::TextReport;

/// Renders a diagnosis as text with ANSI colours. The function that prints the text removes the colours if the
/// output is no terminal.
pub(crate) fn render(diagnosis: &Diagnosis, width: usize) -> String {
    let mut report = TextReport::new(width);
    for verdict in &diagnosis.verdicts {
        render_verdict(&mut report, verdict);
        report.empty_line();
    }
    for ((is_determined, reasons), backends) in undetermined_rules(diagnosis) {
        let rules = if is_determined { "rules " } else { "" };
        report.paragraph(&format!("{}: {rules}not judged", backends.join(", ")));
        for reason in reasons {
            report.entry(&reason);
        }
        report.empty_line();
    }
    for anomaly in &diagnosis.anomalies {
        report.paragraph(&format!(
            "note  {}: {} is {}, usually {}",
            anomaly.backend,
            anomaly.measure,
            format_number(anomaly.value, &anomaly.unit),
            format_number(anomaly.usual, &anomaly.unit),
        ));
    }
    report.summary(&render_summary(diagnosis));
    report.text
}

fn render_verdict(report: &mut TextReport, verdict: &Verdict) {
    let head = format!(
        "{}: {}  [{}, confidence {}]",
        verdict.subject(),
        verdict.meaning,
        verdict.verdict,
        verdict.confidence.as_str()
    );
    report.finding(verdict.severity.as_str(), &head);
    if let Some(cause) = &verdict.cause {
        report.detail(&format!("cause: {cause}"));
    }
    for evidence in &verdict.evidence {
        report.entry(&render_evidence(evidence));
    }
    report.remedy(&verdict.remedy);
    report.detail(&format!(
        "Disproved if: {} See {}.",
        verdict.disproof, verdict.runbook
    ));
}

fn render_evidence(evidence: &Evidence) -> String {
    let Evidence {
        measure,
        value,
        unit,
        usual,
        window_seconds,
    } = evidence;
    let usual = usual.map(|usual| format!(", usually {}", format_number(usual, unit)));
    let value = format_number(*value, unit);
    format!(
        "{measure} = {value} in {window_seconds:.0} s{}",
        usual.unwrap_or_default()
    )
}

/// Groups the backends with rules that lack data for a judgement. The key of a group is
/// [`DiagnosedBackend::is_determined`] and the lines to print for each of its backends. A line names all rules
/// that lack the same data. The value is the names of the backends.
fn undetermined_rules(diagnosis: &Diagnosis) -> BTreeMap<(bool, Vec<String>), Vec<&str>> {
    let mut backends_by_lines: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for backend in &diagnosis.backends {
        let mut rules_by_missing_data: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let rules = diagnosis
            .undetermined
            .iter()
            .filter(|rule| rule.backend == backend.backend);
        for rule in rules {
            rules_by_missing_data
                .entry(rule.missing.join(", "))
                .or_default()
                .push(&rule.verdict);
        }
        let lines = rules_by_missing_data
            .into_iter()
            .map(|(missing, rules)| format!("{}: missing {missing}", rules.join(", ")));
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            let key = (backend.is_determined, lines);
            backends_by_lines
                .entry(key)
                .or_default()
                .push(&backend.backend);
        }
    }
    backends_by_lines
}

fn format_number(value: f64, unit: &str) -> String {
    match unit {
        "ratio" => format!("{:.1} %", 100.0 * value),
        "s" if value < 1.0 => format!("{:.1} ms", 1e3 * value),
        _ if value.abs() >= 100.0 => format!("{value:.0} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

fn render_summary(diagnosis: &Diagnosis) -> String {
    let count = |severity| {
        diagnosis
            .verdicts
            .iter()
            .filter(|verdict| verdict.severity == severity)
            .count()
    };
    let undetermined = diagnosis
        .backends
        .iter()
        .filter(|backend| !backend.is_determined)
        .count();
    let backends = match diagnosis.backends.len() {
        1 => "1 backend".to_owned(),
        count => format!("{count} backends"),
    };
    format!(
        "{backends}: {} critical verdicts, {} warnings; {undetermined} without enough data",
        count(VerdictSeverity::Critical),
        count(VerdictSeverity::Warning),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::diagnose::run::tests::{diagnosis, verdict};
    use tokenweir_diagnose::{DiagnosedBackend, UndeterminedRule};

    fn undetermined(rule: &'static str, backend: &str) -> UndeterminedRule {
        let missing = vec!["gateway".into()];
        UndeterminedRule {
            verdict: rule.into(),
            backend: backend.to_owned(),
            missing,
        }
    }

    #[test]
    fn a_report_fits_into_forty_columns() {
        let evidence = Evidence {
            measure: "queue_time_mean".into(),
            value: 4.0,
            unit: "s".into(),
            usual: Some(0.005),
            window_seconds: 60.0,
        };
        let found = Verdict {
            evidence: vec![evidence],
            ..verdict(VerdictSeverity::Warning)
        };
        let rules = ["stalls", "abort_spike"]
            .map(|rule| undetermined(rule, "gpu-0"))
            .into();
        let diagnosis = Diagnosis {
            undetermined: rules,
            ..diagnosis(vec![found], true)
        };
        let text = render(&diagnosis, 40);
        let text = tokenweir_doctor::text_report::without_styles(&text);
        assert!(
            text.lines().all(|line| line.chars().count() <= 40),
            "{text}"
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "warning gpu-0: The KV cache is full. [kv_backlog, confidence high]",
            "queue_time_mean = 4.00 s in 60 s, usually 5.0 ms",
            "-> Add a backend.",
            "stalls, abort_spike: missing gateway",
            "1 backend: 0 critical verdicts, 1 warnings; 0 without enough data",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn the_last_line_counts_backends_without_judgement() {
        let backend = |name: &str, is_determined| DiagnosedBackend {
            backend: name.to_owned(),
            is_determined,
        };
        let diagnosis = Diagnosis {
            backends: vec![backend("a", true), backend("b", true), backend("c", false)],
            undetermined: ["a", "b", "c"]
                .map(|backend| undetermined("stalls", backend))
                .into(),
            ..Diagnosis::default()
        };
        let text = render(&diagnosis, 80);
        for line in ["a, b: rules not judged", "c: not judged"] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
        assert!(
            text.ends_with(
                "\n3 backends: 0 critical verdicts, 0 warnings; 1 without enough data\n"
            ),
            "{text}"
        );
    }
}
