//! The doors of the gateway: connections of clients, the memory of what they send, and certificates.

use super::super::metric::{CERTIFICATE_RESULTS, Kind, Label, REFUSED_CONNECTIONS, Read, Row};
use tokenweir_net::tls::Side;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_connections",
        help: "Connections of clients that are open now.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.connections.open as f64)),
    },
    Row {
        name: "tokenweir_connections_limit",
        help: "Connections of clients that may be open. NaN: as many as come.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| {
            emit(&[], vitals.connections.most.map_or(f64::NAN, |most| most as f64));
        }),
    },
    Row {
        name: "tokenweir_connections_refused_total",
        help: "Connections that were closed before a request, by the reason.",
        kind: Kind::Counter,
        labels: &[Label::RefusedConnection],
        read: Read::Vitals(|vitals, emit| {
            let counts = &vitals.connections;
            let counts = [counts.full, counts.client_full, counts.handshakes];
            for (reason, count) in REFUSED_CONNECTIONS.iter().zip(counts) {
                emit(&[reason], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_accept_errors_total",
        help: "Times that the system gave no connection although there was one, such as for want of open files.",
        kind: Kind::Counter,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.connections.accept_errors as f64)),
    },
    Row {
        name: "tokenweir_request_body_bytes",
        help: "Memory of the request bodies that the gateway holds now, with their edited copies.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.request_bodies.bytes as f64)),
    },
    Row {
        name: "tokenweir_request_body_limit_bytes",
        help: "Memory that request bodies may take together (limits.body_memory).",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.request_bodies.limit as f64)),
    },
    Row {
        name: "tokenweir_certificate_expiry_timestamp_seconds",
        help: "When the first certificate that the gateway shows to a side ends, since 1970. NaN: it shows none.",
        kind: Kind::Gauge,
        labels: &[Label::Side],
        read: Read::Vitals(|vitals, emit| {
            for (side, expires) in Side::ALL.iter().zip(vitals.tls.expire) {
                emit(&[side.as_str()], expires.unwrap_or(f64::NAN));
            }
        }),
    },
    Row {
        name: "tokenweir_certificate_reloads_total",
        help: "Times that files of certificates, keys or authorities had changed, by whether the new ones can be used.",
        kind: Kind::Counter,
        labels: &[Label::CertificateResult],
        read: Read::Vitals(|vitals, emit| {
            let counts = [vitals.tls.reloaded, vitals.tls.failed];
            for (result, count) in CERTIFICATE_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
];
