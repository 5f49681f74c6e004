//! The alerts about the verdicts and the anomalies of the diagnosis. The gateway can send both to
//! Alertmanager itself, with the same names and times (`src/alertmanager`).

use super::alert::{Alert, AlertSeverity};

const AREA: &str = "diagnosis";

pub(super) fn alerts() -> Vec<Alert> {
    vec![verdict(), anomaly()]
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

fn anomaly() -> Alert {
    Alert {
        name: "TokenweirAnomaly",
        when: "a measure of a backend has been far from its usual value for 10 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "max by (measure) (tokenweir_anomalies) > 0".into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Anomaly: {{ $labels.measure }}",
        description: "The measure {{ $labels.measure }} is at least twice its usual value of the \
                      last hour, or at most half, at up to {{ $value }} backends of one gateway.",
        meaning: "An anomaly is a hint and no verdict: a value changed a lot in the direction that \
                  can harm requests. A change of the traffic is a possible cause.",
        confirm: "`tokenweir diagnose --admin http://GATEWAY:9090` has the backend, the value and the \
                  usual value. Dashboard, row Diagnosis.",
        action: "Compare the time of the change with deployments and with the traffic. If the value \
                 is the new usual value, the alert ends within an hour. Silence the alert for a \
                 measure that is of no use: `TokenweirAnomaly{measure=\"...\"}`.",
        silences: Vec::new(),
    }
}
