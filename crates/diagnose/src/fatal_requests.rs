//! Finds requests that crash engines: the backend breaks the connection for nearly all requests of one client
//! or of one kind, but not for other requests.

use super::recent::Recent;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::openai::EngineError;
use tokenweir_request::record::{ModelLabel, RequestRecord};

/// A property that requests which crash an engine can have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Property {
    Client {
        tenant: Arc<str>,
        key: Arc<str>,
    },
    Address(IpAddr),
    Media,
    StructuredOutput,
    Tools,
    Model(Arc<str>),
    /// The hash of the first block of the prompt.
    Beginning(u64),
    /// The binary logarithm of the length of the prompt in bytes.
    Length(u32),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Ends {
    requests: u64,
    /// Number of these requests whose backend broke the connection.
    broken: u64,
    example: Option<RequestId>,
}

/// The ended requests of an interval, by their properties.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestEnds {
    all: Ends,
    groups: HashMap<Property, Ends>,
}

/// The ends of requests in the last minutes.
#[derive(Debug, Default)]
pub(crate) struct FatalRequests(Recent<RequestEnds>);

/// Length of the window whose requests are counted.
const WINDOW: Duration = Duration::from_mins(3);
/// Maximum number of properties in an interval and in the window.
const MAX_GROUPS: usize = 512;
/// Minimum number of requests with the property whose backend crashed, and then their minimum share of all
/// requests with the property.
const MIN_BROKEN: u64 = 3;
const MIN_SHARE: f64 = 0.75;
/// Maximum share of the other requests since the first crash whose backend crashed. They ran at the same time in the same
/// engines.
const MAX_SHARE_OF_OTHERS: f64 = 0.33;
/// Maximum probability of so many crashes if requests with the property were like all others.
const MAX_PROBABILITY: f64 = 1e-3;
const MIN_SHARE_OF_OTHERS: f64 = 0.01;
/// The kinds of broken responses that a crash of the backend causes.
const BROKEN: [&str; 4] = [
    "connection_reset",
    "truncated_cut",
    "engine_dead",
    "backend_down",
];

impl RequestEnds {
    pub(crate) fn add(&mut self, record: &RequestRecord) {
        if record.attempts.is_empty() {
            return;
        }
        let is_broken = (0..record.attempts.len()).any(|index| {
            let kind = record.backend_failure(index);
            kind.is_some_and(|kind| BROKEN.contains(&kind))
                || record.engine_error(index) == Some(EngineError::Dead)
        });
        self.all.add(record, is_broken);
        for property in properties(record) {
            if let Some(group) = self.group(property) {
                group.add(record, is_broken);
            }
        }
    }

    /// The counts of the requests with this property. `None`: there are already [`MAX_GROUPS`] properties.
    fn group(&mut self, property: Property) -> Option<&mut Ends> {
        let has_room = self.groups.len() < MAX_GROUPS || self.groups.contains_key(&property);
        has_room.then(|| self.groups.entry(property).or_default())
    }

    /// The requests without this property.
    fn others(&self, property: &Property) -> Ends {
        let with = self.groups.get(property).cloned().unwrap_or_default();
        Ends {
            requests: self.all.requests - with.requests,
            broken: self.all.broken - with.broken,
            example: None,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        for (property, ends) in &other.groups {
            if let Some(group) = self.group(property.clone()) {
                group.merge(ends);
            }
        }
    }
}

impl Ends {
    fn add(&mut self, record: &RequestRecord, is_broken: bool) {
        self.requests += 1;
        if is_broken {
            self.broken += 1;
            self.example = Some(record.request_id.clone());
        }
    }

    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.broken += other.broken;
        self.example = other.example.clone().or(self.example.take());
    }

    fn share(&self) -> f64 {
        self.broken as f64 / self.requests.max(1) as f64
    }
}

