//! Encodes a claim as a call of the script, and decodes the answer.

use std::sync::Arc;
use tokenweir_peer_exchange::messages::ExchangeKey;
use tokenweir_peer_exchange::messages::bus::ScriptCall;
use tokenweir_request::access::{QuotaAnswer, QuotaClaim, QuotaPeriod, QuotaUnit, SubjectUsage};

/// The script that answers a claim at the server.
pub(crate) const SCRIPT: &str = include_str!("grant.lua");

#[derive(Debug, Clone)]
pub(crate) struct SubjectClaim {
    pub(crate) subject: Arc<SubjectUsage>,
    pub(crate) unit: QuotaUnit,
    pub(crate) period: QuotaPeriod,
    pub(crate) claim: QuotaClaim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreAnswer {
    pub(crate) quota: QuotaAnswer,
    /// Whether the server grants nothing yet, because it has lost its data or never had any.
    pub(crate) is_settling: bool,
    /// The time since which the server has its data, in seconds since 1970 by the clock of the server.
    pub(crate) has_data_since: u64,
}

impl SubjectClaim {
    pub(crate) fn call(&self, key: &ExchangeKey, gateway: &str) -> ScriptCall {
        let QuotaClaim {
            number,
            used,
            held,
            wanted,
            limit,
            ends_at,
        } = self.claim;
        let number = number.to_string();
        let parts = [
            &*self.subject.name,
            self.unit.as_str(),
            self.period.as_str(),
            &number,
        ];
        let is_gauge = self.unit == QuotaUnit::OpenRequests;
        let numbers = [used, held, wanted, limit, ends_at, u64::from(is_gauge)];
        let mut arguments = vec![gateway.to_owned()];
        arguments.extend(numbers.map(|number| number.to_string()));
        ScriptCall {
            keys: keys(key, &parts),
            arguments,
        }
    }
}

/// A call of [`SCRIPT`] without a claim. It only asks whether the server works.
pub(crate) fn heartbeat(key: &ExchangeKey, gateway: &str, ends_at: u64) -> ScriptCall {
    let arguments = format!("{gateway} 0 0 0 0 {ends_at} 1");
    ScriptCall {
        keys: keys(key, &["heartbeat"]),
        arguments: arguments.split(' ').map(ToOwned::to_owned).collect(),
    }
}

fn keys(key: &ExchangeKey, parts: &[&str]) -> Vec<String> {
    vec![key.store_key(parts), key.store_key(&["has data since"])]
}

impl StoreAnswer {
    /// Reads the answer from the result of a call. `None`: the result has another form.
    pub(crate) fn from_result(result: &[i64]) -> Option<Self> {
        let &[
            share,
            used,
            granted_by_all,
            used_by_all,
            is_settling,
            has_data_since,
        ] = result
        else {
            return None;
        };
        let number = |value: i64| u64::try_from(value).ok();
        Some(Self {
            quota: QuotaAnswer {
                share: number(share)?,
                used: number(used)?,
                granted_by_all: number(granted_by_all)?,
                used_by_all: number(used_by_all)?,
            },
            is_settling: is_settling != 0,
            has_data_since: number(has_data_since)?,
        })
    }
}
