//! The certificate: the reported values compared with the true values over all requests, and the
//! limits of the errors.

use super::gateway::sum;
use super::truth::{Exchange, TIMES, Times};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;
use tokenweir_protocol::histogram::sample_quantile;

/// The result of a run.
#[derive(Default)]
pub(crate) struct Certificate {
    /// Errors by quantity, against the backend's clock and against the client's clock.
    times: [[Errors; 2]; TIMES.len()],
    facts: Vec<Fact>,
    abort_delays: Vec<f64>,
    /// Relative errors of estimated output tokens.
    estimates: Vec<f64>,
    /// Expected sums of the series of metrics with a label.
    totals: BTreeMap<(&'static str, String), u64>,
}

/// The errors of one quantity against one clock.
#[derive(Default)]
struct Errors {
    /// Absolute errors in milliseconds.
    errors: Vec<f64>,
    /// Each error divided by the allowed error for its value.
    shares: Vec<f64>,
}

/// A checked property.
struct Fact {
    name: &'static str,
    checked: usize,
    wrong: Vec<String>,
}

/// Allowed error of a time: this, or [`MAX_RELATIVE_ERROR`] of its true value, whichever is more.
const MAX_ABSOLUTE_ERROR_MS: f64 = 1.0;
const MAX_RELATIVE_ERROR: f64 = 0.01;
/// The quantities whose error at the 99th percentile of requests must be within the limit: TTFT and
/// the gaps between tokens.
const LIMITED_QUANTITIES: std::ops::Range<usize> = 0..4;
/// The labels of the token metric.
const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];
/// Maximum number of printed errors per property.
const MAX_PRINTED: usize = 20;

impl Certificate {
    /// Compares the access log line of one request with the truth.
    pub(crate) fn compare(&mut self, exchange: &Exchange<'_>, line: &Value) {
        let id = &exchange.plan.id;
        let count = line["output_events"].as_u64().unwrap_or(0);
        let (least, most) = exchange.output_events();
        self.check("events with output", (least..=most).contains(&count), || {
            format!("{id}: {count} reported, {least} to {most} true")
        });
        let (status, outcome, ending, phase) = exchange.outcome();
        let reported = json!([line["status"], line["outcome"], line["termination"], line["phase"]]);
        let truth = json!([status, outcome, ending, phase]);
        self.equal(exchange, "status, outcome, ending, phase", &reported, &truth);
        self.add("tokenweir_requests_total", "outcome", outcome, 1);
        self.equal(exchange, "finish reasons", &line["finish"], &json!(exchange.finish()));
        for finish in exchange.finish() {
            self.add("tokenweir_finish_reasons_total", "reason", finish, 1);
        }
        self.check("bytes", exchange.is_same_bytes(), || {
            let (seen, body) = (exchange.seen.body.len(), exchange.body().len());
            format!("{id}: {seen} of {body}, {:?}", exchange.plan.ending)
        });
        self.compare_tokens(exchange, line, count);
        let reported = TIMES.map(|(_, field)| line[field].as_f64());
        self.compare_times(id, &reported, exchange.times(count), 0);
        self.compare_times(id, &reported, exchange.times_of_client(count), 1);
        let is_abort = outcome == "cancelled";
        self.abort_delays.extend(exchange.abort_delay().filter(|_| is_abort).map(millis));
    }

    fn compare_tokens(&mut self, exchange: &Exchange<'_>, line: &Value, count: u64) {
        let usage = exchange.usage(count).unwrap_or_default();
        let (source, output) = exchange.output_tokens(count);
        let is_estimated = source == "estimated";
        let counted = output.filter(|_| !is_estimated);
        let rows = [
            ("tokens in", "input_tokens", usage.input),
            ("tokens out", "output_tokens", counted),
            ("cached tokens", "cached_tokens", usage.cached),
            ("reasoning tokens", "reasoning_tokens", usage.reasoning),
        ];
        for ((name, field, truth), kind) in rows.into_iter().zip(TOKEN_TYPES) {
            if !(is_estimated && field == "output_tokens") {
                self.equal(exchange, name, &line[field], &json!(truth));
            }
            self.add("tokenweir_tokens_total", "type", kind, truth.unwrap_or(0));
        }
        self.equal(exchange, "source of the count", &line["usage"], &json!(source));
        if let (true, Some(reported), Some(truth)) =
            (is_estimated, line["output_tokens"].as_f64(), output)
        {
            self.estimates.push((reported / truth as f64 - 1.0).abs());
        }
    }

    fn equal(
        &mut self,
        exchange: &Exchange<'_>,
        name: &'static str,
        reported: &Value,
        truth: &Value,
    ) {
        self.check(name, reported == truth, || {
            format!(
                "{}: {reported} reported, {truth} true; {:?}",
                exchange.plan.id, exchange.plan.ending
            )
        });
    }

    /// Records whether a property holds.
    pub(crate) fn check(
        &mut self,
        name: &'static str,
        is_right: bool,
        wrong: impl FnOnce() -> String,
    ) {
        let known = self.facts.iter().position(|fact| fact.name == name);
        let at = known.unwrap_or_else(|| {
            self.facts.push(Fact { name, checked: 0, wrong: Vec::new() });
            self.facts.len() - 1
        });
        self.facts[at].checked += 1;
        if !is_right {
            self.facts[at].wrong.push(wrong());
        }
    }

