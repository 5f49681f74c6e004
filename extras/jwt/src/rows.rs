//! Status and metrics of token access.

use crate::issuer::IssuerStatus;
use crate::refusal::RefusalCounts;
use serde::Serialize;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};

/// The state of token access. The default is that of a gateway without issuers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct JwtStatus {
    /// The state of each configured issuer.
    pub issuers: Vec<IssuerStatus>,
    /// Number of refused tokens by reason.
    #[serde(skip)]
    pub(crate) refused: Vec<(&'static str, u64)>,
}

impl StatusBlock for JwtStatus {
    const KEY: Option<&'static str> = Some("jwt");
}

/// The metrics of token access.
pub const ROWS: &[MetricDescriptor] = &[
    counts(
        "tokenweir_jwt_refused_total",
        "Refused tokens of clients (jwt), by reason.",
        &[counted("reason", |status| match jwt(status) {
            Some(jwt) => jwt.refused.clone(),
            None => RefusalCounts::default().list(),
        })],
    ),
    value(
        "tokenweir_jwt_keys_age_seconds",
        "Time since the keys of an issuer of tokens were last read successfully, of the issuer with the oldest.",
        |status| {
            let issuers = jwt(status).into_iter().flat_map(|jwt| &jwt.issuers);
            or_nan(
                issuers
                    .filter_map(|issuer| issuer.keys_age_seconds)
                    .reduce(f64::max),
            )
        },
    ),
];

fn jwt(status: &StatusSnapshot) -> Option<&JwtStatus> {
    status.blocks.get()
}
