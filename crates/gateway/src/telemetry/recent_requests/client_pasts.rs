//! How often clients with keys usually disconnect during output. A rising share shows a fault between a client
//! and the gateway. Clients without keys are left out, because their addresses often belong to proxies for many
//! clients.

use super::traffic_counts::{ClientKey, MAX_CLIENTS, TrafficCounts};
use hashbrown::HashMap;
use tokenweir_request::significance::is_share_above;

/// For each client, the usual numbers of requests and disconnects.
#[derive(Debug, Default)]
pub(super) struct ClientPasts(HashMap<ClientKey, ClientPast>);

/// The requests of a client before the last minute, with a weight that decays over a quarter of an hour.
#[derive(Debug, Clone, Copy, Default)]
struct ClientPast {
    requests: f64,
    cut_off: f64,
}

/// The factor by which the weight of past requests falls per window of 5 s, for a time constant of 15 minutes.
const KEPT: f64 = 1.0 - 5.0 / 900.0;
/// Minimum number of requests, both in the past and in the last minute, for a comparison.
const MIN_REQUESTS: f64 = 20.0;
/// A share is unusual if it significantly exceeds this multiple of the usual share, plus a margin.
const FACTOR: f64 = 2.0;
const MARGIN: f64 = 0.05;
/// Number of past requests below which a client is forgotten.
const MIN_KEPT: f64 = 0.5;

impl ClientPasts {
    /// Adds the requests of a window of 5 s that has left the last minute.
    pub(super) fn add(&mut self, window: &TrafficCounts) {
        self.0.retain(|_, past| {
            past.requests *= KEPT;
            past.cut_off *= KEPT;
            past.requests >= MIN_KEPT
        });
        for (key, counts) in &window.clients {
            let is_known = self.0.contains_key(key);
            let has_place = self.0.len() < MAX_CLIENTS;
            if matches!(key, ClientKey::Key { .. }) && (is_known || has_place) {
                let past = self.0.entry(key.clone()).or_default();
                past.requests += counts.requests as f64;
                past.cut_off += counts.cut_off as f64;
            }
        }
    }

    /// Number of requests of a minute whose client disconnected during output. Only clients that do so far more
    /// often than usual count.
    pub(super) fn unusual_cut_offs(&self, minute: &TrafficCounts) -> u64 {
        let mut sum = 0;
        for (key, counts) in &minute.clients {
            let past = self.0.get(key).copied().unwrap_or_default();
            let has_enough =
                past.requests >= MIN_REQUESTS && counts.requests as f64 >= MIN_REQUESTS;
            let usual = past.cut_off / past.requests.max(1.0);
            let limit = FACTOR * usual + MARGIN;
            if has_enough && is_share_above(counts.cut_off, counts.requests, limit) {
                sum += counts.cut_off;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokenweir_request::record::fixtures::streamed;
    use tokenweir_request::record::{Answer, ClientIdentity, RequestRecord};

    fn minute(tenant: Option<&str>, requests: u32, cut_off: u32) -> TrafficCounts {
        let identity = |tenant: &str| ClientIdentity {
            tenant: tenant.into(),
            key: "k".into(),
            is_tenant_label: true,
        };
        let mut counts = TrafficCounts::default();
        for number in 0..requests {
            let is_cut_off = number < cut_off;
            counts.record(&RequestRecord {
                caller: tenant.map(|tenant| Arc::new(identity(tenant))),
                answer: Some(if is_cut_off {
                    Answer::Cancelled
                } else {
                    Answer::Good
                }),
                ..streamed()
            });
        }
        counts
    }

    #[test]
    fn only_a_client_that_changes_is_unusual() {
        let mut pasts = ClientPasts::default();
        assert_eq!(pasts.unusual_cut_offs(&minute(Some("web"), 100, 40)), 0);
        pasts.add(&minute(Some("web"), 100, 1));
        assert_eq!(pasts.unusual_cut_offs(&minute(Some("web"), 100, 40)), 40);
        assert_eq!(pasts.unusual_cut_offs(&minute(Some("web"), 100, 5)), 0);
        pasts.add(&minute(Some("voice"), 100, 40));
        assert_eq!(pasts.unusual_cut_offs(&minute(Some("voice"), 100, 44)), 0);
    }

    #[test]
    fn an_address_can_be_that_of_many_clients() {
        let mut pasts = ClientPasts::default();
        pasts.add(&minute(None, 100, 0));
        assert_eq!(pasts.unusual_cut_offs(&minute(None, 100, 40)), 0);
    }

    #[test]
    fn many_clients_are_forgotten() {
        let mut pasts = ClientPasts::default();
        for number in 0..1_000 {
            pasts.add(&minute(Some(&number.to_string()), 1, 0));
        }
        assert!(pasts.0.len() <= MAX_CLIENTS);
    }
}
