//! Queue and scheduling: who waits, where, and for how long.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{gauge_by, mean_by, of, quantile, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Queue and scheduling",
        panels: vec![
            Panel::lines(
                "Waiting in engines",
                "short",
                "Requests in each replica's own queue. Good is near 0: who waits there cannot go \
                 elsewhere.",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_waiting"), "{{backend}}")
            .bad(Thresholds::Above(8.0, 16.0)),
            Panel::stacked(
                "Running in engines",
                "short",
                "Requests in each replica's batch. Even is good among equal replicas.",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_running"), "{{backend}}"),
            Panel::stacked(
                "Waiting in the gateway",
                "short",
                "By class. They wait because every replica is full; the first with room takes the next.",
            )
            .asks(format!("sum by (class) ({})", of(metrics, "tokenweir_queue_requests", "")), "{{class}}"),
            Panel::lines(
                "Wait in the gateway",
                "s",
                "Of the requests that had to wait.",
            )
            .asks(quantile(metrics, 0.5, "tokenweir_queue_wait_seconds", ""), "p50")
            .asks(quantile(metrics, 0.95, "tokenweir_queue_wait_seconds", ""), "p95")
            .bad(Thresholds::Above(5.0, 15.0)),
            Panel::lines(
                "Wait in engines, mean",
                "s",
                "Of streams, as the engine tells, or estimated from its own histograms.",
            )
            .asks(
                mean_by(metrics, "backend", "tokenweir_phase_seconds", "phase=\"queue\""),
                "{{backend}}",
            )
            .bad(Thresholds::Above(0.5, 1.0)),
            Panel::stacked(
                "Refused for want of room",
                "reqps",
                "`saturated`: the room was full. `shed`: a higher class or a smaller tenant took the \
                 place. `queue_timeout`: waited too long.",
            )
            .asks(rate_by(metrics, "reason", "tokenweir_shed_total", ""), "{{reason}}"),
        ],
    }
}
