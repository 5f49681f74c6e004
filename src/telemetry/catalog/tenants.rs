//! Tenants: what each has asked for, and what it has used.

use super::super::metric::{Kind, Label, Read, Row, TOKEN_TYPES};
use tokenweir_core::access::Charge;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_tenant_requests_total",
        help: "Requests with a key that is known, by its tenant and by how they ended.",
        kind: Kind::Counter,
        labels: &[Label::Tenant, Label::Outcome],
        read: Read::Record(|record, emit| {
            if let Some(caller) = &record.caller {
                emit(&[caller.label(), record.outcome.as_str()], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_tenant_tokens_total",
        help: "Tokens of those requests as they count towards limits: estimated where nobody counted.",
        kind: Kind::Counter,
        labels: &[Label::Tenant, Label::TokenType],
        read: Read::Record(|record, emit| {
            if let Some(caller) = &record.caller {
                let Charge { input, output } = Charge::of(record);
                let [.., cached, reasoning] = record.counted_tokens();
                let counts = [input, output, cached.unwrap_or(0), reasoning.unwrap_or(0)];
                for (kind, count) in TOKEN_TYPES.iter().zip(counts) {
                    emit(&[caller.label(), kind], count as f64);
                }
            }
        }),
    },
];
