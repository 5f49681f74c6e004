//! Metrics of the client listener: client connections, memory of request bodies, and certificates.

use crate::metric::prelude::*;
use tokenweir_net::tls::{CertificateCounts, TlsPeer};

pub(super) const ROWS: &[MetricDescriptor] = &[
    value(
        "tokenweir_connections",
        "Open client connections.",
        |status| Some(status.connections.open as f64),
    ),
    value(
        "tokenweir_connections_limit",
        "Limit of open client connections (limits.connections). NaN: no limit.",
        |status| {
            Some(
                status
                    .connections
                    .limit
                    .map_or(f64::NAN, |limit| limit as f64),
            )
        },
    ),
    counts(
        "tokenweir_connections_refused_total",
        "Client connections closed before a request, by reason.",
        &[counted("reason", |status| {
            let connections = &status.connections;
            vec![
                ("full", connections.full),
                ("client_full", connections.client_full),
                ("tls", connections.failed_handshakes),
            ]
        })],
    ),
    value(
        "tokenweir_accept_errors_total",
        "Calls of accept() that failed, for example because no file descriptor is left.",
        |status| Some(status.connections.accept_errors as f64),
    ),
    value(
        "tokenweir_request_body_memory_bytes",
        "Memory of the request bodies that the gateway holds now.",
        |status| Some(status.request_bodies.bytes as f64),
    ),
    value(
        "tokenweir_request_body_memory_limit_bytes",
        "Limit of the memory of request bodies (limits.body_memory).",
        |status| Some(status.request_bodies.limit as f64),
    ),
    row(
        "tokenweir_certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate that the gateway presents to this side expires. NaN: none.",
        &[fixed("side", TlsPeer::NAMES)],
        Status(|status, emit| {
            for (side, expires) in TlsPeer::ALL.iter().zip(status.certificates.expire) {
                emit(&[side.as_str()], expires.unwrap_or(f64::NAN));
            }
        }),
    ),
    counts(
        "tokenweir_certificate_reloads_total",
        "Reloads of changed certificate, key and CA files, by result.",
        &[counted("result", |status| {
            let CertificateCounts {
                reloaded, failed, ..
            } = status.certificates;
            vec![("ok", reloaded), ("failed", failed)]
        })],
    ),
];
