//! The rules about the gateway itself: its configuration, its certificates, its span collector and its
//! clients. These conditions do not change the state of a backend, so the states of the backends do not
//! show them.

use super::observation::{CertificateReloads, FleetObservation};
use super::slow_clients::SlowClients;
use crate::recent::CountGrowth;
use crate::rule::prelude::*;
use std::time::{Duration, Instant};

/// The verdict about a certificate begins this many seconds before the certificate expires.
const EXPIRY_NOTICE_SECONDS: f64 = 7.0 * 86_400.0;
/// The verdict about lost spans or log lines ends if nothing is lost for this time. The exporter sends a batch
/// every few seconds while there are requests.
const EXPORT_FAILURE_HOLD: Duration = Duration::from_secs(45);
/// Maximum length of the error text of a failed reload in a verdict, in characters.
const MAX_PROBLEM_CHARACTERS: usize = 200;

pub(super) static CERTIFICATE_EXPIRES: DiagnosisRule = DiagnosisRule {
    name: "certificate_expires",
    severity: "warning, critical after the expiry",
    meaning: "A certificate that the gateway presents has expired or expires within seven days.",
    evidence: "The gateway reads the expiry from the certificate files of listeners, backends and \
               exporters.",
    remedy: "Write the new certificate and key to the same files; the gateway reads them again.",
    disproof: "certificates in /status shows a later time of expiry.",
    ..DiagnosisRule::GATEWAY
};

pub(super) static RELOAD_FAILED: DiagnosisRule = DiagnosisRule {
    name: "reload_failed",
    severity: "warning",
    meaning: "The last reload of the configuration, a secret, a certificate, the API keys or discovered \
              backends failed: the previous content stays active.",
    evidence: "The cause is the first line of the error.",
    excluded: "a later reload succeeded",
    remedy: "Correct the file, test it with tokenweir check, and run tokenweir reload. Changed \
             keys, certificates and discovery files are read without a reload. The gateway asks a \
             name server or a Kubernetes API server again until it answers.",
    disproof: "tokenweir check accepts the file, and the log has its successful reload.",
    ..DiagnosisRule::GATEWAY
};

pub(super) static SPANS_LOST: DiagnosisRule = DiagnosisRule {
    name: "spans_lost",
    severity: "warning",
    meaning: "The collector does not accept spans: traces of requests are lost.",
    evidence: "In the last 45 s an export failed, or the queue of spans was full.",
    remedy: "Start the collector or correct tracing.endpoint. If the collector answers too late, \
             give it more resources or lower tracing.ratio. If it refuses spans, compare \
             tracing.protocol and the headers with its settings. The log of the gateway has the \
             error.",
    disproof: "spans in /status shows that exported grows and lost does not.",
    ..DiagnosisRule::GATEWAY
};

pub(super) static LOG_LINES_LOST: DiagnosisRule = DiagnosisRule {
    name: "log_lines_lost",
    severity: "warning",
    meaning: "Lines of the access log are lost: its output does not accept them.",
    evidence: "In the last 45 s a write failed, or more than 8 MiB of lines waited to be written.",
    remedy: "Free space on the disk of the access log, or speed up the process that reads it. The log of the \
             gateway contains the error.",
    disproof: "tokenweir_access_log_lines_total{result=\"dropped\"} does not grow.",
    ..DiagnosisRule::GATEWAY
};

/// The rules about the gateway, with the state that they need between two evaluations.
#[derive(Debug, Default)]
pub(super) struct GatewayRules {
    spans: CountGrowth,
    /// Whether the number of lost lines of the access log has grown.
    log_lines: CountGrowth,
    slow_clients: SlowClients,
    /// The numbers of successful and of failed reloads of certificate files at the last evaluation. `None`:
    /// no evaluation yet.
    certificate_reloads: Option<CertificateReloads>,
    /// Whether the last reload of certificate files failed.
    has_certificate_failed: bool,
}

