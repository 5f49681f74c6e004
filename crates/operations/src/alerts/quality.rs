//! Alerts about changes in the content of responses. Without `quality.enabled` the gateway compares no
//! responses, and none of these alerts fires.
//!
//! The gateway compares the responses of the last `quality.window` with a baseline, which covers 24 times
//! `quality.window`. A lasting change becomes the baseline, so these alerts fire only for some hours after a
//! change.

use super::alert::{Alert, AlertSeverity, Runbook};

const RECENT_REFUSAL_RATIO: &str = "tokenweir_quality_refusal_ratio{window=\"recent\"}";
const BASELINE_REFUSAL_RATIO: &str = "tokenweir_quality_refusal_ratio{window=\"baseline\"}";
const RECENT_SCORE: &str = "tokenweir_quality_score_ratio{window=\"recent\"}";
const BASELINE_SCORE: &str = "tokenweir_quality_score_ratio{window=\"baseline\"}";
/// The Prometheus query of the condition that a model had more than 100 successful responses in the last
/// hour. With fewer responses, the mean of a measure varies by more than about 10 % by chance.
const MIN_TRAFFIC_CONDITION: &str = "sum by (gen_ai_request_model) (increase(tokenweir_requests_total\
     {operation=~\"chat|text_completion|generate_content\",outcome=\"ok\"}[1h])) > 100";

pub(super) fn alerts() -> Vec<Alert> {
    vec![quality_changed(), samples_lost()]
}

/// The query of the mean of a gauge over all gateways, for each model. A gateway with too few responses
/// exports NaN. The comparison `>= 0` excludes NaN, because one NaN would make the mean NaN.
fn gateway_mean(gauge: &str) -> String {
    format!("avg by (gen_ai_request_model) ({gauge} >= 0)")
}

/// Returns the query `condition` with `label_replace` around it, so that its series have the label `change`
/// with the value of the argument `change`.
fn labelled(change: &str, condition: &str) -> String {
    format!("label_replace(\n  {condition},\n  \"change\", \"{change}\", \"\", \"\"\n)")
}

fn quality_changed() -> Alert {
    let refusals = gateway_mean(RECENT_REFUSAL_RATIO);
    let usual_refusals = gateway_mean(BASELINE_REFUSAL_RATIO);
    let score = gateway_mean(RECENT_SCORE);
    let usual_score = gateway_mean(BASELINE_SCORE);
    let has_traffic = format!("and on (gen_ai_request_model)\n  {MIN_TRAFFIC_CONDITION}");
    let changes = [
        labelled(
            "refusals",
            &format!(
                "{refusals} > 2 * {usual_refusals}\n  \
                 and {refusals} > 0.05 + {usual_refusals}\n  {has_traffic}"
            ),
        ),
        // This condition needs no minimum of traffic: the gauge is NaN with fewer than 20 scores, and the
        // gateway scores at most one twentieth of the responses.
        labelled("score", &format!("{score} < {usual_score} - 0.15")),
    ];
    Alert {
        name: "TokenweirQualityChanged",
        severity: AlertSeverity::Ticket,
        expr: changes.join("\nor ").into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "The responses of {{ $labels.gen_ai_request_model }} have changed: \
                  {{ $labels.change }}",
        description: "Complete responses of {{ $labels.gen_ai_request_model }} recently differ from the \
                      usual ones: {{ $labels.change }}, now {{ $value | humanizePercentage }}.",
        runbook: Runbook::Own {
            meaning: "Responses of a model differ from its baseline. `refusals`: twice as many, and 5 \
                      percentage points more. `score`: 0.15 lower.",
            confirm: "Dashboard, row Quality; `quality.file`. Send an old line to the judge \
                      again.",
            action: "Find what was deployed before: a model, a prompt, a client or the judge. An \
                     intended change becomes the baseline within a day.",
        },
    }
}

fn samples_lost() -> Alert {
    Alert {
        name: "TokenweirSamplesLost",
        severity: AlertSeverity::Ticket,
        expr: "sum(increase(tokenweir_quality_samples_total{result!=\"done\"}[1h]))\n\
               / sum(increase(tokenweir_quality_samples_total[1h])) > 0.5\n\
               and sum(increase(tokenweir_quality_samples_total{result!=\"done\"}[1h])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("30m"),
        summary: "Sampled responses are not judged",
        description: "{{ $value | humanizePercentage }} of the sampled responses of the last hour \
                      got no score, or were not written to the file. Requests are not affected.",
        runbook: Runbook::Own {
            meaning: "Half of the sampled responses got no score: a drop of the score would not be \
                      seen.",
            confirm: "`tokenweir_quality_samples_total` by `result`.",
            action: "`judge_failed`: check that the judge is up and answers within 10 s. \
                     `dropped`: the disk or the queue of samples is full. Free disk space for a file of \
                     `log.max_file_bytes`; if the disk has space, lower `quality.sample`.",
        },
    }
}
