//! The rule about clients that do not read their responses, or send their requests slowly.

use super::observation::{FleetObservation, SlowUpload};
use crate::debounce::VerdictDebounce;
use crate::recent::Recent;
use crate::rule::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokenweir_request::significance::is_share_above;

/// Length of the window whose uploads are counted.
const WINDOW: Duration = Duration::from_mins(1);
/// Minimum number of slow uploads, and then their minimum share of the requests.
const MIN_UPLOADS: usize = 3;
const MIN_SHARE: f64 = 0.01;
/// Share of the slow uploads from which their client is named.
const NAMED_SHARE: f64 = 0.6;
/// Maximum number of slow uploads that are kept.
const MAX_KEPT: usize = 2_048;

/// Minimum share of the open streams whose clients do not read. There must also be at least `MIN_UNREAD` of
/// them.
const MIN_UNREAD_SHARE: f64 = 0.2;
const MIN_UNREAD: usize = 2;

pub(super) static SLOW_CLIENTS: DiagnosisRule = DiagnosisRule {
    name: "slow_clients",
    severity: "info, warning if requests wait for their bodies",
    meaning: "Clients do not read their responses, or send their requests, as fast as the gateway takes them.",
    evidence: "Either: at two consecutive evaluations at least two streams, and at least 20 % of the open \
               streams, wait for clients that do not read. Or: within a minute at least three request bodies, and significantly \
               more than 1 % of all, took 1 s or more to arrive, at less than 250 kB per second.",
    remedy: "tokenweir top lists the streams with the phase write_stalled. Check the network of \
             the clients, and whether they read while they process. The TTFT of a request begins with its head, so slow uploads \
             look like slow backends.",
    disproof: "The same clients read the responses of other servers fast, or send request bodies to other \
               servers fast.",
    ..DiagnosisRule::GATEWAY
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct SlowClients {
    /// Whether the last evaluation found enough clients that do not read.
    was_unread: bool,
    uploads: Uploads,
}

/// The slow uploads of the last minute.
#[derive(Debug, Default)]
struct Uploads {
    debounce: VerdictDebounce,
    recent: Recent<SlowUpload>,
    /// The verdict of the last evaluation that found many slow uploads.
    found: Option<Verdict>,
}

impl SlowClients {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        let slow_uploads = self.uploads.judge(fleet, now);
        let open = fleet.gateway.open_streams;
        let unread = fleet.gateway.unread_streams;
        let is_unread = unread >= MIN_UNREAD && unread as f64 >= MIN_UNREAD_SHARE * open as f64;
        // The client must be found in two successive evaluations, because a single one can fall between two of
        // its reads.
        let was_unread = std::mem::replace(&mut self.was_unread, is_unread);
        if slow_uploads.is_some() || !is_unread || !was_unread {
            return slow_uploads;
        }
        let found = SLOW_CLIENTS.verdict(VerdictSeverity::Info);
        Some(found.with([
            streams("write_stalled_streams", unread),
            streams("open_streams", open),
        ]))
    }
}

impl Uploads {
    /// The verdict about slow uploads, if there are many in the window that ends at `now`.
    fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        self.recent.forget(WINDOW, now);
        let room = MAX_KEPT - self.recent.len();
        for upload in fleet.unforwarded.uploads.iter().take(room) {
            self.recent.add(upload.clone(), now);
        }
        // The counts of the fleet cover only half a minute.
        let requests = 2 * fleet.counts.requests;
        let count = self.recent.len();
        let is_found = count >= MIN_UPLOADS
            && is_share_above(count as u64, requests.max(count as u64), MIN_SHARE);
        self.debounce.update(is_found, now);
        if is_found {
            self.found = Some(self.finding());
        }
        self.debounce.since()?;
        self.found.clone()
    }

    fn finding(&self) -> Verdict {
        let mut by_client: HashMap<&str, usize> = HashMap::new();
        let mut seconds = 0.0;
        let mut bytes = 0;
        for upload in self.recent.iter() {
            *by_client.entry(&upload.client).or_default() += 1;
            seconds += upload.seconds;
            bytes += upload.bytes;
        }
        let count = self.recent.len();
        let mean_seconds = seconds / count as f64;
        let kilobytes = bytes as f64 / count as f64 / 1e3;
        let most = by_client.iter().max_by_key(|(_, uploads)| **uploads);
        let most = most.filter(|(_, uploads)| **uploads as f64 >= NAMED_SHARE * count as f64);
        let who = most.map_or_else(|| "clients".to_owned(), |(client, _)| (*client).to_owned());
        let cause = format!(
            "the bodies of {count} requests took {mean_seconds:.1} s to arrive ({kilobytes:.0} \
             kB on average), most of {who}: its uplink or its program, and not the backends"
        );
        let window = WINDOW.as_secs_f64();
        let found = SLOW_CLIENTS.verdict(VerdictSeverity::Warning);
        found.because(cause).with([
            Evidence::new("slow_uploads", count as f64, "requests", window),
            Evidence::new("upload_time_mean", mean_seconds, "s", window),
        ])
    }
}

/// The evidence that `count` streams have the property `measure` at the time of the evaluation.
fn streams(measure: &'static str, count: usize) -> Evidence {
    Evidence::new(measure, count as f64, "requests", 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::RecentCounts;
    use tokenweir_protocol::clock;

    #[test]
    fn the_client_of_slow_uploads_is_named() {
        let mut rule = Uploads::default();
        let mut now = clock::epoch();
        let mut judge = |uploads: usize| {
            now += Duration::from_secs(5);
            let upload = SlowUpload {
                client: "tenant acme, key site".to_owned(),
                seconds: 7.0,
                bytes: 40_000,
            };
            let mut fleet = FleetObservation {
                counts: RecentCounts {
                    requests: 100,
                    ..RecentCounts::default()
                },
                ..FleetObservation::default()
            };
            fleet.unforwarded.uploads = vec![upload; uploads];
            rule.judge(&fleet, now).and_then(|found| found.cause)
        };
        assert_eq!(judge(2), None);
        assert_eq!(judge(8), None, "a single look is no evidence");
        let cause = judge(0).unwrap();
        let expected = "the bodies of 10 requests took 7.0 s to arrive (40 kB on average), most of tenant acme, key site";
        assert!(cause.starts_with(expected), "{cause}");
    }
}
