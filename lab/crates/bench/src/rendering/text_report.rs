//! Renders a report as text for a terminal.

use crate::gateway_metrics::{BucketedSummary, GatewayComparison};
use crate::histogram::LatencySummary;
use crate::report::{BenchReport, RunDescription, RunTermination};
use std::fmt;

/// The rows of the latency table: name, description and values of each latency.
pub(super) fn latencies(report: &BenchReport) -> [(&'static str, &'static str, LatencySummary); 6] {
    let all = &report.latencies;
    [
        ("TTFT", "intended → first output", all.ttft),
        ("  service", "sent → first output", all.service_ttft),
        ("TBT", "output → next output", all.tbt),
        ("TPOT", "per token after the first", all.tpot),
        ("E2E", "intended → end", all.e2e),
        ("  service", "sent → end", all.service_e2e),
    ]
}

/// Explains the rows of the latency table in a terminal of 80 columns.
const LATENCY_LEGEND: &str = "\
TTFT and E2E count from the intended send time, their service times from the actual one.
TBT: output to next output. TPOT: per token after the first.
";

/// The line of the report that states why the run ended early. `None`: the run completed.
pub(super) fn early_end_note(report: &BenchReport) -> Option<String> {
    match report.termination {
        RunTermination::Complete => None,
        RunTermination::Interrupted => {
            Some("INTERRUPTED: the results cover the run until then".to_owned())
        }
        RunTermination::OnlyFailures => Some(format!(
            "GAVE UP after {:.1} s: all recent requests failed ({})",
            report.seconds,
            describe_failures(report)
        )),
    }
}

/// The failed requests as text: the count of each kind, such as `3 status_503, 1 timeout`.
fn describe_failures(report: &BenchReport) -> String {
    let kinds = report
        .counts
        .failures
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

/// Formats a time in seconds as milliseconds, with two decimals below 10 ms, with one decimal below 1,000 ms,
/// and without decimals above.
pub(crate) fn millis(seconds: f64) -> String {
    match seconds * 1e3 {
        millis if millis < 10.0 => format!("{millis:.2}"),
        millis if millis < 1_000.0 => format!("{millis:.1}"),
        millis => format!("{millis:.0}"),
    }
}

/// The line with the numbers of served, failed and unfinished requests.
pub(super) fn counts(report: &BenchReport) -> String {
    let counts = &report.counts;
    let failures = match describe_failures(report) {
        kinds if kinds.is_empty() => kinds,
        kinds => format!(" ({kinds})"),
    };
    let disconnects = if counts.client_disconnects > 0 {
        format!(", {} of them left by the client", counts.client_disconnects)
    } else {
        String::new()
    };
    format!(
        "served {}{disconnects}, failed {}{failures}, unfinished {}",
        counts.served, counts.failed, counts.unfinished
    )
}

/// The lines with rates and shares: the name and the formatted value of each.
pub(super) fn rates(report: &BenchReport) -> [(&'static str, String); 4] {
    let rates = &report.rates;
    let run = &report.run;
    let usage_note = match report.counts.uncounted {
        0 => String::new(),
        count => format!(" ({count} responses without usage: each event counts as one token)"),
    };
    let while_sending = rates
        .requests_while_sending
        .map(|rate| format!(" of the whole run, {rate:.2} until the last request was sent"));
    let while_sending = while_sending.unwrap_or_default();
    let cached = rates.cached.map_or("not reported".to_owned(), |share| {
        format!("{:.1} %", share * 1e2)
    });
    [
        (
            "requests/s",
            format!("{:.2}{while_sending}", rates.requests),
        ),
        (
            "tokens/s",
            format!(
                "{:.1} output, {:.1} input{usage_note}",
                rates.output_tokens, rates.input_tokens
            ),
        ),
        (
            "goodput",
            format!(
                "{:.1} %, {:.2} requests/s with TTFT ≤ {} s and TPOT ≤ {} ms",
                rates.goodput * 1e2,
                rates.good_requests,
                run.objectives.ttft,
                run.objectives.tpot * 1e3
            ),
        ),
        ("cached", cached),
    ]
}

impl fmt::Display for BenchReport {
    /// Writes the report as text for a terminal.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunDescription {
            target,
            model,
            api,
            scenario,
            ..
        } = &self.run;
        for problem in &self.generator.problems {
            writeln!(out, "NOT VALID: {problem}")?;
        }
        if let Some(early_end_note) = early_end_note(self) {
            writeln!(out, "{early_end_note}")?;
        }
        writeln!(out, "{} against {target}, {model}, {api}", scenario.name)?;
        writeln!(out, "{}, for {:.1} s", scenario.arrivals, self.seconds)?;
        writeln!(out, "{}\n", counts(self))?;
        for (name, value) in rates(self) {
            writeln!(out, "{name:<12}{value}")?;
        }
        write_latencies(self, out)?;
        let generator = &self.generator;
        writeln!(
            out,
            "\ngenerator   sent {} ms late at p50, {} at p99; woke {} late at p99",
            millis(generator.lag.p50),
            millis(generator.lag.p99),
            millis(generator.timer_delay.p99)
        )?;
        if let Some(comparison) = &self.gateway {
            write_gateway(comparison, out)?;
        }
        write_slowest(self, out)
    }
}

