//! Metrics of tenants: requests and tokens.

use crate::metric::prelude::*;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::access::TokenCharge;

/// The label with a tenant of the keys file. The number of tenants with a label value of their own is
/// limited. All other tenants have the label value `_other`.
const TENANT: MetricLabel = variable(
    "tenant",
    |known| known.tenants.clone(),
    "a tenant of the keys file, or `_other`",
)
.of_request(|record| Some(record.caller.as_ref()?.tenant_label()));

pub(super) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_tenant_requests_total",
        "Requests with a valid API key, by tenant and outcome.",
        &[TENANT, OUTCOME],
        RecordValue(|_| Some(1.0)),
    ),
    row(
        "tokenweir_tenant_tokens_total",
        "Tokens of requests with a valid API key, as they count towards limits.",
        &[TENANT, TOKEN_TYPE],
        Record(|record, emit| {
            if let Some(principal) = &record.caller {
                let TokenCharge { input, output } = TokenCharge::from_record(record);
                let Usage {
                    cached, reasoning, ..
                } = record.engine_token_counts();
                let counts = [input, output, cached.unwrap_or(0), reasoning.unwrap_or(0)];
                for (kind, count) in TOKEN_TYPES.iter().zip(counts) {
                    emit(&[principal.tenant_label(), kind], count as f64);
                }
            }
        }),
    ),
];
