//! Answers that are not what they were. Without `quality.enabled` nothing is compared, and none of
//! these fires.
//!
//! The gateway itself compares what was lately with what is usual (`quality.recent`,
//! `quality.baseline`). What stays becomes what is usual: these fire for some hours after a change,
//! and then no more.

use super::{Alert, Severity};

const AREA: &str = "quality";
const DRIFT: &str = "tokenweir_quality_output_drift_ratio";
const REFUSED_LATELY: &str = "tokenweir_quality_refusal_ratio{window=\"recent\"}";
const REFUSED_USUALLY: &str = "tokenweir_quality_refusal_ratio{window=\"baseline\"}";
const SCORE_LATELY: &str = "tokenweir_quality_score_ratio{window=\"recent\"}";
const SCORE_USUALLY: &str = "tokenweir_quality_score_ratio{window=\"baseline\"}";
/// Answers that ended well in the last hour: the mean of a hundred moves by a tenth by itself.
const ENOUGH: &str = "sum by (gen_ai_request_model) (increase(tokenweir_requests_total\
                      {operation=~\"chat|text_completion|generate_content\",outcome=\"ok\"}[1h])) > 100";

pub(super) fn alerts() -> Vec<Alert> {
    vec![output_drift(), refusals_rise(), score_drop(), samples_lost()]
}

/// The mean of what all gateways say of a model. One that had too few answers says NaN, which would
/// hide what the others say.
fn mean(gauge: &str) -> String {
    format!("avg by (gen_ai_request_model) ({gauge} >= 0)")
}

fn output_drift() -> Alert {
    let drift = mean(DRIFT);
    Alert {
        name: "TokenweirOutputDrift",
        when: "answers of a model are by half longer than usual, or by a third shorter",
        area: AREA,
        severity: Severity::Ticket,
        expr: format!(
            "(\n  {drift} > 1.5\n  or {drift} < 0.67\n)\nand on (gen_ai_request_model)\n  {ENOUGH}"
        )
        .into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "Answers of {{ $labels.gen_ai_request_model }} are not as long as they were",
        description: "Whole answers of {{ $labels.gen_ai_request_model }} lately have {{ $value | \
                      humanizePercentage }} of the output tokens that they usually have.",
        meaning: "The model says much more or much less than it did: another version or quantization, a \
                  changed prompt or chat template, a sampler that does not stop, a client that sets \
                  another `max_tokens`. Each request looks well by itself. Answers that doubled are seen \
                  within two hours; after some more the new length is what is usual.",
        confirm: "Dashboard, row Quality: since when, and one model or all? Row System health, why \
                  answers ended: more `length` is text that does not stop, or a lower limit.",
        action: "What was deployed at that time, to the replicas or in the clients? Compare one prompt \
                 before and after. If it is wanted, it needs nothing: it becomes usual within a day.",
        silences: Vec::new(),
    }
}

fn refusals_rise() -> Alert {
    let (lately, usually) = (mean(REFUSED_LATELY), mean(REFUSED_USUALLY));
    Alert {
        name: "TokenweirRefusalsRise",
        when: "a model refuses twice as often as usual, and 5 % of answers more",
        area: AREA,
        severity: Severity::Ticket,
        expr: format!(
            "{lately}\n  > 2 * {usually}\nand {lately}\n  > 0.05 + {usually}\n\
             and on (gen_ai_request_model)\n  {ENOUGH}"
        )
        .into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "{{ $labels.gen_ai_request_model }} refuses more than it did",
        description: "{{ $value | humanizePercentage }} of the whole answers of \
                      {{ $labels.gen_ai_request_model }} lately are refusals, more than twice what is usual.",
        meaning: "Users get a no where they got an answer. It is what the wire tells, a `refusal` or the \
                  finish reason `content_filter`, and the phrases of the configuration if there are any.",
        confirm: "Dashboard, row Quality: since when? `tokenweir_finish_total{reason=\"content_filter\"}`. \
                  With `quality.file`, its lines with `\"refused\":true` have the prompts, without what is \
                  private.",
        action: "Another model version, system prompt or filter: take it back, or tell its owners. One \
                 client with new traffic: the access log has whose it is. If only the phrases match more, \
                 correct them.",
        silences: Vec::new(),
    }
}

fn score_drop() -> Alert {
    let (lately, usually) = (mean(SCORE_LATELY), mean(SCORE_USUALLY));
    Alert {
        name: "TokenweirScoreDrop",
        when: "the judge's mean score of a model is 0.15 below what is usual",
        area: AREA,
        severity: Severity::Ticket,
        // There is no mean of fewer than 20 scores, and at most a twentieth of answers is judged: that
        // is a guard against little traffic already.
        expr: format!("{lately}\n  < {usually} - 0.15").into(),
        holds_for: "1h",
        stays_for: Some("30m"),
        summary: "The judge finds answers of {{ $labels.gen_ai_request_model }} worse than they were",
        description: "The mean score of {{ $labels.gen_ai_request_model }} is {{ $value | humanize }} \
                      lately, which is 0.15 or more below what is usual.",
        meaning: "Answers got worse by the measure of `quality.judge`, or the judge changed.",
        confirm: "Ask the judge again about an old line of `quality.file`: another score than it has there \
                  means that it is the judge. Else read the worst lines of the last hours.",
        action: "The judge: put its old version back, or wait a day. The answers: what was deployed then? \
                 TokenweirOutputDrift and TokenweirRefusalsRise at the same time say what kind of change \
                 it is.",
        silences: Vec::new(),
    }
}

fn samples_lost() -> Alert {
    Alert {
        name: "TokenweirSamplesLost",
        when: "more than half of the answers in the sample, and more than 20 in an hour, are not judged",
        area: AREA,
        severity: Severity::Ticket,
        expr: "sum(increase(tokenweir_quality_samples_total{result!=\"done\"}[1h]))\n\
               / sum(increase(tokenweir_quality_samples_total[1h])) > 0.5\n\
               and sum(increase(tokenweir_quality_samples_total{result!=\"done\"}[1h])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("30m"),
        summary: "Answers in the sample are not judged",
        description: "{{ $value | humanizePercentage }} of the answers in the sample of the last hour got \
                      no score, or did not come into the file. Requests are not touched by that.",
        meaning: "The judge, the redactor or the disk fails, so scores are of few answers or none: a drop \
                  would not be seen.",
        confirm: "`tokenweir_quality_samples_total` by `result`: `judge_failed` is the judge, \
                  `redactor_failed` the command of `log.content`, `dropped` the disk or a queue that is full.",
        action: "The judge: is it up, does it answer within `quality.judge_timeout`, is the answer \
                 `{\"score\": 0.8}`? Slow: take a smaller `quality.sample`. Disk: room for \
                 `quality.max_file_bytes`.",
        silences: Vec::new(),
    }
}
