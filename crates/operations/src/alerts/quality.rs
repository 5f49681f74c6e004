//! Alerts about changes of the content of responses. Without `quality.enabled` the gateway compares
//! no responses, and none of these alerts fires.
//!
//! The gateway compares recent responses with a baseline (`quality.window`,
//! `quality.baseline_window`). A lasting change becomes the baseline, so these alerts fire only for
//! some hours after a change.

use super::alert::{Alert, AlertSeverity};

const AREA: &str = "quality";
const DRIFT_METRIC: &str = "tokenweir_quality_output_drift_ratio";
const RECENT_REFUSAL_RATIO: &str = "tokenweir_quality_refusal_ratio{window=\"recent\"}";
const BASELINE_REFUSAL_RATIO: &str = "tokenweir_quality_refusal_ratio{window=\"baseline\"}";
const RECENT_SCORE: &str = "tokenweir_quality_score_ratio{window=\"recent\"}";
const BASELINE_SCORE: &str = "tokenweir_quality_score_ratio{window=\"baseline\"}";
/// The Prometheus query of the condition that a model had more than 100 successful responses in the
/// last hour. With fewer responses, the mean varies by more than about 10 %.
const MIN_TRAFFIC_CONDITION: &str = "sum by (gen_ai_request_model) (increase(tokenweir_requests_total\
     {operation=~\"chat|text_completion|generate_content\",outcome=\"ok\"}[1h])) > 100";

pub(super) fn alerts() -> Vec<Alert> {
    vec![output_drift(), refusals_rise(), score_drop(), samples_lost()]
}

/// The query of the mean of a gauge over all gateways, for each model. A gateway with too few
/// responses exports NaN. The query excludes NaN by `>= 0`, because one NaN would make the mean
/// NaN.
fn gateway_mean(gauge: &str) -> String {
    format!("avg by (gen_ai_request_model) ({gauge} >= 0)")
}

fn output_drift() -> Alert {
    let drift = gateway_mean(DRIFT_METRIC);
    Alert {
        name: "TokenweirOutputDrift",
        when: "outputs of a model are 50 % longer or a third shorter than usual",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: format!(
            "(\n  \
             {drift} > 1.5\n  \
             or {drift} < 0.67\n\
             )\n\
             and on (gen_ai_request_model)\n  \
             {MIN_TRAFFIC_CONDITION}"
        )
        .into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "The length of outputs of {{ $labels.gen_ai_request_model }} has changed",
        description: "Complete responses of {{ $labels.gen_ai_request_model }} recently have \
                      {{ $value | humanizePercentage }} of their usual output tokens.",
        meaning: "The outputs of the model are much longer or shorter than before. Causes: another \
                  version or quantisation, a changed prompt or chat template, a sampler that does \
                  not stop, a client that sets another `max_tokens`. Each single request looks \
                  normal. A doubled length is detected within two hours; some hours later the new \
                  length is the usual one.",
        confirm: "Dashboard, row Quality: since when, and for one model or all? Row System health, \
                  panel of finish reasons: more `length` means text that does not stop, or a lower \
                  limit.",
        action: "Which deployment happened at that time, of the backends or of the clients? \
                 Compare one prompt before and after. If the change is intended, no action is \
                 needed: it becomes the baseline within a day.",
        silences: Vec::new(),
    }
}

fn refusals_rise() -> Alert {
    let recent = gateway_mean(RECENT_REFUSAL_RATIO);
    let baseline = gateway_mean(BASELINE_REFUSAL_RATIO);
    Alert {
        name: "TokenweirRefusalsRise",
        when: "a model refuses twice as often as usual, and 5 percentage points more often",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: format!(
            "{recent}\n  > 2 * {baseline}\nand {recent}\n  > 0.05 + {baseline}\n\
             and on (gen_ai_request_model)\n  {MIN_TRAFFIC_CONDITION}"
        )
        .into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "{{ $labels.gen_ai_request_model }} refuses more often than usual",
        description: "{{ $value | humanizePercentage }} of the complete responses of \
                      {{ $labels.gen_ai_request_model }} recently are refusals, more than twice \
                      the usual share.",
        meaning: "Clients get refusals in place of answers. The gateway counts a `refusal` field, \
                  the finish reason `content_filter`, and the phrases of the configuration, if \
                  there are any.",
        confirm: "Dashboard, row Quality: since when? Check \
                  `tokenweir_finish_reasons_total{reason=\"content_filter\"}`. With \
                  `quality.file`, its lines with `\"refused\":true` have the prompts without \
                  private data.",
        action: "Another model version, system prompt or filter: roll it back, or inform its \
                 owners. One client with new traffic: the access log identifies it. If only the \
                 configured phrases match more often, correct them.",
        silences: Vec::new(),
    }
}

fn score_drop() -> Alert {
    let (recent, baseline) = (gateway_mean(RECENT_SCORE), gateway_mean(BASELINE_SCORE));
    Alert {
        name: "TokenweirScoreDrop",
        when: "the judge's mean score of a model is 0.15 below the usual value",
        area: AREA,
        severity: AlertSeverity::Ticket,
        // This condition has no explicit minimum of traffic. The gauge is NaN with fewer than 20
        // scores, and at most one twentieth of the responses is judged.
        expr: format!("{recent}\n  < {baseline} - 0.15").into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "The judge's score of {{ $labels.gen_ai_request_model }} has dropped",
        description: "The recent mean score of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanize }}, at least 0.15 below the usual value.",
        meaning: "The responses are worse by the measure of `quality.judge`, or the judge has \
                  changed.",
        confirm: "Send an old line of `quality.file` to the judge again: if the score differs from \
                  the recorded one, the judge has changed. Otherwise read the lines with the \
                  lowest scores of the last hours.",
        action: "Judge: restore its previous version, or wait a day. Responses: which deployment \
                 happened then? TokenweirOutputDrift and TokenweirRefusalsRise at the same time \
                 show the kind of change.",
        silences: Vec::new(),
    }
}

fn samples_lost() -> Alert {
    Alert {
        name: "TokenweirSamplesLost",
        when: "more than half of the sampled responses, and more than 20 in an hour, are not \
               judged",
        area: AREA,
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
        meaning: "The judge, the redactor or the disk fails. Scores are then based on few \
                  responses or none, and a drop would not be detected.",
        confirm: "`tokenweir_quality_samples_total` by `result`: `judge_failed` is the judge, \
                  `redactor_failed` the command of `log.payloads`, `dropped` the disk or a full \
                  queue.",
        action: "Judge: is it up, does it respond within `quality.judge_timeout`, and is its \
                 response of the form `{\"score\": 0.8}`? If it is slow, lower `quality.sample`. \
                 Disk: provide space for `quality.max_file_bytes`.",
        silences: Vec::new(),
    }
}
