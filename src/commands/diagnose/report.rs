//! A diagnosis for people, in lines of any width.

use anstyle::AnsiColor;
use std::collections::BTreeMap;
use std::fmt::Write;
use tokenweir_diagnose::{Diagnosis, Evidence, Severity, Verdict};
use tokenweir_doctor::report::{INDENT, NARROWEST, paragraph};

/// All of it, with colours, which whoever writes it may have to take out.
pub(crate) fn text(diagnosis: &Diagnosis, width: usize) -> String {
    let (mut text, width) = (String::new(), width.max(NARROWEST));
    for verdict in &diagnosis.verdicts {
        text.push_str(&told(verdict, width));
        text.push('\n');
    }
    for (backend, lines) in untold(diagnosis) {
        let head = format!("{backend}: cannot tell");
        line(&mut text, &paragraph(&head, "", INDENT, width, None));
        for words in lines {
            line(&mut text, &paragraph(&words, INDENT, "      ", width, None));
        }
        text.push('\n');
    }
    for anomaly in &diagnosis.anomalies {
        let words = format!(
            "note  {}: {} is {}, usually {} (z = {:.0})",
            anomaly.backend,
            anomaly.measure,
            number(anomaly.value, &anomaly.unit),
            number(anomaly.usual, &anomaly.unit),
            anomaly.z,
        );
        line(&mut text, &paragraph(&words, "", INDENT, width, None));
    }
    for pair in &diagnosis.pairs {
        let words = format!(
            "note  {}: {} and {} move together (rank correlation {:.2})",
            pair.backend, pair.first, pair.second, pair.correlation,
        );
        line(&mut text, &paragraph(&words, "", INDENT, width, None));
    }
    line(&mut text, &paragraph(&summary(diagnosis), "", "", width, None));
    text
}

fn told(verdict: &Verdict, width: usize) -> String {
    let Verdict { verdict: name, backend, severity, confidence, meaning, .. } = verdict;
    let mut text = String::new();
    let head = format!(
        "{}  {backend}: {meaning}  [{name}, confidence {}]",
        severity.as_str(),
        confidence.as_str()
    );
    let style = match severity {
        Severity::Critical => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
    };
    let styled = Some((severity.as_str(), style.on_default().bold()));
    line(&mut text, &paragraph(&head, "", INDENT, width, styled));
    if let Some(cause) = &verdict.cause {
        line(&mut text, &paragraph(&format!("cause: {cause}"), INDENT, INDENT, width, None));
    }
    for evidence in &verdict.evidence {
        let words = shown(evidence);
        line(&mut text, &paragraph(&words, INDENT, "      ", width, None));
    }
    let remedy = format!("-> {}", verdict.remedy);
    line(&mut text, &paragraph(&remedy, INDENT, "       ", width, None));
    let disproof = format!("It is not so if: {} See {}.", verdict.disproof, verdict.runbook);
    line(&mut text, &paragraph(&disproof, INDENT, INDENT, width, None));
    text
}

fn shown(evidence: &Evidence) -> String {
    let Evidence { measure, value, unit, usual, window_seconds } = evidence;
    let usual = usual.map(|usual| format!(", usually {}", number(usual, unit)));
    let value = number(*value, unit);
    format!("{measure} = {value} in {window_seconds:.0} s{}", usual.unwrap_or_default())
}

/// Rules that cannot be judged, by replica and by what is missing for them.
fn untold(diagnosis: &Diagnosis) -> Vec<(&str, Vec<String>)> {
    let backends = diagnosis.backends.iter().map(|watched| {
        let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let of_it = diagnosis.cannot_tell.iter().filter(|it| it.backend == watched.backend);
        for untold in of_it {
            reasons.entry(untold.missing.join(", ")).or_default().push(&untold.verdict);
        }
        let lines = reasons
            .into_iter()
            .map(|(missing, rules)| format!("{}: missing {missing}", rules.join(", ")));
        (&*watched.backend, lines.collect::<Vec<_>>())
    });
    backends.filter(|(_, lines)| !lines.is_empty()).collect()
}

fn number(value: f64, unit: &str) -> String {
    match unit {
        "ratio" => format!("{:.1} %", 100.0 * value),
        "s" if value < 1.0 => format!("{:.1} ms", 1e3 * value),
        _ if value.abs() >= 100.0 => format!("{value:.0} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

fn summary(diagnosis: &Diagnosis) -> String {
    let count = |severity| diagnosis.verdicts.iter().filter(|it| it.severity == severity).count();
    let unknown = diagnosis.backends.iter().filter(|it| !it.is_judged).count();
    format!(
        "{} replica(s): {} critical, {} warning; {unknown} of which nothing can be told",
        diagnosis.backends.len(),
        count(Severity::Critical),
        count(Severity::Warning),
    )
}

fn line(text: &mut String, words: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{words}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::diagnose::run::tests::{diagnosis, verdict};
    use tokenweir_diagnose::CannotTell;

    #[test]
    fn forty_columns_are_enough_and_what_is_missing_is_said_once() {
        let evidence = Evidence {
            measure: "queue_time_mean".into(),
            value: 4.0,
            unit: "s".into(),
            usual: Some(0.005),
            window_seconds: 60.0,
        };
        let found = Verdict { evidence: vec![evidence], ..verdict(Severity::Warning) };
        let untold = |name: &'static str| CannotTell {
            verdict: name.into(),
            backend: "gpu-0".into(),
            missing: vec!["gateway".into()],
        };
        let cannot_tell = vec![untold("stalls"), untold("abort_spike")];
        let diagnosis = Diagnosis { cannot_tell, ..diagnosis(vec![found], true) };
        let text = text(&diagnosis, 40);
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "warning gpu-0: The KV cache is full. [kv_backlog, confidence high]",
            "queue_time_mean = 4.00 s in 60 s, usually 5.0 ms",
            "-> Add a replica.",
            "stalls, abort_spike: missing gateway",
            "1 replica(s): 0 critical, 1 warning; 0 of which nothing can be told",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
