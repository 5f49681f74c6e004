//! Counts of requests by client, program of the client, model, tenant, path, kind and size, in bounded memory.

use super::group::{Group, GroupKey};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_api::{ClientSummary, GroupSummary, HarmKind, largest_clients};
use tokenweir_request::observe::StreamInfo;
use tokenweir_request::record::{ClientIdentity, RequestRecord};

/// The counts of requests. At most [`MAX_CLIENTS`] clients and [`MAX_PROGRAMS`] programs have counts. The values of all
/// other keys are label values, sizes or names of the gateway, so their number is bounded.
#[derive(Debug, Default)]
pub(super) struct TrafficCounts {
    pub(super) all: Group,
    pub(super) clients: HashMap<ClientKey, Group>,
    groups: BTreeMap<GroupKey, Group>,
    programs: usize,
}

/// The requests by model and by tenant.
#[derive(Debug, Default)]
pub struct RequestGroups {
    /// One entry per model, sorted by name.
    pub models: Vec<GroupSummary>,
    /// One entry per tenant, sorted by name.
    pub tenants: Vec<GroupSummary>,
}

/// A client: the tenant and the name of its key, or its address if it has no key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ClientKey {
    Key { tenant: Arc<str>, key: Arc<str> },
    Address(IpAddr),
}

/// Maximum number of clients with counts. A further client replaces the client with the lowest [`Group::work`],
/// unless its own work is lower still.
pub(super) const MAX_CLIENTS: usize = 256;
/// Maximum number of programs of clients with counts.
const MAX_PROGRAMS: usize = 64;
/// Minimum number of harmed requests for which a common property is reported.
const MIN_HARMED: u64 = 5;
/// Maximum logarithm of the probability that the requests share the property by chance: 0.1 %.
const MAX_LOG_PROBABILITY: f64 = -7.0;

impl TrafficCounts {
    pub(super) fn record(&mut self, record: &RequestRecord) {
        let counts = Group::of_record(record);
        self.all += counts;
        let client = ClientKey::of(record.caller.as_ref(), record.client);
        self.add_client(client, &counts);
        GroupKey::visit(record, |key| self.add_group(key, &counts));
    }

    pub(super) fn record_stream(&mut self, stream: &StreamInfo) {
        let counts = Group::of_stream(stream);
        let client = ClientKey::of(stream.caller.as_ref(), stream.client);
        self.add_client(client, &counts);
        // The prompt tokens of a model and a tenant count ended requests only.
        let mut open = counts;
        open.prompt_tokens = 0;
        self.add_group(GroupKey::model(&stream.model), &open);
        if let Some(caller) = &stream.caller {
            self.add_group(GroupKey::tenant(caller), &open);
        }
    }

    /// Adds the counts by client and by property.
    pub(super) fn merge_groups(&mut self, other: &Self) {
        for (key, counts) in &other.clients {
            self.add_client(key.clone(), counts);
        }
        for (key, counts) in &other.groups {
            self.add_group(key.clone(), counts);
        }
    }

    /// The clients with the largest shares of the work, with their tenants and the names of their keys, or with their
    /// addresses.
    pub(super) fn ranked_clients(&self) -> Vec<ClientSummary> {
        let summaries = self.clients.iter().map(|(key, counts)| {
            let summary = counts.client_summary();
            match key {
                ClientKey::Key { tenant, key } => ClientSummary {
                    tenant: Some(tenant.to_string()),
                    key: Some(key.to_string()),
                    ..summary
                },
                ClientKey::Address(address) => ClientSummary {
                    address: Some(address.to_string()),
                    ..summary
                },
            }
        });
        largest_clients(summaries.collect())
    }

    /// The counts of each model and each tenant, by name.
    pub(super) fn summaries(&self) -> RequestGroups {
        let mut groups = RequestGroups::default();
        for (key, counts) in &self.groups {
            match key {
                GroupKey::Model(name) => groups.models.push(counts.group_summary(name)),
                GroupKey::Tenant(name) => groups.tenants.push(counts.group_summary(name)),
                _ => {}
            }
        }
        groups
    }

    /// For each kind of harm, the property that at least 80 % of the harmed requests have, and less than half
    /// of the other requests. Kinds without such a property are omitted.
    pub(super) fn common_properties(&self) -> BTreeMap<String, String> {
        let words = |kind: HarmKind| Some((kind.as_str().to_owned(), self.common_property(kind)?));
        HarmKind::ALL.into_iter().filter_map(words).collect()
    }

