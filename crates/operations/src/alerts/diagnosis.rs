//! The alerts that read the verdicts and the anomalies of the diagnosis. The thresholds and the runbooks are
//! in the table of verdicts.

use super::alert::{Alert, AlertSeverity, Runbook};
use tokenweir_diagnose::verdict_descriptions;

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        critical_verdict(),
        of_verdict("TokenweirBackendDown", "backend_down", "min"),
        of_verdict("TokenweirKvCacheExhausted", "kv_backlog", "max"),
        of_verdict("TokenweirPreemptions", "kv_thrashing", "max"),
        verdict(),
        anomaly(),
    ]
}

/// The alert that pages an operator while a critical verdict holds, for the verdicts that need an operator at
/// once.
fn critical_verdict() -> Alert {
    let paging = verdict_descriptions().filter(|verdict| verdict.pages);
    let names: Vec<&str> = paging.map(|verdict| verdict.name).collect();
    Alert {
        name: "TokenweirCriticalVerdict",
        severity: AlertSeverity::Page,
        expr: format!(
            "max by (verdict) (\n  \
             tokenweir_verdicts{{verdict=~\"{}\",verdict_severity=\"critical\"}}\n) > 0",
            names.join("|")
        )
        .into(),
        holds_for: "1m",
        stays_for: Some("2m"),
        summary: "Diagnosis: {{ $labels.verdict }} (critical)",
        description: "The critical verdict {{ $labels.verdict }} holds, at up to {{ $value }} \
                      backends of one gateway.",
        runbook: Runbook::EachVerdict("A verdict below that is marked with *pages* is critical."),
    }
}

/// An alert that reads one verdict at each backend. `aggregation`: with `max` the alert fires if at least one
/// gateway finds the fault, with `min` only if all gateways find it.
fn of_verdict(name: &'static str, verdict: &'static str, aggregation: &str) -> Alert {
    let description = verdict_descriptions().find(|description| description.name == verdict);
    Alert {
        name,
        severity: AlertSeverity::Ticket,
        expr: format!(
            "{aggregation} by (backend, verdict) \
             (tokenweir_diagnosis_active{{verdict=\"{verdict}\"}}) == 1"
        )
        .into(),
        holds_for: "1m",
        stays_for: Some("2m"),
        summary: "Diagnosis of {{ $labels.backend }}: {{ $labels.verdict }}",
        description: description.map_or(verdict, |description| description.meaning),
        runbook: Runbook::Verdict(verdict),
    }
}

fn verdict() -> Alert {
    Alert {
        name: "TokenweirVerdict",
        severity: AlertSeverity::Ticket,
        // One alert for each name of a verdict. The label `verdict_severity` lets a receiver treat critical
        // verdicts differently.
        expr: "max by (verdict, verdict_severity) \
               (tokenweir_verdicts{verdict_severity!=\"info\"}) > 0"
            .into(),
        holds_for: "3m",
        stays_for: Some("2m"),
        summary: "Diagnosis: {{ $labels.verdict }} ({{ $labels.verdict_severity }})",
        description: "The verdict {{ $labels.verdict }} holds, at up to {{ $value }} backends of \
                      one gateway.",
        runbook: Runbook::EachVerdict(
            "A verdict is a warning or critical. An alert about the same verdict mutes this one.",
        ),
    }
}

fn anomaly() -> Alert {
    Alert {
        name: "TokenweirAnomaly",
        severity: AlertSeverity::Ticket,
        expr: "max by (measure) (tokenweir_anomalies) > 0".into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Anomaly: {{ $labels.measure }}",
        description: "The measure {{ $labels.measure }} is at least twice its usual value of the \
                      last hour, or at most half, at up to {{ $value }} backends of one gateway.",
        runbook: Runbook::Own {
            meaning: "A measure of a backend is far from its usual value. It is a hint; the \
                      traffic may have changed.",
            confirm: "`anomalies` of `/diagnose`.",
            action: "Compare the time with deployments. A new usual value ends it within an \
                     hour. Silence a useless measure: `TokenweirAnomaly{measure=\"...\"}`.",
        },
    }
}