    /// Compares the sums of the metrics page with the sums over all requests.
    pub(crate) fn compare_sums(&mut self, page: &str) {
        for ((metric, label), total) in self.totals.clone() {
            let reported = sum(page, metric, &label);
            self.check("sums in Prometheus", reported == Some(total as f64), || {
                format!("{metric}{{{label}}}: {reported:?} reported, {total} true")
            });
        }
    }

    /// Lists the limits that were missed. Empty if there are none.
    pub(crate) fn limit_violations(&mut self) -> Vec<String> {
        let mut limit_violations = Vec::new();
        for fact in &self.facts {
            limit_violations
                .extend(fact.wrong.iter().take(MAX_PRINTED).map(|w| format!("{}: {w}", fact.name)));
            let more = fact.wrong.len().saturating_sub(MAX_PRINTED);
            if more > 0 {
                limit_violations.push(format!("{}: {more} more", fact.name));
            }
        }
        for index in LIMITED_QUANTITIES {
            let share = quantile(&mut self.times[index][0].shares, 0.99);
            if share.is_nan() || share > 1.0 {
                limit_violations.push(format!(
                    "{}: p99 error is {share:.2} of the allowed error",
                    TIMES[index].0
                ));
            }
        }
        limit_violations
    }

    /// The tables in Markdown.
    pub(crate) fn tables(&mut self) -> String {
        let head = ["quantity", "against", "requests", "p50", "p99", "max", "within 1 ms or 1 %"];
        let mut rows = vec![head.map(String::from)];
        for ((name, _), clocks) in TIMES.iter().zip(&mut self.times) {
            for (errors, clock) in clocks.iter_mut().zip(["backend's writes", "client's reads"]) {
                rows.push(errors.row(name, clock));
            }
        }
        let mut facts = vec![["fact", "checked", "right"].map(String::from)];
        for fact in &self.facts {
            let right = percent(fact.checked - fact.wrong.len(), fact.checked);
            facts.push([fact.name.into(), fact.checked.to_string(), right]);
        }
        let delays = &mut self.abort_delays;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| quantile(delays, q));
        let estimates = &mut self.estimates;
        let [half, most] = [0.5, 1.0].map(|q| quantile(estimates, q) * 100.0);
        format!(
            "{}\n{}\nA client that leaves is seen by the backend after {p50:.2} ms at p50, \
             {p99:.2} ms at p99, {max:.2} ms at most ({} times). Answers that broke off without a \
             count: {}; the estimate is off by {half:.0} % at p50, {most:.0} % at most.\n",
            Table(&rows),
            Table(&facts),
            delays.len(),
            estimates.len(),
        )
    }

    fn add(&mut self, metric: &'static str, label: &str, value: &str, count: u64) {
        *self.totals.entry((metric, format!("{label}=\"{value}\""))).or_default() += count;
    }

    fn compare_times(&mut self, id: &str, reported: &[Option<f64>], truth: Times, clock: usize) {
        for (index, (reported, truth)) in reported.iter().zip(truth).enumerate() {
            // A client that disconnected has not received everything that the gateway has.
            if clock == 0 {
                self.check(
                    "times are reported if they exist",
                    reported.is_some() == truth.is_some(),
                    || format!("{id}: {} is {reported:?}, true {truth:?}", TIMES[index].0),
                );
            }
            if let (Some(reported), Some(truth)) = (reported, truth.map(millis)) {
                let error = (reported - truth).abs();
                let errors = &mut self.times[index][clock];
                errors.errors.push(error);
                errors.shares.push(error / (truth * MAX_RELATIVE_ERROR).max(MAX_ABSOLUTE_ERROR_MS));
            }
        }
    }
}

impl Errors {
    fn row(&mut self, name: &str, clock: &str) -> [String; 7] {
        let [p50, p99, max] =
            [0.5, 0.99, 1.0].map(|q| format!("{:.3} ms", quantile(&mut self.errors, q)));
        let within = self.shares.iter().filter(|share| **share <= 1.0).count();
        let count = self.shares.len();
        [name.into(), clock.into(), count.to_string(), p50, p99, max, percent(within, count)]
    }
}

/// NaN without values.
pub(crate) fn quantile(values: &mut [f64], q: f64) -> f64 {
    sample_quantile(values, q).unwrap_or(f64::NAN)
}

/// A percentage that is never rounded up to 100 %.
fn percent(part: usize, whole: usize) -> String {
    if part == whole {
        return "100 %".into();
    }
    format!("{:.2} %", (part as f64 / whole as f64 * 1e4).floor() / 1e2)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Rows as an aligned Markdown table. The first row is the header.
struct Table<'a, const N: usize>(&'a [[String; N]]);

impl<const N: usize> Display for Table<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for (number, row) in self.0.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                write!(f, "| {cell:<width$} ", width = width(column))?;
            }
            writeln!(f, "|")?;
            if number == 0 {
                for column in 0..N {
                    write!(f, "|{}", "-".repeat(width(column) + 2))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}
