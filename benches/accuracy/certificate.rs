//! The certificate: the comparison of the values that the gateway reports with the true values, over all
//! requests, and the limits of the errors.

use super::gateway::sum;
use super::generated_streams::expected_record::RecordFields;
use super::limits::bar;
use super::plan::has_usage_option;
use super::truth::{Exchange, TIMES, Times};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokenweir_protocol::histogram::sample_quantile;

/// The comparison of all reported values of a run with the true values.
#[derive(Default)]
pub(crate) struct Certificate {
    /// The errors of the reported times, in the order of [`TIMES`].
    times: [Errors; TIMES.len()],
    facts: Vec<Fact>,
    abort_delays: Vec<f64>,
    /// The sums of the true values over all requests, by the name of the metric and a label such as
    /// `type="input"`.
    totals: BTreeMap<(&'static str, String), u64>,
}

/// The errors of one reported time, such as the TTFT, over all requests.
#[derive(Default)]
struct Errors {
    /// The absolute errors of the reported time, in milliseconds.
    errors: Vec<f64>,
    /// Each error divided by the maximum error that is allowed for its true value.
    shares: Vec<f64>,
}

/// A property that is checked for several requests, such as an access log field that equals the true value.
struct Fact {
    name: &'static str,
    checked: usize,
    wrong: Vec<String>,
}

/// The allowed error of a time is this one, or [`MAX_RELATIVE_ERROR`] of the true time if that is longer.
const MAX_ABSOLUTE_ERROR_MS: f64 = 1.0;
const MAX_RELATIVE_ERROR: f64 = 0.01;
/// Indexes in [`TIMES`] of the times with a limit: TTFT and the gaps between tokens. Their error at the 99th
/// percentile of the requests must be within it.
const LIMITED_QUANTITIES: std::ops::Range<usize> = 0..4;
/// The values of the label `type` of `tokenweir_tokens_total`.
const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];
/// Maximum number of faults that are printed for each property.
const MAX_PRINTED: usize = 20;

impl Certificate {
    /// Compares the access log line of one request with the true values.
    pub(crate) fn compare(&mut self, exchange: &Exchange<'_>, line: &Value) {
        let id = &exchange.plan.id;
        let case = &exchange.plan.case;
        let fields = RecordFields::expected(case);
        self.check(
            "usage is requested",
            exchange.played.was_usage_requested == has_usage_option(case.api),
            || id.clone(),
        );
        self.add("tokenweir_requests_total", "outcome", fields.outcome, 1);
        let finish: Vec<_> = fields.finish_reasons.iter().flatten().collect();
        for reason in &finish {
            self.add("tokenweir_finish_reasons_total", "reason", reason, 1);
        }
        let is_estimated = fields.usage_source == "estimated";
        let counted = fields.output_tokens.filter(|_| !is_estimated);
        let usage = fields.usage;
        let counts = [usage.input, counted, usage.cached, usage.reasoning];
        for (kind, count) in TOKEN_TYPES.into_iter().zip(counts) {
            self.add("tokenweir_tokens_total", "type", kind, count.unwrap_or(0));
        }
        for (name, reported, truth) in [
            ("outcome", &line["outcome"], json!(fields.outcome)),
            ("termination", &line["termination"], json!(fields.ending)),
            ("finish reasons", &line["finish"], json!(finish)),
            (
                "events with output",
                &line["output_events"],
                json!(fields.output_events),
            ),
            ("tokens in", &line["input_tokens"], json!(usage.input)),
            // If the number of output tokens is an estimate, it is not compared, because the gateway corrects
            // estimates by what it learned from other streams.
            (
                "tokens out",
                if is_estimated {
                    &Value::Null
                } else {
                    &line["output_tokens"]
                },
                json!(counted),
            ),
            ("cached tokens", &line["cached_tokens"], json!(usage.cached)),
            (
                "reasoning tokens",
                &line["reasoning_tokens"],
                json!(usage.reasoning),
            ),
            (
                "source of the count",
                &line["usage"],
                json!(fields.usage_source),
            ),
        ] {
            self.check(name, *reported == truth, || {
                format!("{id}: {reported} reported, {truth} true; {:?}", case.close)
            });
        }
        self.compare_times(id, line, exchange.times(&fields));
        self.abort_delays.extend(exchange.abort_delay().map(millis));
    }

    /// Counts one check of the property `name`. If `is_right` is false, stores the fault that `wrong`
    /// describes.
    pub(crate) fn check(
        &mut self,
        name: &'static str,
        is_right: bool,
        wrong: impl FnOnce() -> String,
    ) {
        let known = self.facts.iter().position(|fact| fact.name == name);
        let at = known.unwrap_or_else(|| {
            self.facts.push(Fact {
                name,
                checked: 0,
                wrong: Vec::new(),
            });
            self.facts.len() - 1
        });
        self.facts[at].checked += 1;
        if !is_right {
            self.facts[at].wrong.push(wrong());
        }
    }