impl FatalRequests {
    /// Takes the requests that ended since the last call. Returns a text about the requests that crash engines.
    pub(crate) fn observe(&mut self, ends: &RequestEnds, now: Instant) -> Option<String> {
        self.0.forget(WINDOW, now);
        if ends.all.requests > 0 {
            self.0.add(ends.clone(), now);
        }
        let mut sums = RequestEnds::default();
        // In an outage, requests of any kind break. Those that ended before it do not show that theirs would not.
        let mut since_break = RequestEnds::default();
        for ends in self.0.iter() {
            sums.merge(ends);
            if sums.all.broken > 0 {
                since_break.merge(ends);
            }
        }
        let is_fatal = |property: &Property, group: &Ends| {
            let others = since_break.others(property);
            let share = others.share();
            let chance = share.max(MIN_SHARE_OF_OTHERS).powf(group.broken as f64);
            group.broken >= MIN_BROKEN
                && group.share() >= MIN_SHARE
                && others.requests > 0
                && share <= MAX_SHARE_OF_OTHERS
                && chance <= MAX_PROBABILITY
        };
        let groups = sums.groups.iter();
        let fatal = groups.filter(|(property, group)| is_fatal(property, group));
        let (property, group) = fatal.max_by_key(|(_, group)| group.broken)?;
        let words = property.words(group);
        Some(format!(
            "{} of {} requests {words} ended with the end of their backend: such a request ends \
             the engine that runs it",
            group.broken, group.requests
        ))
    }
}

impl Property {
    fn words(&self, group: &Ends) -> String {
        match self {
            Self::Client { tenant, key } => format!("of tenant {tenant}, key {key}"),
            Self::Address(address) => format!("of client {address}"),
            Self::Media => "with images or other media".to_owned(),
            Self::StructuredOutput => "with structured output".to_owned(),
            Self::Tools => "with tools".to_owned(),
            Self::Model(model) => format!("of model {model}"),
            Self::Beginning(_) => {
                let example = group.example.as_ref().map_or("–", RequestId::as_str);
                format!("whose prompts begin like that of request {example}")
            }
            Self::Length(log) => {
                format!("with prompts of {} to {} bytes", 1_u64 << log, 2_u64 << log)
            }
        }
    }
}

fn properties(record: &RequestRecord) -> Vec<Property> {
    let options = &record.options;
    let prompt = record.fingerprint.as_ref();
    let beginning = prompt.and_then(|prompt| prompt.blocks.first());
    let client = match &record.caller {
        Some(caller) => Property::Client {
            tenant: caller.tenant.clone(),
            key: caller.key.clone(),
        },
        None => Property::Address(record.client),
    };
    let length = prompt.and_then(|prompt| prompt.bytes.checked_ilog2());
    let mut found = vec![client];
    if options.has_media {
        found.push(Property::Media);
    }
    if options.parameters.output == Some("json") {
        found.push(Property::StructuredOutput);
    }
    if options.has_tools {
        found.push(Property::Tools);
    }
    found.extend(beginning.map(|hash| Property::Beginning(*hash)));
    found.extend(length.map(Property::Length));
    if let ModelLabel::Known(name) = &record.model {
        found.push(Property::Model(name.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;
    use tokenweir_request::record::fixtures::streamed;

    fn ends(healthy: usize, fatal: usize) -> RequestEnds {
        let mut ends = RequestEnds::default();
        (0..healthy).for_each(|_| ends.add(&streamed()));
        let mut record = streamed();
        record.options.has_media = true;
        record.attempts[0].failure = Some("connection_reset");
        (0..fatal).for_each(|_| ends.add(&record));
        ends
    }

    #[test]
    fn only_requests_unlike_the_others_are_named() {
        let mut requests = FatalRequests::default();
        let start = clock::epoch();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(requests.observe(&ends(20, 1), at(0)), None);
        assert_eq!(requests.observe(&ends(20, 1), at(5)), None);
        let words = requests.observe(&ends(20, 1), at(10)).unwrap();
        let expected =
            "3 of 3 requests with images or other media ended with the end of their backend";
        assert!(words.starts_with(expected), "{words}");
        assert_eq!(requests.observe(&ends(20, 0), at(190)), None);
        let all_end = FatalRequests::default().observe(&ends(0, 9), at(0));
        assert_eq!(all_end, None, "there are no others");
    }

    #[test]
    fn requests_before_an_outage_are_no_others() {
        let mut requests = FatalRequests::default();
        let start = clock::epoch();
        assert_eq!(requests.observe(&ends(20, 0), start), None);
        let later = start + Duration::from_mins(1);
        assert_eq!(requests.observe(&ends(0, 9), later), None);
    }
}