/// Writes the table of latencies in milliseconds, and the text that explains it.
fn write_latencies(report: &BenchReport, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        out,
        "\n{:<11}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "ms", "count", "mean", "p50", "p90", "p95", "p99", "max"
    )?;
    let rows = latencies(report);
    for (
        name,
        _,
        LatencySummary {
            count,
            mean,
            p50,
            p90,
            p95,
            p99,
            max,
        },
    ) in rows
    {
        write!(out, "{name:<11}{count:>8}")?;
        for value in [mean, p50, p90, p95, p99, max] {
            write!(
                out,
                "{:>9}",
                if count > 0 {
                    millis(value)
                } else {
                    "-".to_owned()
                }
            )?;
        }
        writeln!(out)?;
    }
    out.write_str(LATENCY_LEGEND)?;
    if !report.run.scenario.arrivals.is_open() {
        writeln!(
            out,
            "A closed loop sends fewer requests to a slow server:\n\
             its latencies are lower than those of independent clients."
        )?;
    }
    Ok(())
}

/// Writes the ids of the requests with the slowest first output. Writes nothing if there are no such
/// requests.
fn write_slowest(report: &BenchReport, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    if report.slowest.is_empty() {
        return Ok(());
    }
    let slowest = report.slowest.iter().map(|slow| {
        format!(
            "{} ({} ms)",
            RunDescription::request_id(report.run.salt, slow.number),
            millis(slow.ttft)
        )
    });
    writeln!(
        out,
        "\nslowest first outputs, by request id: {}",
        slowest.collect::<Vec<_>>().join(", ")
    )
}

fn write_gateway(comparison: &GatewayComparison, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        out,
        "\nclient / gateway in ms, both in the gateway's buckets\n\
         {:<10}{:>14}{:>18}{:>18}{:>18}",
        "from sent", "count", "mean", "p50", "p99"
    )?;
    for row in &comparison.rows {
        let BucketedSummary {
            count,
            mean,
            p50,
            p99,
        } = row.client;
        let gateway = row.gateway;
        write!(
            out,
            "{:<10}{:>14}",
            row.quantity,
            format!("{count} / {}", gateway.count)
        )?;
        let pairs = [
            (Some(mean), Some(gateway.mean)),
            (p50, gateway.p50),
            (p99, gateway.p99),
        ];
        for (client, gateway) in pairs {
            write!(out, "{:>18}", format_client_and_gateway(client, gateway))?;
        }
        writeln!(out)?;
    }
    let [client, gateway] = comparison.output_tokens;
    writeln!(out, "output tokens: {client} / {gateway}")?;
    writeln!(out, "{}", shared_gateway_note(comparison))
}

/// Formats a value of the client and a value of the gateway, both in seconds, as milliseconds.
/// `None` is shown as `-`.
pub(super) fn format_client_and_gateway(client: Option<f64>, gateway: Option<f64>) -> String {
    let format_value = |value: Option<f64>| value.map_or("-".to_owned(), millis);
    format!("{} / {}", format_value(client), format_value(gateway))
}

/// The line that says whether the client and the gateway counted the same number of requests.
pub(super) const fn shared_gateway_note(comparison: &GatewayComparison) -> &'static str {
    if comparison.is_shared {
        "The counts differ: the gateway also served other clients, or did not see all requests of this run."
    } else {
        "The gateway counted exactly the requests of this run for this model."
    }
}
