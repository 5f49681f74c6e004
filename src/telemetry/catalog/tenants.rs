//! Metrics of tenants: requests and tokens.

use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource, TOKEN_TYPES};
use tokenweir_core::access::TokenCharge;
use tokenweir_core::metric_kind::MetricKind;

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor {
        name: "tokenweir_tenant_requests_total",
        help: "Requests with a valid API key, by tenant and outcome.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Tenant, MetricLabel::Outcome],
        read: MetricSource::Record(|record, emit| {
            if let Some(principal) = &record.caller {
                emit(&[principal.tenant_label(), record.outcome.as_str()], 1.0);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_tenant_tokens_total",
        help: "Tokens of requests with a valid API key, as they count towards limits. Estimated where the engine did not count.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::Tenant, MetricLabel::TokenType],
        read: MetricSource::Record(|record, emit| {
            if let Some(principal) = &record.caller {
                let TokenCharge { input, output } = TokenCharge::from_record(record);
                let [.., cached, reasoning] = record.engine_token_counts();
                let counts = [input, output, cached.unwrap_or(0), reasoning.unwrap_or(0)];
                for (kind, count) in TOKEN_TYPES.iter().zip(counts) {
                    emit(&[principal.tenant_label(), kind], count as f64);
                }
            }
        }),
    },
];
