//! Renders a report as one HTML page, which needs no scripts, fonts or other files from the network.

use super::plot::{HorizontalAxis, PlotSeries, plot};
use super::text_report::{self, millis};
use crate::report::{BenchReport, CURVE_QUANTILES, RunDescription};
use crate::statistics::TimelineSlot;
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

impl BenchReport {
    /// Renders the report as an HTML page that needs no other files.
    pub fn html(&self) -> String {
        let run = &self.run;
        let title = escape_html(&format!("{} against {}", run.scenario.name, run.target));
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        );
        // Writing to a string cannot fail.
        let _ = write_page(self, run, &mut page);
        page
    }
}

fn write_page(report: &BenchReport, run: &RunDescription, out: &mut String) -> std::fmt::Result {
    for problem in &report.generator.problems {
        write!(
            out,
            "<p class=\"bad\"><b>Not valid:</b> {}</p>",
            escape_html(problem)
        )?;
    }
    if let Some(note) = text_report::early_end_note(report) {
        write!(out, "<p class=\"bad\">{}</p>", escape_html(&note))?;
    }
    write!(
        out,
        "<p>{} ({}), {}, for {:.1} s from {}. {}.</p>",
        escape_html(&run.model),
        run.api,
        run.scenario.arrivals,
        report.seconds,
        escape_html(&run.started),
        escape_html(&text_report::counts(report))
    )?;
    out.push_str("<table>");
    for (name, value) in text_report::rates(report) {
        write!(out, "<tr><td>{name}<td class=\"l\">{}", escape_html(&value))?;
    }
    out.push_str("</table>");
    write_latencies(report, out)?;
    out.push_str("<div class=\"plots\">");
    for plot in render_plots(report) {
        out.push_str(&plot);
    }
    out.push_str("</div>");
    write_gateway(report, out)?;
    write!(
        out,
        "<p>Generator: sent {} ms late at p50, {} at p99; woke {} late at p99. Seed {}, salt {}. \
         tokenweir {}.</p></html>",
        millis(report.generator.lag.p50),
        millis(report.generator.lag.p99),
        millis(report.generator.timer_delay.p99),
        run.seed,
        run.salt,
        escape_html(&report.tokenweir)
    )
}

fn write_latencies(report: &BenchReport, out: &mut String) -> std::fmt::Result {
    out.push_str("<table><tr><th>ms<th><th>count<th>mean<th>p50<th>p90<th>p95<th>p99<th>max");
    for (name, description, summary) in text_report::latencies(report) {
        write!(
            out,
            "<tr><td>{name}<td class=\"l\">{description}<td>{}",
            summary.count
        )?;
        for value in [
            summary.mean,
            summary.p50,
            summary.p90,
            summary.p95,
            summary.p99,
            summary.max,
        ] {
            write!(
                out,
                "<td>{}",
                if summary.count > 0 {
                    millis(value)
                } else {
                    "-".to_owned()
                }
            )?;
        }
    }
    out.push_str("</table>");
    Ok(())
}

fn write_gateway(report: &BenchReport, out: &mut String) -> std::fmt::Result {
    let Some(comparison) = &report.gateway else {
        return Ok(());
    };
    out.push_str(
        "<h2>Client / gateway</h2><table><tr><th>ms, from sent<th>count<th>mean<th>p50<th>p99",
    );
    for row in &comparison.rows {
        let client = &row.client;
        let gateway = &row.gateway;
        write!(
            out,
            "<tr><td title=\"{}\">{}<td>{} / {}<td>{}<td>{}<td>{}",
            escape_html(&row.metric),
            escape_html(&row.quantity),
            client.count,
            gateway.count,
            text_report::format_client_and_gateway(Some(client.mean), Some(gateway.mean)),
            text_report::format_client_and_gateway(client.p50, gateway.p50),
            text_report::format_client_and_gateway(client.p99, gateway.p99)
        )?;
    }
    let [client, gateway] = comparison.output_tokens;
    write!(
        out,
        "</table><p>Output tokens: {client} / {gateway}. {}</p>",
        text_report::shared_gateway_note(comparison)
    )
}

fn render_plots(report: &BenchReport) -> [String; 5] {
    let line = |name, points| PlotSeries {
        name,
        points,
        is_scattered: false,
    };
    let latencies = &report.latencies;
    let requests = latencies.ttft.count;
    let curves = &report.curves;
    let ttft = [
        line("intended", quantile_curve(&curves.ttft, requests)),
        line("sent", quantile_curve(&curves.service_ttft, requests)),
    ];
    let samples = &report.samples.requests;
    let dots = samples
        .iter()
        .filter_map(|sample| Some((sample.at, sample.ttft? * 1e3)))
        .collect();
    let timeline = &report.timeline;
    let rate_over_time = |count: fn(&TimelineSlot) -> f64| -> Vec<(f64, f64)> {
        let slots = timeline.slots.iter().zip(0_u32..);
        let width = timeline.width;
        slots
            .map(|(slot, index)| (f64::from(index) * width, count(slot) / width))
            .collect()
    };
    let ended_requests = [
        line("served", rate_over_time(|slot| slot.served)),
        line("failed", rate_over_time(|slot| slot.failed)),
    ];
    let dots_name = if report.samples.every == 1 {
        "each request"
    } else {
        "random requests"
    };
    let ttft_points = PlotSeries {
        name: dots_name,
        points: dots,
        is_scattered: true,
    };
    [
        plot(
            "TTFT by share of requests",
            "ms",
            HorizontalAxis::Shares,
            &ttft,
        ),
        plot(
            "TBT by share",
            "ms",
            HorizontalAxis::Shares,
            &[line("", quantile_curve(&curves.tbt, latencies.tbt.count))],
        ),
        plot(
            "TTFT over the run",
            "ms",
            HorizontalAxis::Time,
            &[ttft_points],
        ),
        plot(
            "Output tokens",
            "a second",
            HorizontalAxis::Time,
            &[line("", rate_over_time(|slot| slot.tokens))],
        ),
        plot(
            "Requests",
            "a second",
            HorizontalAxis::Time,
            &ended_requests,
        ),
    ]
}

/// The points of a quantile curve: the share of values, and the quantile in milliseconds. `values`: the
/// quantiles in seconds, in the order of [`CURVE_QUANTILES`]. `count`: number of measured values. A quantile
/// is left out if less than one value is above it.
fn quantile_curve(values: &[f64], count: u64) -> Vec<(f64, f64)> {
    let points = CURVE_QUANTILES.iter().zip(values);
    let points = points.filter(|(share, _)| (1.0 - **share) * count as f64 >= 1.0);
    points.map(|(share, value)| (*share, value * 1e3)).collect()
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
