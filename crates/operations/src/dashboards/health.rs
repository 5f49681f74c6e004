//! System health: what comes, how it ends, and what is made of it.

use super::golden::FAILED;
use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{gauge_by, of, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "System health",
        panels: vec![
            Panel::stacked("Requests by outcome", "reqps", "Good is a field of `ok`.")
                .asks(rate_by(metrics, "outcome", "tokenweir_requests_total", ""), "{{outcome}}"),
            Panel::lines(
                "Failed by a replica",
                "reqps",
                "By what went wrong. Good is an empty panel.",
            )
            .asks(rate_by(metrics, "outcome", "tokenweir_requests_total", FAILED), "{{outcome}}"),
            Panel::lines(
                "Clients that left",
                "reqps",
                "By where the request was. In `queued`, `headers` or `prefill` they lost patience; in \
                 `decode` they pressed stop, or their own timeout struck.",
            )
            .asks(rate_by(metrics, "phase", "tokenweir_client_disconnects_total", ""), "{{phase}}"),
            Panel::stacked(
                "Tokens",
                "short",
                "Tokens a second. Cached tokens are part of the input, reasoning of the output.",
            )
            .asks(rate_by(metrics, "type", "tokenweir_tokens_total", "type=~\"input|output\""), "{{type}}"),
            Panel::stacked(
                "Why answers ended",
                "short",
                "`stop` and `tool_calls` are whole answers. Much `length` means limits that cut.",
            )
            .asks(rate_by(metrics, "reason", "tokenweir_finish_total", ""), "{{reason}}"),
            Panel::lines(
                "Wasted tokens",
                "short",
                "Output tokens a second that nobody received whole.",
            )
            .asks(rate_by(metrics, "reason", "tokenweir_wasted_tokens_total", ""), "{{reason}}"),
            Panel::lines(
                "Replicas",
                "none",
                "1 while the replica may be sent requests.",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_up"), "{{backend}}")
            .bad(Thresholds::Below(1.0, 1.0)),
            Panel::lines(
                "Streams that stand still",
                "short",
                "Streams that are silent for much longer than usual, now. Good is 0.",
            )
            .asks(
                format!("sum by (backend) ({})", of(metrics, "tokenweir_streams_stalled", "")),
                "{{backend}}",
            ),
            Panel::lines(
                "Endings that are not ok",
                "reqps",
                "More exact than outcomes: `truncated_cut` is a replica that died, `upstream_abort` an \
                 engine that gave up.",
            )
            .asks(
                rate_by(metrics, "ending", "tokenweir_endings_total", "ending!~\"ok.*\""),
                "{{ending}}",
            ),
        ],
    }
}
