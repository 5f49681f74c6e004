//! Objectives that are missed so fast that the month will not hold them. The thresholds come from
//! the objective that the gateway itself tells, so a change of the configuration needs no new
//! rules.
//!
//! A burn rate is the share of bad requests ÷ the share that the objective allows: at 1 the budget
//! of 30 days lasts 30 days. The long window says that it matters, the short one that it goes on.

use super::{Alert, Severity, Silence};
use std::fmt::Write;

const AREA: &str = "slo";

/// Two windows, and how many times faster than allowed both must burn.
struct Burn {
    long: &'static str,
    short: &'static str,
    rate: f64,
}

/// 2 % of the month's budget in an hour, or 5 % in six.
const FAST: [Burn; 2] =
    [Burn { long: "1h", short: "5m", rate: 14.4 }, Burn { long: "6h", short: "30m", rate: 6.0 }];
/// 10 % of the month's budget in a day, or in three.
const SLOW: [Burn; 2] =
    [Burn { long: "1d", short: "2h", rate: 3.0 }, Burn { long: "3d", short: "6h", rate: 1.0 }];
/// Bad requests in the long window without which nobody is called.
const LEAST_BAD: u32 = 10;

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        Alert {
            name: "TokenweirSloFastBurn",
            when: "an objective burns 2 % of its budget for 30 days in an hour, or 5 % in six",
            area: AREA,
            severity: Severity::Page,
            expr: condition(&FAST).into(),
            holds_for: "2m",
            stays_for: Some("5m"),
            summary: "SLO {{ $labels.slo }} burns its error budget fast",
            description: "{{ $value | humanizePercentage }} of the requests of the last minutes missed \
                          the objective {{ $labels.slo }}. At this pace its budget for 30 days is gone \
                          within days.",
            meaning: "Users get answers that are worse than promised, now, and many of them: at least 2 % \
                      of the month's budget in an hour or 5 % in six, and it still goes on.",
            confirm: "Dashboard, row SLO: which objective, which model, since when. Row Latency: click a \
                      dot of the heatmap in the bad area; it opens the trace of such a request, and \
                      `tokenweir.slow_cause` on its span names the cause.",
            action: "Another alert usually names the cause: follow that first. Without one: look at \
                     slow requests by cause. `engine_queue` or `gateway_queue`: add replicas or shed \
                     low tiers (`admission.classes`). `preempted`: see TokenweirKvCacheExhausted. \
                     `slow_decode` on one replica: drain it with `weight: 0`. Errors: see \
                     TokenweirErrors.",
            silences: vec![Silence { alert: "TokenweirSloSlowBurn", equal: &["slo"] }],
        },
        Alert {
            name: "TokenweirSloSlowBurn",
            when: "an objective burns 10 % of it in a day or in three days",
            area: AREA,
            severity: Severity::Ticket,
            expr: condition(&SLOW).into(),
            holds_for: "15m",
            stays_for: Some("30m"),
            summary: "SLO {{ $labels.slo }} will not last the month",
            description: "{{ $value | humanizePercentage }} of the requests of the last hours missed the \
                          objective {{ $labels.slo }}, which is more than its budget for 30 days allows.",
            meaning: "A little too many requests are worse than promised, for hours or days. Nobody has \
                      to get up, but the month will end below the objective.",
            confirm: "Dashboard, row SLO, over the last three days: a level shift or a daily peak?",
            action: "A daily peak: capacity, see queues and KV cache at that time. A level shift: what was \
                     deployed then? If the objective was never met, it is wrong: change `slos` in the \
                     configuration.",
            silences: Vec::new(),
        },
    ]
}

/// Any of the pairs, with the value of its short window.
fn condition(burns: &[Burn]) -> String {
    let mut text = String::new();
    for Burn { long, short, rate } in burns {
        let or = if text.is_empty() { "" } else { "or\n" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{or}(\n  tokenweir:slo_bad:ratio_rate{short} > on (slo) {rate} * tokenweir:slo_budget:ratio\n  \
             and on (slo) tokenweir:slo_bad:ratio_rate{long} > on (slo) {rate} * tokenweir:slo_budget:ratio\n  \
             and on (slo) sum by (slo) (increase(tokenweir_slo_requests_total{{result=\"bad\"}}[{long}])) \
             >= {LEAST_BAD}\n)"
        );
    }
    text.trim_end().to_owned()
}