    fn common_property(&self, kind: HarmKind) -> Option<String> {
        let harmed = self.all.harmed(kind);
        if harmed < MIN_HARMED {
            return None;
        }
        let is_common = |counts: &Group| {
            let part = counts.harmed(kind);
            let share = counts.requests as f64 / self.all.requests as f64;
            let is_by_chance = part as f64 * share.ln() > MAX_LOG_PROBABILITY;
            let others = self.all.requests.saturating_sub(harmed);
            let others_with = counts.requests.saturating_sub(part);
            let is_rare = if others >= MIN_HARMED {
                2 * others_with < others
            } else {
                share < 0.5
            };
            5 * part >= 4 * harmed && is_rare && !is_by_chance
        };
        let clients = self
            .clients
            .iter()
            .map(|(key, counts)| (key.words(), counts));
        let groups = self
            .groups
            .iter()
            .filter(|(key, _)| key.is_common())
            .map(|(key, counts)| (key.words(), counts));
        // Of several such properties, the rarest is the most informative. The client comes first.
        let rarest = clients
            .chain(groups)
            .filter(|(_, counts)| is_common(counts))
            .min_by_key(|(_, counts)| counts.requests);
        let words = |part, words: &str| {
            if part == harmed {
                format!("all {harmed} {words}")
            } else {
                format!("{part} of {harmed} {words}")
            }
        };
        let rarest = rarest.map(|(name, counts)| words(counts.harmed(kind), &name));
        let size = self.common_size(kind, harmed);
        let size = size.map(|(key, part)| words(part, &key.words()));
        let both: Vec<String> = rarest.into_iter().chain(size).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }

    /// The size above which requests have this harm and below which they do not, and the number of requests
    /// above it. `None`: the harm does not depend on the size.
    fn common_size(&self, kind: HarmKind, harmed: u64) -> Option<(&GroupKey, u64)> {
        let mut best = None;
        let mut above = Group::default();
        let mut part = 0;
        for (key, counts) in self.groups.iter().rev() {
            if !matches!(key, GroupKey::Body(_)) {
                continue;
            }
            above += *counts;
            let is_more = above.harmed(kind) > part;
            part = above.harmed(kind);
            let is_most = 5 * part >= 4 * harmed;
            let is_alone = 10 * (above.requests - part) <= above.requests;
            let below = self.all.requests.saturating_sub(above.requests);
            let has_others = below.saturating_sub(harmed - part) >= MIN_HARMED;
            if is_more && is_most && is_alone && has_others {
                best = Some((key, part));
            }
        }
        best
    }

    fn add_group(&mut self, key: GroupKey, counts: &Group) {
        if matches!(key, GroupKey::Program(_)) && !self.groups.contains_key(&key) {
            if self.programs >= MAX_PROGRAMS {
                return;
            }
            self.programs += 1;
        }
        *self.groups.entry(key).or_default() += *counts;
    }

    fn add_client(&mut self, key: ClientKey, counts: &Group) {
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&key) {
            let least = self.clients.iter().min_by_key(|(_, counts)| counts.work());
            let Some((least, _)) = least.filter(|(_, least)| least.work() <= counts.work()) else {
                return;
            };
            let least = least.clone();
            self.clients.remove(&least);
        }
        *self.clients.entry(key).or_default() += *counts;
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

