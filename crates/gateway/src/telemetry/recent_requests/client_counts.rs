//! Counts of the requests of each client, in bounded memory.

use hashbrown::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_api::ClientSummary;
use tokenweir_request::observe::StreamInfo;
use tokenweir_request::record::{ClientIdentity, Outcome, RequestRecord};

/// The counts of requests by client. At most [`MAX_CLIENTS`] clients have counts.
#[derive(Debug, Default)]
pub(super) struct ClientCounts(HashMap<ClientKey, ClientSummary>);

/// A client: the tenant and the name of its key, or its address if it has no key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ClientKey {
    Key { tenant: Arc<str>, key: Arc<str> },
    Address(IpAddr),
}

/// Maximum number of clients with counts. If a further client sends a request, it replaces the
/// client with the least [`work`], unless it has caused even less.
const MAX_CLIENTS: usize = 256;

impl ClientCounts {
    /// Counts an ended request. `prompt_tokens`: its prompt tokens, or 0 if no backend got it.
    pub(super) fn record(&mut self, record: &RequestRecord, prompt_tokens: u64) {
        let counts = ClientSummary {
            requests: 1,
            prompt_tokens,
            output_tokens: record.output_tokens().unwrap_or_default(),
            refused: u64::from(is_refused(record)),
            rejected: u64::from(
                record.outcome == Outcome::ClientError && record.status != Some(429),
            ),
            ..ClientSummary::default()
        };
        self.add(
            ClientKey::of(record.caller.as_ref(), record.client),
            &counts,
        );
    }

    /// Counts an open stream for its client.
    pub(super) fn record_stream(&mut self, stream: &StreamInfo) {
        let counts = ClientSummary {
            open_streams: 1,
            prompt_tokens: stream.prompt_tokens,
            ..ClientSummary::default()
        };
        self.add(
            ClientKey::of(stream.caller.as_ref(), stream.client),
            &counts,
        );
    }

    /// Adds the counts of another time window to these counts.
    pub(super) fn merge(&mut self, other: &Self) {
        other
            .0
            .iter()
            .for_each(|(key, counts)| self.add(key.clone(), counts));
    }

    /// Returns the counts of each client, with its tenant and the name of its key, or with its address.
    pub(super) fn summaries(self) -> impl Iterator<Item = ClientSummary> {
        self.0.into_iter().map(|(key, counts)| match key {
            ClientKey::Key { tenant, key } => ClientSummary {
                tenant: Some(tenant.to_string()),
                key: Some(key.to_string()),
                ..counts
            },
            ClientKey::Address(address) => ClientSummary {
                address: Some(address.to_string()),
                ..counts
            },
        })
    }

    fn add(&mut self, key: ClientKey, counts: &ClientSummary) {
        if self.0.len() >= MAX_CLIENTS && !self.0.contains_key(&key) {
            let least = self.0.iter().min_by_key(|(_, counts)| work(counts));
            let Some((least, _)) = least.filter(|(_, least)| work(least) <= work(counts)) else {
                return;
            };
            let least = least.clone();
            self.0.remove(&least);
        }
        let sums = self.0.entry(key).or_default();
        sums.requests += counts.requests;
        sums.prompt_tokens += counts.prompt_tokens;
        sums.output_tokens += counts.output_tokens;
        sums.refused += counts.refused;
        sums.rejected += counts.rejected;
        sums.open_streams += counts.open_streams;
    }
}

impl ClientKey {
    fn of(caller: Option<&Arc<ClientIdentity>>, address: IpAddr) -> Self {
        match caller {
            Some(caller) => Self::Key {
                tenant: caller.tenant.clone(),
                key: caller.key.clone(),
            },
            None => Self::Address(address),
        }
    }
}

/// Whether the gateway refused the request, for lack of capacity or because of a limit.
fn is_refused(record: &RequestRecord) -> bool {
    let is_limited = record.status == Some(429) && record.refusal.is_some();
    record.outcome == Outcome::Rejected || is_limited
}

/// The prompt tokens of an ended request. Those of a request that the gateway answered itself are not counted,
/// because no engine computed them.
pub(super) fn prompt_tokens(record: &RequestRecord) -> u64 {
    if record.attempts.is_empty() {
        0
    } else if let Some(input) = record.engine_token_counts().input {
        input
    } else {
        let decision = record.decision.as_ref();
        decision.map_or(0, |decision| {
            decision.selected_candidate().prompt.round() as u64
        })
    }
}

/// Returns the work of a client: the sum of its requests, tokens and open streams. If there are too
/// many clients, those with the most work keep their counts.
fn work(counts: &ClientSummary) -> u64 {
    let ClientSummary {
        requests,
        prompt_tokens,
        output_tokens,
        open_streams,
        ..
    } = counts;
    requests + prompt_tokens + output_tokens + open_streams
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn the_busiest_client_stays_in_bounded_memory() {
        let mut counts = ClientCounts::default();
        let mut record = streamed();
        record.caller = None;
        for number in 0..10_000_u32 {
            record.client = IpAddr::V4(Ipv4Addr::from(number));
            counts.record(&record, prompt_tokens(&record));
            if number % 100 == 0 {
                record.client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
                (0..5).for_each(|_| counts.record(&record, prompt_tokens(&record)));
            }
        }
        assert_eq!(counts.0.len(), MAX_CLIENTS);
        let most = counts
            .summaries()
            .max_by_key(|client| client.requests)
            .unwrap();
        assert_eq!(
            (most.address.as_deref(), most.requests),
            (Some("10.0.0.7"), 500)
        );
    }

    #[test]
    fn one_key_is_one_client() {
        let mut counts = ClientCounts::default();
        let mut record = streamed();
        record.caller = Some(Arc::new(ClientIdentity {
            tenant: "search".into(),
            key: "batch".into(),
            is_tenant_label: false,
        }));
        for last in 1..4 {
            record.client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            counts.record(&record, prompt_tokens(&record));
        }
        let clients: Vec<ClientSummary> = counts.summaries().collect();
        assert_eq!(clients.len(), 1);
        let expected = (Some("search"), Some("batch"), None, 3, 36);
        let ClientSummary {
            tenant,
            key,
            address,
            requests,
            prompt_tokens,
            ..
        } = &clients[0];
        let shown = (tenant.as_deref(), key.as_deref(), address.as_deref());
        assert_eq!(
            (shown.0, shown.1, shown.2, *requests, *prompt_tokens),
            expected
        );
    }
}
