//! Burn rate alerts of the objectives (SLOs). The queries compute the thresholds from the objectives that the
//! gateway exports, so that a change of the objectives needs no new rules.
//!
//! A burn rate is the share of bad requests ÷ the share of bad requests that the objective allows. At a burn
//! rate of 1, the 30-day error budget lasts 30 days. Each condition compares the burn rate over two windows.
//! The long window shows that a relevant part of the budget is used up. The short window shows that requests
//! still miss the objective.
//!
//! At a low objective, such as 90 %, even the failure of all requests has a lower burn rate than some
//! thresholds. So the share of bad requests at which an alert fires is at most half way between the allowed
//! share and 100 %.

use super::alert::{Alert, AlertSeverity, Runbook};

/// A long and a short window, and the burn rate that the alert requires over both.
struct BurnRateWindow {
    /// The long window, as a duration of Prometheus.
    long: &'static str,
    /// The short window, as a duration of Prometheus.
    short: &'static str,
    /// The burn rate above which the alert fires, over both windows.
    rate: f64,
}

/// The windows and burn rates of the alert that pages. At these rates, 2 % of the 30-day error budget is used
/// within an hour, or 5 % within six hours.
const FAST_BURN: [BurnRateWindow; 2] = [
    BurnRateWindow { long: "1h", short: "5m", rate: 14.4 },
    BurnRateWindow { long: "6h", short: "30m", rate: 6.0 },
];
/// The windows and burn rates of the alert that opens a ticket. At these rates, 10 % of the 30-day error
/// budget is used within a day, or within three days.
const SLOW_BURN: [BurnRateWindow; 2] = [
    BurnRateWindow { long: "1d", short: "2h", rate: 3.0 },
    BurnRateWindow { long: "3d", short: "6h", rate: 1.0 },
];
/// Number of bad requests that an alert requires in the long window.
const MIN_BAD_REQUESTS: u32 = 10;

pub(super) fn alerts() -> Vec<Alert> {
    vec![fast_burn_alert(), slow_burn_alert()]
}

/// The alert that pages at the burn rates of `FAST_BURN`.
fn fast_burn_alert() -> Alert {
    Alert {
        name: "TokenweirSloFastBurn",
        severity: AlertSeverity::Page,
        expr: burn_rate_condition(FAST_BURN).into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "SLO {{ $labels.slo }} burns its error budget fast",
        description: "{{ $value | humanizePercentage }} of the requests of the last minutes \
                      missed the objective {{ $labels.slo }}. At this rate, its 30-day error \
                      budget is used up within days.",
        runbook: Runbook::Own {
            meaning: "An objective uses 2 % of its 30-day error budget in an hour, or 5 % in \
                      six hours.",
            confirm: "Dashboard, row SLO. An exemplar in row Latency opens a trace with \
                      `tokenweir.slow_cause`.",
            action: "Follow the alert that names the cause. Otherwise see *Slow requests by \
                     cause*: for queues add backends; if one backend has `slow_decode`, set its \
                     `weight` to 0.",
        },
    }
}

/// The alert that opens a ticket at the burn rates of `SLOW_BURN`.
fn slow_burn_alert() -> Alert {
    Alert {
        name: "TokenweirSloSlowBurn",
        severity: AlertSeverity::Ticket,
        expr: burn_rate_condition(SLOW_BURN).into(),
        holds_for: "15m",
        stays_for: Some("30m"),
        summary: "SLO {{ $labels.slo }} will exceed its 30-day error budget",
        description: "{{ $value | humanizePercentage }} of the requests of the last hours \
                      missed the objective {{ $labels.slo }}, which is more than its 30-day \
                      error budget allows.",
        runbook: Runbook::Own {
            meaning: "An objective uses 10 % of its 30-day error budget in a day or in three \
                      days.",
            confirm: "Dashboard, row SLO, over three days.",
            action: "For a daily peak, add capacity. For a lasting change, find the deployment \
                     that caused it.",
        },
    }
}

/// The Prometheus query of the condition that an objective exceeds the burn rate over both windows of any
/// element of `windows`. The value of the query is the share of bad requests in the short window.
fn burn_rate_condition(windows: [BurnRateWindow; 2]) -> String {
    let conditions = windows.map(|BurnRateWindow { long, short, rate }| {
        let budget = "tokenweir:slo_budget:ratio";
        let threshold =
            format!("(\n    {rate} * {budget} < (1 + {budget}) / 2 or (1 + {budget}) / 2\n  )");
        format!(
            "(\n  \
             tokenweir:slo_bad:ratio_rate{short} > on (slo) {threshold}\n  \
             and on (slo) tokenweir:slo_bad:ratio_rate{long} > on (slo) {threshold}\n  \
             and on (slo) sum by (slo) \
             (increase(tokenweir_slo_requests_total{{result=\"bad\"}}[{long}])) >= \
             {MIN_BAD_REQUESTS}\n\
             )"
        )
    });
    conditions.join("\nor\n")
}
