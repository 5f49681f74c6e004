//! Renders a report as text for a terminal.

use crate::gateway_metrics::{BucketedSummary, GatewayComparison};
use crate::histogram::LatencySummary;
use crate::report::{BenchReport, RunDescription, RunTermination};
use std::fmt::Write;

/// The rows of the latency table.
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

/// A note about a run that did not complete.
pub(super) fn ending(report: &BenchReport) -> Option<String> {
    match report.termination {
        RunTermination::Complete => None,
        RunTermination::Interrupted => {
            Some("INTERRUPTED: the results cover the run until then".to_owned())
        }
        RunTermination::OnlyFailures => Some(format!(
            "GAVE UP after {:.1} s: all recent requests failed ({})",
            report.seconds,
            failures(report)
        )),
    }
}

/// Failures by kind.
pub(super) fn failures(report: &BenchReport) -> String {
    let kinds = report.counts.failures.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

/// Formats milliseconds with three significant digits.
pub(crate) fn millis(seconds: f64) -> String {
    match seconds * 1e3 {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 1_000.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    }
}

/// The line with request counts.
pub(super) fn counts(report: &BenchReport) -> String {
    let counts = &report.counts;
    let failures = match failures(report) {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    };
    let left = if counts.client_disconnects > 0 {
        format!(", {} of them left by the client", counts.client_disconnects)
    } else {
        String::new()
    };
    format!(
        "served {}{left}, failed {}{failures}, unfinished {}",
        counts.served, counts.failed, counts.unfinished
    )
}

/// The lines with rates.
pub(super) fn rates(report: &BenchReport) -> [(&'static str, String); 4] {
    let (rates, run) = (&report.rates, &report.run);
    let usage_note = match report.counts.uncounted {
        0 => String::new(),
        some => format!(" ({some} responses without usage: each event counts as one token)"),
    };
    let cached =
        rates.cached.map_or("not reported".to_owned(), |share| format!("{:.1} %", share * 1e2));
    [
        ("requests/s", format!("{:.2}", rates.requests)),
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

pub(super) fn text(report: &BenchReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(report, &mut text);
    text
}

fn write_report(report: &BenchReport, to: &mut String) -> std::fmt::Result {
    let RunDescription { target, model, api, scenario, .. } = &report.run;
    for complaint in &report.generator.problems {
        writeln!(to, "NOT VALID: {complaint}")?;
    }
    if let Some(ending) = ending(report) {
        writeln!(to, "{ending}")?;
    }
    writeln!(to, "{} against {target}, {model}, {api}", scenario.name)?;
    writeln!(to, "{}, for {:.1} s", scenario.arrivals, report.seconds)?;
    writeln!(to, "{}\n", counts(report))?;
    for (name, value) in rates(report) {
        writeln!(to, "{name:<12}{value}")?;
    }
    writeln!(
        to,
        "\n{:<11}{:<26}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "ms", "", "count", "mean", "p50", "p90", "p95", "p99", "max"
    )?;
    for (name, description, LatencySummary { count, mean, p50, p90, p95, p99, max }) in
        latencies(report)
    {
        write!(to, "{name:<11}{description:<26}{count:>8}")?;
        for value in [mean, p50, p90, p95, p99, max] {
            write!(to, "{:>10}", if count > 0 { millis(value) } else { "-".to_owned() })?;
        }
        writeln!(to)?;
    }
    if !report.run.scenario.arrivals.is_open() {
        writeln!(
            to,
            "A closed loop sends fewer requests to a slow server: its latencies are lower than those of independent clients."
        )?;
    }
    let generator = &report.generator;
    writeln!(
        to,
        "\ngenerator   sent {} ms late at p50, {} at p99; woke {} late at p99",
        millis(generator.lag.p50),
        millis(generator.lag.p99),
        millis(generator.timer_delay.p99)
    )?;
    if let Some(comparison) = &report.gateway {
        write_gateway(comparison, to)?;
    }
    if !report.slowest.is_empty() {
        let slowest = report.slowest.iter().map(|slow| {
            format!(
                "{} ({} ms)",
                RunDescription::request_id(report.run.salt, slow.number),
                millis(slow.ttft)
            )
        });
        writeln!(
            to,
            "\nslowest first outputs, by request id: {}",
            slowest.collect::<Vec<_>>().join(", ")
        )?;
    }
    Ok(())
}

fn write_gateway(comparison: &GatewayComparison, to: &mut String) -> std::fmt::Result {
    writeln!(
        to,
        "\n{:<10}{:>16}{:>22}{:>22}{:>22}   client / gateway in ms, both in the gateway's buckets",
        "from sent", "count", "mean", "p50", "p99"
    )?;
    for row in &comparison.rows {
        let BucketedSummary { count, mean, p50, p99 } = row.client;
        let gateway = row.gateway;
        write!(to, "{:<10}{:>16}", row.quantity, format!("{count} / {}", gateway.count))?;
        let pairs = [(Some(mean), Some(gateway.mean)), (p50, gateway.p50), (p99, gateway.p99)];
        for (client, gateway) in pairs {
            write!(to, "{:>22}", beside(client, gateway))?;
        }
        writeln!(to)?;
    }
    let [client, gateway] = comparison.output_tokens;
    writeln!(to, "output tokens: {client} / {gateway}")?;
    writeln!(to, "{}", shared(comparison))
}

/// Formats a value of the client and of the gateway in milliseconds.
pub(super) fn beside(client: Option<f64>, gateway: Option<f64>) -> String {
    let format_value = |value: Option<f64>| value.map_or("-".to_owned(), millis);
    format!("{} / {}", format_value(client), format_value(gateway))
}

/// A note on whether client and gateway counted the same requests.
pub(super) const fn shared(comparison: &GatewayComparison) -> &'static str {
    if comparison.is_shared {
        "The counts differ: the gateway also served other clients, or did not see all requests of this run."
    } else {
        "The gateway counted exactly the requests of this run for this model."
    }
}