    /// Compares the sums on the metrics page of the gateway with the true sums over all requests.
    pub(crate) fn compare_sums(&mut self, page: &str) {
        for ((metric, label), total) in self.totals.clone() {
            let reported = sum(page, metric, &label);
            self.check("sums in Prometheus", reported == Some(total as f64), || {
                format!("{metric}{{{label}}}: {reported:?} reported, {total} true")
            });
        }
    }

    /// Lists the missed limits. The list is empty if the run met all limits.
    pub(crate) fn limit_violations(&mut self) -> Vec<String> {
        let mut limit_violations = Vec::new();
        for fact in &self.facts {
            limit_violations.extend(
                fact.wrong
                    .iter()
                    .take(MAX_PRINTED)
                    .map(|w| format!("{}: {w}", fact.name)),
            );
            let more = fact.wrong.len().saturating_sub(MAX_PRINTED);
            bar(&mut limit_violations, more == 0, || {
                format!("{}: {more} more", fact.name)
            });
        }
        for index in LIMITED_QUANTITIES {
            let share = quantile(&mut self.times[index].shares, 0.99);
            // The share is NaN, and the limit missed, if the time was never compared.
            bar(&mut limit_violations, share <= 1.0, || {
                format!(
                    "{}: p99 error is {share:.2} of the allowed error",
                    TIMES[index].0
                )
            });
        }
        limit_violations
    }

    /// The Markdown tables of the errors of the times and of the checked properties, and a line about aborted
    /// requests.
    pub(crate) fn tables(&mut self) -> String {
        let head = [
            "quantity",
            "requests",
            "p50",
            "p99",
            "max",
            "within 1 ms or 1 %",
        ];
        let mut rows = vec![head.map(String::from)];
        rows.extend(
            TIMES
                .iter()
                .zip(&mut self.times)
                .map(|((name, _), errors)| errors.row(name)),
        );
        let mut facts = vec![["fact", "checked", "right"].map(String::from)];
        for fact in &self.facts {
            let right = percent(fact.checked - fact.wrong.len(), fact.checked);
            facts.push([fact.name.into(), fact.checked.to_string(), right]);
        }
        let delays = &mut self.abort_delays;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| quantile(delays, q));
        format!(
            "{}\n{}\nThe backend sees that a client has left after {p50:.2} ms at p50, \
             {p99:.2} ms at p99, {max:.2} ms at most ({} times).\n",
            table(&rows),
            table(&facts),
            delays.len(),
        )
    }

    fn add(&mut self, metric: &'static str, label: &str, value: &str, count: u64) {
        *self
            .totals
            .entry((metric, format!("{label}=\"{value}\"")))
            .or_default() += count;
    }

    fn compare_times(&mut self, id: &str, line: &Value, truth: Times) {
        for (index, ((name, field), truth)) in TIMES.into_iter().zip(truth).enumerate() {
            let reported = line[field].as_f64();
            let is_right = reported.is_some() == truth.is_some();
            self.check("times are reported if they exist", is_right, || {
                format!("{id}: {name} is {reported:?}, true {truth:?}")
            });
            if let (Some(reported), Some(truth)) = (reported, truth.map(millis)) {
                let error = (reported - truth).abs();
                let errors = &mut self.times[index];
                errors.errors.push(error);
                errors
                    .shares
                    .push(error / (truth * MAX_RELATIVE_ERROR).max(MAX_ABSOLUTE_ERROR_MS));
            }
        }
    }
}

impl Errors {
    fn row(&mut self, name: &str) -> [String; 6] {
        let [p50, p99, max] =
            [0.5, 0.99, 1.0].map(|q| format!("{:.3} ms", quantile(&mut self.errors, q)));
        let within = self.shares.iter().filter(|share| **share <= 1.0).count();
        let count = self.shares.len();
        [
            name.into(),
            count.to_string(),
            p50,
            p99,
            max,
            percent(within, count),
        ]
    }
}

/// The quantile `q` of the values, from 0 to 1. NaN if there are no values.
pub(crate) fn quantile(values: &mut [f64], q: f64) -> f64 {
    sample_quantile(values, q).unwrap_or(f64::NAN)
}

/// Formats a percentage. It is 100 % only if `part` is the whole, because other shares are rounded down.
fn percent(part: usize, whole: usize) -> String {
    if part == whole {
        return "100 %".into();
    }
    format!("{:.2} %", (part as f64 / whole as f64 * 1e4).floor() / 1e2)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Formats a Markdown table. The first row is the header.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| format!("| {} |\n", row.join(" | ")))
        .collect();
    lines.insert(1, format!("|{}\n", "---|".repeat(N)));
    lines.concat()
}
