//! The gateway itself: what it takes, and what it loses.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{quantile, quantile_by, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Gateway",
        panels: vec![
            Panel::lines(
                "Overhead",
                "s",
                "From the end of the request body to handing it to a connection. Good is far below 1 ms.",
            )
            .asks(quantile(metrics, 0.5, "tokenweir_gateway_overhead_seconds", ""), "p50")
            .asks(quantile(metrics, 0.99, "tokenweir_gateway_overhead_seconds", ""), "p99")
            .bad(Thresholds::Above(0.005, 0.01)),
            Panel::lines("CPU", "none", "Cores in use.")
                .asks(rate_by(metrics, "instance", "process_cpu_seconds_total", "job=\"tokenweir\""), "{{instance}}"),
            Panel::lines("Memory", "bytes", "Resident memory. It follows the requests in flight.")
                .asks(
                    "sum by (instance) (process_resident_memory_bytes{job=\"tokenweir\"})",
                    "{{instance}}",
                ),
            Panel::lines("In flight", "short", "Requests between their first byte and their last.")
                .asks("sum by (instance) (tokenweir_requests_in_flight)", "{{instance}}"),
            Panel::stacked(
                "Answered by the gateway itself",
                "reqps",
                "Errors with `x-gateway-error`, by reason.",
            )
            .asks(rate_by(metrics, "reason", "tokenweir_refusals_total", ""), "{{reason}}"),
            Panel::lines(
                "Attempts that failed",
                "reqps",
                "Of sending a request to a replica. Those that were tried elsewhere harmed nobody.",
            )
            .asks(
                rate_by(metrics, "backend, result", "tokenweir_attempts_total", "result!=\"ok\""),
                "{{backend}} {{result}}",
            ),
            Panel::lines(
                "Looks at replicas that failed",
                "short",
                "Metrics pages a second that could not be used. Good is 0.",
            )
            .asks(
                rate_by(metrics, "backend, kind", "tokenweir_scrape_errors_total", ""),
                "{{backend}} {{kind}}",
            ),
            Panel::lines("Time of a look, p95", "s", "How long a replica's metrics page takes.").asks(
                quantile_by(metrics, 0.95, "le, backend", "tokenweir_scrape_duration_seconds", ""),
                "{{backend}}",
            ),
            Panel::lines(
                "Spans",
                "short",
                "Spans a second by what became of them. `exported` follows `queued`; the difference is \
                 lost.",
            )
            .asks(rate_by(metrics, "result", "tokenweir_otel_spans_total", ""), "{{result}}"),
            Panel::lines(
                "Answers that could not be read",
                "reqps",
                "They were forwarded all the same, but are missing in the numbers above. Good is 0.",
            )
            .asks(rate_by(metrics, "reason", "tokenweir_observer_lost_total", ""), "{{reason}}"),
            Panel::lines(
                "Clients that do not take their answer, p95",
                "s",
                "Time that answers stood ready and the client did not read. Never part of the latency \
                 above.",
            )
            .asks(quantile(metrics, 0.95, "tokenweir_client_write_stall_seconds", ""), "p95"),
            Panel::lines(
                "Records of the capture",
                "short",
                "Records a second by what became of them. Dropped ones are lost to a slow disk.",
            )
            .asks(rate_by(metrics, "result", "tokenweir_capture_records_total", ""), "{{result}}"),
        ],
    }
}
