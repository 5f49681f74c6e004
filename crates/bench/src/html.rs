//! A report as a page that needs nothing else: no script, no font, nothing that is fetched.

use super::plot::{Across, Line, plot};
use super::report::{Report, Run, SHARES};
use super::text::{self, millis};
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child,td.l{text-align:left}.bad{background:#fbe3e0;padding:.6em 1em}\
.plots{display:flex;flex-wrap:wrap;gap:1em}svg{width:560px;max-width:100%}svg text{font-size:11px;fill:#555}\
svg text.title{font-size:13px;fill:#222}svg text.up{text-anchor:end}svg text.across{text-anchor:middle}\
svg text.name{text-anchor:end}.grid{stroke:#e4e4e4}.line{fill:none;stroke-width:1.8}\
@media(prefers-color-scheme:dark){body{background:#16181b;color:#ddd}td,th{border-color:#333}\
.bad{background:#52231d}.grid{stroke:#333}svg text{fill:#aaa}svg text.title{fill:#ddd}}";

/// Points of a plot of single requests, at most.
const DOTS: usize = 1_000;

pub(super) fn html(report: &Report) -> String {
    let run = &report.run;
    let title = escaped(&format!("{} against {}", run.scenario.name, run.target));
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    );
    // Writing to a string cannot fail.
    let _ = write_all(report, run, &mut page);
    page
}

fn write_all(report: &Report, run: &Run, to: &mut String) -> std::fmt::Result {
    for complaint in &report.generator.complaints {
        write!(to, "<p class=\"bad\"><b>Not valid:</b> {}</p>", escaped(complaint))?;
    }
    if let Some(ending) = text::ending(report) {
        write!(to, "<p class=\"bad\">{}</p>", escaped(&ending))?;
    }
    write!(
        to,
        "<p>{} ({}), {}, for {:.1} s from {}. {}.</p>",
        escaped(&run.model),
        run.api,
        run.scenario.arrivals,
        report.seconds,
        escaped(&run.started),
        escaped(&text::counts(report))
    )?;
    to.push_str("<table>");
    for (name, value) in text::rates(report) {
        write!(to, "<tr><td>{name}<td class=\"l\">{}", escaped(&value))?;
    }
    to.push_str("</table>");
    write_latencies(report, to)?;
    to.push_str("<div class=\"plots\">");
    for plot in plots(report) {
        to.push_str(&plot);
    }
    to.push_str("</div>");
    write_gateway(report, to)?;
    write!(
        to,
        "<p>Generator: sent {} ms late at p50, {} at p99; woke {} late at p99. Seed {}, salt {}. \
         tokenweir {}.</p></html>",
        millis(report.generator.lag.p50),
        millis(report.generator.lag.p99),
        millis(report.generator.wakes.p99),
        run.seed,
        run.salt,
        escaped(&report.tokenweir)
    )
}

fn write_latencies(report: &Report, to: &mut String) -> std::fmt::Result {
    to.push_str("<table><tr><th>ms<th><th>count<th>mean<th>p50<th>p90<th>p95<th>p99<th>max");
    for (name, what, it) in text::latencies(report) {
        write!(to, "<tr><td>{name}<td class=\"l\">{what}<td>{}", it.count)?;
        for value in [it.mean, it.p50, it.p90, it.p95, it.p99, it.max] {
            write!(to, "<td>{}", if it.count > 0 { millis(value) } else { "-".to_owned() })?;
        }
    }
    to.push_str("</table>");
    Ok(())
}

fn write_gateway(report: &Report, to: &mut String) -> std::fmt::Result {
    let Some(beheld) = &report.gateway else { return Ok(()) };
    to.push_str(
        "<h2>Client / gateway</h2><table><tr><th>ms, from sent<th>count<th>mean<th>p50<th>p99",
    );
    for row in &beheld.rows {
        let (client, gateway) = (&row.client, &row.gateway);
        write!(
            to,
            "<tr><td title=\"{}\">{}<td>{} / {}<td>{}<td>{}<td>{}",
            escaped(&row.metric),
            escaped(&row.quantity),
            client.count,
            gateway.count,
            text::beside(Some(client.mean), Some(gateway.mean)),
            text::beside(client.p50, gateway.p50),
            text::beside(client.p99, gateway.p99)
        )?;
    }
    let [client, gateway] = beheld.output_tokens;
    write!(to, "</table><p>Output tokens: {client} / {gateway}. {}</p>", text::shared(beheld))
}

fn plots(report: &Report) -> [String; 5] {
    let line = |name, points| Line { name, points, is_scattered: false };
    // A share that less than one value stands for is left out.
    let curve = |values: &[f64], count: u64| -> Vec<(f64, f64)> {
        let known = SHARES.iter().zip(values);
        let known = known.filter(|(share, _)| (1.0 - **share) * count as f64 >= 1.0);
        known.map(|(share, value)| (*share, value * 1e3)).collect()
    };
    let latencies = &report.latencies;
    let requests = latencies.ttft.count;
    let curves = &report.curves;
    let ttft = [
        line("intended", curve(&curves.ttft, requests)),
        line("sent", curve(&curves.service_ttft, requests)),
    ];
    let samples = &report.samples.requests;
    let every = samples.len().div_ceil(DOTS).max(1);
    let dots = samples.iter().step_by(every);
    let dots = dots.filter_map(|sample| Some((sample.at, sample.ttft? * 1e3))).collect();
    let course = &report.course;
    let over_time = |of: fn(&super::tally::Slot) -> f64| -> Vec<(f64, f64)> {
        let slots = course.slots.iter().zip(0_u32..);
        slots.map(|(slot, at)| (f64::from(at) * course.width, of(slot) / course.width)).collect()
    };
    let ended = [
        line("served", over_time(|slot| slot.served)),
        line("failed", over_time(|slot| slot.failed)),
    ];
    let dotted = Line { name: "each request", points: dots, is_scattered: true };
    [
        plot("TTFT by share of requests", "ms", Across::Shares, &ttft),
        plot(
            "TBT by share",
            "ms",
            Across::Shares,
            &[line("", curve(&curves.tbt, latencies.tbt.count))],
        ),
        plot("TTFT over the run", "ms", Across::Time, &[dotted]),
        plot("Output tokens", "a second", Across::Time, &[line("", over_time(|slot| slot.tokens))]),
        plot("Requests", "a second", Across::Time, &ended),
    ]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
