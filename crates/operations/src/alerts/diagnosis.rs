//! The alert about the verdicts of the diagnosis.

use super::alert::{Alert, AlertSeverity};

const AREA: &str = "diagnosis";

pub(super) fn alerts() -> Vec<Alert> {
    vec![verdict()]
}

fn verdict() -> Alert {
    Alert {
        name: "TokenweirVerdict",
        when: "a warning or critical verdict of the diagnosis has held for 3 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        // One alert for each kind of verdict. The label `verdict_severity` lets a receiver treat
        // critical verdicts differently.
        expr: "max by (verdict, verdict_severity) \
               (tokenweir_verdicts{verdict_severity!=\"info\"}) > 0"
            .into(),
        holds_for: "3m",
        stays_for: Some("2m"),
        summary: "Diagnosis: {{ $labels.verdict }} ({{ $labels.verdict_severity }})",
        description: "The verdict {{ $labels.verdict }} holds, at up to {{ $value }} backends of \
                      one gateway.",
        meaning: "The gateway has found a condition that degrades requests or that will do so. \
                  The alerts about harm page; this alert names the cause.",
        confirm: "`tokenweir diagnose --admin http://GATEWAY:9090` has the backend, the evidence \
                  and an observation that would disprove the verdict.",
        action: "Follow the remedy of the verdict: [the verdicts](diagnose.md#the-verdicts).",
        silences: Vec::new(),
    }
}