    fn words(&self) -> String {
        match self {
            Self::Key { tenant, key } => format!("of tenant {tenant}, key {key}"),
            Self::Address(address) => format!("of client {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokenweir_request::record::fixtures::streamed;
    use tokenweir_request::record::{Answer, ModelLabel, Outcome, ShortName};

    fn of_tenant(tenant: &str) -> RequestRecord {
        let mut record = streamed();
        record.answer = Some(Answer::Good);
        record.caller = Some(Arc::new(ClientIdentity {
            tenant: tenant.into(),
            key: "batch".into(),
            is_tenant_label: true,
        }));
        record
    }

    #[test]
    fn a_limit_of_the_size_is_found() {
        let mut counts = TrafficCounts::default();
        let sizes = [1_700, 2_100, 3_000, 8_300, 9_000, 14_000, 40_000];
        for size in sizes.into_iter().cycle().take(70) {
            let is_refused = size > 8_192;
            counts.record(&RequestRecord {
                bytes_in: size,
                program: ShortName::first_word(if size > 8_500 { b"rag/2" } else { b"app/1" }),
                answer: Some(if is_refused {
                    Answer::Rejected
                } else {
                    Answer::Good
                }),
                ..streamed()
            });
        }
        let common = counts.common_properties();
        assert_eq!(common["rejected"], "all 40 with bodies of 8 KiB or more");
    }

    #[test]
    fn an_unread_body_has_no_kind() {
        let common = |is_read: bool| {
            let mut counts = TrafficCounts::default();
            for number in 0..90 {
                let mut record = streamed();
                record.answer = Some(Answer::Good);
                if number % 3 > 0 {
                    record.answer = Some(Answer::Refused);
                    record.options.stream = false;
                    record.attempts.clear();
                    if !is_read {
                        record.model = ModelLabel::Unknown;
                    }
                }
                counts.record(&record);
            }
            counts.common_properties().remove("refused")
        };
        assert_eq!(common(true).as_deref(), Some("all 60 without a stream"));
        assert_eq!(common(false), None);
    }

    #[test]
    fn the_program_of_harmed_clients_is_named() {
        let mut counts = TrafficCounts::default();
        for number in 0..90 {
            let is_coder = number % 3 > 0;
            counts.record(&RequestRecord {
                program: ShortName::first_word(if is_coder { b"coder/4" } else { b"web/1" }),
                answer: Some(if is_coder {
                    Answer::Rejected
                } else {
                    Answer::Good
                }),
                ..streamed()
            });
        }
        let common = counts.common_properties();
        assert_eq!(common["rejected"], "all 60 of client program coder/4");
    }

    #[test]
    fn programs_stay_in_bounded_memory() {
        let mut counts = TrafficCounts::default();
        for number in 0..1_000 {
            let name = format!("program-{number}");
            counts.record(&RequestRecord {
                program: ShortName::first_word(name.as_bytes()),
                ..streamed()
            });
        }
        assert!(counts.groups.len() < MAX_PROGRAMS + 8);
    }

    #[test]
    fn the_busiest_client_stays_in_bounded_memory() {
        let mut counts = TrafficCounts::default();
        let mut record = streamed();
        record.caller = None;
        for number in 0..10_000_u32 {
            record.client = IpAddr::V4(Ipv4Addr::from(number));
            counts.record(&record);
            if number % 100 == 0 {
                record.client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
                (0..5).for_each(|_| counts.record(&record));
            }
        }
        assert_eq!(counts.clients.len(), MAX_CLIENTS);
        let clients = counts.ranked_clients();
        let most = clients.iter().max_by_key(|client| client.requests).unwrap();
        assert_eq!(
            (most.address.as_deref(), most.requests),
            (Some("10.0.0.7"), 500)
        );
    }

    #[test]
    fn one_key_is_one_client() {
        let mut counts = TrafficCounts::default();
        let mut record = of_tenant("search");
        for last in 1..4 {
            record.client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
            counts.record(&record);
        }
        let clients = counts.ranked_clients();
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

    #[test]
    fn models_and_tenants_have_counts_and_a_ttft() {
        let mut counts = TrafficCounts::default();
        let mut record = of_tenant("search");
        counts.record(&record);
        let mut both = TrafficCounts::default();
        record.outcome = Outcome::Truncated;
        both.record(&record);
        both.merge_groups(&counts);
        let RequestGroups { models, tenants } = both.summaries();
        assert_eq!(
            (&*tenants[0].name, tenants[0].requests, tenants[0].failed),
            ("search", 2, 1)
        );
        assert_eq!((tenants[0].prompt_tokens, tenants.len()), (24, 1));
        let ttft = record.ttft().unwrap().as_secs_f64();
        assert!((models[0].ttft_seconds.unwrap() - ttft).abs() < 1e-9);
    }

    #[test]
    fn most_harmed_requests_name_their_client() {
        let play = |harmed: &[(&str, u32)]| {
            let mut counts = TrafficCounts::default();
            (0..40).for_each(|_| counts.record(&of_tenant("web")));
            (0..60).for_each(|_| counts.record(&of_tenant("chat")));
            for (tenant, requests) in harmed {
                let mut record = of_tenant(tenant);
                record.answer = Some(Answer::Failed);
                (0..*requests).for_each(|_| counts.record(&record));
            }
            counts.common_properties().remove("failed")
        };
        let all = Some("all 12 of tenant web, key batch".to_owned());
        assert_eq!(play(&[("web", 12)]), all);
        let most = Some("10 of 12 of tenant web, key batch".to_owned());
        assert_eq!(play(&[("web", 10), ("chat", 2)]), most);
        assert_eq!(play(&[("web", 6), ("chat", 6)]), None);
        assert_eq!(play(&[("web", 4)]), None, "too few");
        assert_eq!(play(&[("chat", 30)]), None, "most requests are of chat");
    }

    #[test]
    fn the_rarest_property_is_named() {
        let mut counts = TrafficCounts::default();
        (0..90).for_each(|_| counts.record(&of_tenant("web")));
        let mut record = of_tenant("web");
        record.answer = Some(Answer::Late);
        record.options.has_media = true;
        (0..10).for_each(|_| counts.record(&record));
        let common = counts.common_properties();
        assert_eq!(common["late"], "all 10 with images or other media");
    }
}
