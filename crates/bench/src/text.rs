//! A report for people, on a terminal.

use super::gateway::{Beheld, Told};
use super::histogram::Summary;
use super::report::{Ending, Report, Run};
use std::fmt::Write;

/// The rows of the table of latencies.
pub(super) fn latencies(report: &Report) -> [(&'static str, &'static str, Summary); 6] {
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

/// How it ended, if it did not end as it should.
pub(super) fn ending(report: &Report) -> Option<String> {
    match report.ending {
        Ending::Complete => None,
        Ending::Interrupted => Some("INTERRUPTED: this is what there was until then".to_owned()),
        Ending::GaveUp => Some(format!(
            "GAVE UP after {:.1} s: the target only failed any more ({})",
            report.seconds,
            failures(report)
        )),
    }
}

/// Failures by kind.
pub(super) fn failures(report: &Report) -> String {
    let kinds = report.counts.failures.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

/// Milliseconds with as many digits as mean something.
pub(super) fn millis(seconds: f64) -> String {
    match seconds * 1e3 {
        small if small < 10.0 => format!("{small:.2}"),
        middle if middle < 1_000.0 => format!("{middle:.1}"),
        large => format!("{large:.0}"),
    }
}

/// The line of counts.
pub(super) fn counts(report: &Report) -> String {
    let counts = &report.counts;
    let failures = match failures(report) {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    };
    let left = if counts.left > 0 {
        format!(", {} of them left early", counts.left)
    } else {
        String::new()
    };
    format!(
        "served {}{left}, failed {}{failures}, unfinished {}",
        counts.served, counts.failed, counts.unfinished
    )
}

/// The lines of rates.
pub(super) fn rates(report: &Report) -> [(&'static str, String); 4] {
    let (rates, run) = (&report.rates, &report.run);
    let told = match report.counts.uncounted {
        0 => String::new(),
        some => format!(" ({some} answers told no count: each event is one token)"),
    };
    let cached = rates.cached.map_or("not told".to_owned(), |it| format!("{:.1} %", it * 1e2));
    [
        ("requests/s", format!("{:.2}", rates.requests)),
        (
            "tokens/s",
            format!("{:.1} output, {:.1} input{told}", rates.output_tokens, rates.input_tokens),
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

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(report, &mut text);
    text
}

fn write_all(report: &Report, to: &mut String) -> std::fmt::Result {
    let Run { target, model, api, scenario, .. } = &report.run;
    for complaint in &report.generator.complaints {
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
    for (name, what, Summary { count, mean, p50, p90, p95, p99, max }) in latencies(report) {
        write!(to, "{name:<11}{what:<26}{count:>8}")?;
        for value in [mean, p50, p90, p95, p99, max] {
            write!(to, "{:>10}", if count > 0 { millis(value) } else { "-".to_owned() })?;
        }
        writeln!(to)?;
    }
    if !report.run.scenario.arrivals.is_open() {
        writeln!(
            to,
            "A closed loop sends less when the server is slow: its latencies do not say what waiting clients would have seen."
        )?;
    }
    let generator = &report.generator;
    writeln!(
        to,
        "\ngenerator   sent {} ms late at p50, {} at p99; woke {} late at p99",
        millis(generator.lag.p50),
        millis(generator.lag.p99),
        millis(generator.wakes.p99)
    )?;
    if let Some(beheld) = &report.gateway {
        write_gateway(beheld, to)?;
    }
    if !report.slowest.is_empty() {
        let slowest = report.slowest.iter().map(|slow| {
            format!("{} ({} ms)", Run::request_id(report.run.salt, slow.number), millis(slow.ttft))
        });
        writeln!(
            to,
            "\nslowest first outputs, by request id: {}",
            slowest.collect::<Vec<_>>().join(", ")
        )?;
    }
    Ok(())
}

fn write_gateway(beheld: &Beheld, to: &mut String) -> std::fmt::Result {
    writeln!(
        to,
        "\n{:<10}{:>16}{:>22}{:>22}{:>22}   client / gateway, in its buckets; ms",
        "from sent", "count", "mean", "p50", "p99"
    )?;
    for row in &beheld.rows {
        let Told { count, mean, p50, p99 } = row.client;
        let gateway = row.gateway;
        write!(to, "{:<10}{:>16}", row.quantity, format!("{count} / {}", gateway.count))?;
        let pairs = [(Some(mean), Some(gateway.mean)), (p50, gateway.p50), (p99, gateway.p99)];
        for (client, gateway) in pairs {
            write!(to, "{:>22}", beside(client, gateway))?;
        }
        writeln!(to)?;
    }
    let [client, gateway] = beheld.output_tokens;
    writeln!(to, "output tokens: {client} / {gateway}")?;
    writeln!(to, "{}", shared(beheld))
}

/// Both, in milliseconds.
pub(super) fn beside(client: Option<f64>, gateway: Option<f64>) -> String {
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), millis);
    format!("{} / {}", shown(client), shown(gateway))
}

/// Whether they are about the same requests.
pub(super) const fn shared(beheld: &Beheld) -> &'static str {
    if beheld.is_shared {
        "The counts differ: the gateway served others too, or did not see all of these."
    } else {
        "The gateway counted exactly these requests for this model."
    }
}