impl GatewayRules {
    /// Returns a verdict for each condition of the gateway that holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Vec<Verdict> {
        let gateway = &fleet.gateway;
        let mut matches = Vec::new();
        let earliest = gateway
            .certificates
            .iter()
            .min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((peer, seconds)) = earliest.filter(|(_, left)| *left < EXPIRY_NOTICE_SECONDS) {
            let has_expired = *seconds <= 0.0;
            let hours = seconds / 3_600.0;
            let cause = if has_expired {
                format!("expired: the certificate for {peer}s")
            } else {
                format!("the certificate for {peer}s expires in {hours:.0} h")
            };
            let severity = VerdictSeverity::critical_if(has_expired);
            matches.push(CERTIFICATE_EXPIRES.verdict(severity).because(cause));
        }
        let certificate_problem = self.certificate_problem(gateway.certificate_reloads);
        if let Some(problem) = gateway.reload_problem.as_deref().or(certificate_problem) {
            let cause = problem.lines().next().unwrap_or_default();
            let cause: String = cause.chars().take(MAX_PROBLEM_CHARACTERS).collect();
            matches.push(
                RELOAD_FAILED
                    .verdict(VerdictSeverity::Warning)
                    .because(cause),
            );
        }
        if self
            .spans
            .has_grown(gateway.lost_spans, EXPORT_FAILURE_HOLD, now)
        {
            let cause = gateway.span_export_failure;
            let cause = cause.map(|why| format!("the collector: {why}").into());
            let found = SPANS_LOST.verdict(VerdictSeverity::Warning);
            matches.push(Verdict { cause, ..found });
        }
        if self
            .log_lines
            .has_grown(gateway.lost_log_lines, EXPORT_FAILURE_HOLD, now)
        {
            matches.push(LOG_LINES_LOST.verdict(VerdictSeverity::Warning));
        }
        matches.extend(gateway.verdicts.iter().cloned());
        matches.extend(self.slow_clients.judge(fleet, now));
        matches
    }

    /// The cause of [`RELOAD_FAILED`] if the last reload of certificate files failed. `None`: it succeeded,
    /// or there was none.
    fn certificate_problem(&mut self, reloads: CertificateReloads) -> Option<&'static str> {
        if let Some(before) = self.certificate_reloads.replace(reloads) {
            if reloads.failed > before.failed {
                self.has_certificate_failed = true;
            } else if reloads.succeeded > before.succeeded {
                self.has_certificate_failed = false;
            }
        }
        self.has_certificate_failed
            .then_some("certificate files cannot be used: the log has the error")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::GatewayConditions;
    use tokenweir_protocol::clock;

    fn names(rules: &mut GatewayRules, gateway: &GatewayConditions, now: Instant) -> Vec<String> {
        let fleet = FleetObservation {
            gateway: gateway.clone(),
            ..FleetObservation::default()
        };
        let name = |it: Verdict| {
            format!(
                "{} {} {}",
                it.severity.as_str(),
                it.verdict,
                it.cause.unwrap_or_default()
            )
        };
        rules.judge(&fleet, now).into_iter().map(name).collect()
    }

    #[test]
    fn a_certificate_warns_a_week_before_its_end() {
        let at = |days: f64| GatewayConditions {
            certificates: vec![("backend", 9e9), ("client", 86_400.0 * days)],
            ..GatewayConditions::default()
        };
        let named = |days| names(&mut GatewayRules::default(), &at(days), clock::epoch());
        assert_eq!(named(7.5), [""; 0]);
        let soon = "warning certificate_expires the certificate for clients expires in 48 h";
        assert_eq!(named(2.0), [soon]);
        let over = "critical certificate_expires expired: the certificate for clients";
        assert_eq!(named(-1.0), [over]);
    }

    #[test]
    fn lost_spans_are_reported_for_45_seconds() {
        let mut rules = GatewayRules::default();
        let start = clock::epoch();
        let mut is_named = |seconds, lost_spans| {
            let gateway = GatewayConditions {
                lost_spans,
                ..GatewayConditions::default()
            };
            !names(&mut rules, &gateway, start + Duration::from_secs(seconds)).is_empty()
        };
        assert!(!is_named(0, 9), "these failures are old");
        assert!(is_named(5, 10) && is_named(10, 10) && is_named(15, 12));
        assert!(is_named(55, 12) && !is_named(60, 12));
    }

    #[test]
    fn lost_log_lines_are_reported_for_45_seconds() {
        let mut rules = GatewayRules::default();
        let start = clock::epoch();
        let mut named = |seconds, lost_log_lines| {
            let gateway = GatewayConditions {
                lost_log_lines,
                ..GatewayConditions::default()
            };
            names(&mut rules, &gateway, start + Duration::from_secs(seconds)).join("")
        };
        assert_eq!(named(0, 0), "");
        assert_eq!(named(5, 3), "warning log_lines_lost ");
        assert_eq!(named(50, 3), "");
    }

    #[test]
    fn a_failed_certificate_reload_is_reported_until_success() {
        let mut rules = GatewayRules::default();
        let mut is_named = |succeeded, failed| {
            let certificate_reloads = CertificateReloads { succeeded, failed };
            let gateway = GatewayConditions {
                certificate_reloads,
                ..GatewayConditions::default()
            };
            !names(&mut rules, &gateway, clock::epoch()).is_empty()
        };
        assert!(!is_named(0, 3), "these are old");
        assert!(is_named(0, 4) && is_named(0, 4) && !is_named(1, 4));
    }

    #[test]
    fn unread_streams_are_named_at_the_second_evaluation() {
        let mut rules = GatewayRules::default();
        let mut is_named = |open_streams, unread_streams| {
            let gateway = GatewayConditions {
                open_streams,
                unread_streams,
                ..GatewayConditions::default()
            };
            !names(&mut rules, &gateway, clock::epoch()).is_empty()
        };
        assert!(
            !is_named(10, 2) && is_named(10, 2),
            "a single look is no evidence"
        );
        assert!(!is_named(11, 2) && !is_named(1, 1), "few clients");
    }

    #[test]
    fn the_reload_cause_is_the_first_error_line() {
        let problem = format!("gateway.yaml:1:3: unknown key\n{}", "x".repeat(999));
        let gateway = GatewayConditions {
            reload_problem: Some(problem),
            ..GatewayConditions::default()
        };
        let named = names(&mut GatewayRules::default(), &gateway, clock::epoch());
        assert_eq!(
            named,
            ["warning reload_failed gateway.yaml:1:3: unknown key"]
        );
    }
}
