//! Metrics of the client listener: client connections, memory of request bodies, and certificates.

use crate::metric::{MetricDescriptor, MetricLabel, MetricSource};
use tokenweir_net::tls::{CertificateCounts, TlsPeer};

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::value(
        "tokenweir_connections",
        "Open client connections.",
        |status| Some(status.connections.open as f64),
    ),
    MetricDescriptor::value(
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
    MetricDescriptor::counts(
        "tokenweir_connections_refused_total",
        "Client connections closed before a request, by reason.",
        &[MetricLabel::counted("reason", |status| {
            status.connections.refusals().to_vec()
        })],
    ),
    MetricDescriptor::value(
        "tokenweir_accept_errors_total",
        "Calls of accept() that failed, for example because no file descriptor is left.",
        |status| Some(status.connections.accept_errors as f64),
    ),
    MetricDescriptor::value(
        "tokenweir_request_body_memory_bytes",
        "Memory of the request bodies that the gateway holds now.",
        |status| Some(status.request_bodies.bytes as f64),
    ),
    MetricDescriptor::value(
        "tokenweir_request_body_memory_limit_bytes",
        "Limit of the memory of request bodies (limits.body_memory).",
        |status| Some(status.request_bodies.limit as f64),
    ),
    MetricDescriptor::new(
        "tokenweir_certificate_expiry_timestamp_seconds",
        "Unix time at which the certificate that the gateway presents to this side expires. NaN: none.",
        &[MetricLabel::fixed("side", || TlsPeer::NAMES.to_vec())],
        MetricSource::Status(|status, emit| {
            for (side, expires) in TlsPeer::ALL.iter().zip(status.certificates.expire) {
                emit(&[side.as_str()], expires.unwrap_or(f64::NAN));
            }
        }),
    ),
    MetricDescriptor::counts(
        "tokenweir_certificate_reloads_total",
        "Reloads of changed certificate, key and CA files, by result.",
        &[MetricLabel::counted("result", |status| {
            let CertificateCounts {
                reloaded, failed, ..
            } = status.certificates;
            vec![("ok", reloaded), ("failed", failed)]
        })],
    ),
];
