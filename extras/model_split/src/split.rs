//! The versions of one model: chooses the version for a conversation, and takes out bad versions.

use super::evidence::{Evidence, Window};
use super::verdict::VersionTakenOut;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::routes::{ModelConfig, SplitVersion};
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::rendezvous_score;
use xxhash_rust::xxh3::xxh3_64;

/// A model whose requests are split over versions.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// The name that clients use.
    pub(super) name: Arc<str>,
    /// Whether the guard takes bad versions out.
    pub(super) is_guarded: bool,
    pub(super) versions: Vec<Version>,
    /// Held while a version is compared, so that two versions are not taken out at the same time.
    comparison: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Version {
    /// The name of the model in the route table.
    pub(super) name: Arc<str>,
    pub(super) weight: u32,
    hash: u64,
    window: Mutex<Window>,
    /// Why the version was taken out. Empty: the version gets requests.
    pub(super) removal: OnceLock<VersionTakenOut>,
}

impl Split {
    /// A split whose versions all get requests.
    pub(super) fn new(model: &ModelConfig, is_guarded: bool) -> Self {
        let version = |version: &SplitVersion| Version {
            name: version.model.as_str().into(),
            weight: version.weight,
            hash: xxh3_64(format!("{}\n{}", model.name, version.model).as_bytes()),
            window: Mutex::default(),
            removal: OnceLock::new(),
        };
        Self {
            name: model.name.as_str().into(),
            is_guarded,
            versions: model.split.iter().map(version).collect(),
            comparison: Mutex::default(),
        }
    }

    /// The version of a conversation, by weighted rendezvous hashing. `is_served`: whether a backend may serve a
    /// version. A version without backends gets requests only if no version has one. `None`: all weights are 0.
    pub(super) fn choose(
        &self,
        conversation: u64,
        is_served: impl Fn(&str) -> bool,
    ) -> Option<&Version> {
        let served = self.serving().filter(|version| is_served(&version.name));
        nearest(served, conversation).or_else(|| nearest(self.serving(), conversation))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| *version.name == *name)
    }

    pub(super) fn serving(&self) -> impl Iterator<Item = &Version> {
        let versions = self.versions.iter();
        versions.filter(|version| version.weight > 0 && version.removal.get().is_none())
    }

    /// Counts a finished request of a version. Takes out the version if it is now worse than the others.
    pub(super) fn count(&self, version: &Version, evidence: Evidence, now: Instant) {
        lock(&version.window).add(evidence, now);
        if !self.is_guarded || !evidence.is_bad() {
            return;
        }
        let _comparing = lock(&self.comparison);
        if !self.may_lose(version) {
            return;
        }
        let span = lock(&version.window).span(now);
        let own = version.evidence(span, now);
        let mut others = Evidence::default();
        for other in self.serving().filter(|other| !ptr::eq(*other, version)) {
            others.add(other.evidence(span, now));
        }
        if let Some(fault) = own.fault_against(&others) {
            let removal = VersionTakenOut {
                model: self.name.clone(),
                version: version.name.clone(),
                fault: fault.as_str(),
                share: own.share(fault).ratio(),
                share_of_others: others.share(fault).ratio(),
            };
            Self::take_out(version, removal);
        }
    }

    pub(super) fn taken_out(&self) -> impl Iterator<Item = VersionTakenOut> {
        let removals = self.versions.iter().map(|version| &version.removal);
        removals.filter_map(OnceLock::get).cloned()
    }

    /// Whether at most half of the weights is taken out if this version is taken out too.
    fn may_lose(&self, version: &Version) -> bool {
        let weights = self
            .versions
            .iter()
            .map(|version| u64::from(version.weight));
        let all: u64 = weights.sum();
        let serving: u64 = self
            .serving()
            .map(|version| u64::from(version.weight))
            .sum();
        let lost = all - serving + u64::from(version.weight);
        version.removal.get().is_none() && 2 * lost <= all
    }

    fn take_out(version: &Version, removal: VersionTakenOut) {
        tracing::warn!(
            model = &*removal.model,
            version = &*removal.version,
            fault = removal.fault,
            share = removal.share,
            share_of_others = removal.share_of_others,
            "a version is worse than the others of its model: it gets no more requests until `models` \
             or `slos` changes"
        );
        // The comparison is locked, so no other removal is set.
        let _ = version.removal.set(removal);
    }
}

/// The version with the highest score, so a change moves only conversations of versions that lose a share.
fn nearest<'a>(
    versions: impl Iterator<Item = &'a Version>,
    conversation: u64,
) -> Option<&'a Version> {
    let score = |version: &Version| rendezvous_score(version.hash, conversation, version.weight);
    versions.max_by(|one, other| score(one).total_cmp(&score(other)))
}

impl Version {
    pub(super) fn evidence(&self, span: Duration, now: Instant) -> Evidence {
        lock(&self.window).evidence(span, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use tokenweir_protocol::clock;
    use tokenweir_request::record::Outcome;
    use tokenweir_request::record::fixtures::streamed;
    use tokenweir_routing::mix;

    const REQUESTS: u64 = 100_000;

    fn split(weights: &[u32]) -> Split {
        let version = |(number, weight): (usize, &u32)| SplitVersion {
            model: format!("v{number}"),
            weight: *weight,
        };
        let model = ModelConfig {
            name: "chat".into(),
            split: weights.iter().enumerate().map(version).collect(),
            ..ModelConfig::default()
        };
        Split::new(&model, true)
    }

    fn hash(conversation: u64) -> u64 {
        mix(conversation.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn chosen(split: &Split, conversation: u64) -> &str {
        &split.choose(hash(conversation), |_| true).unwrap().name
    }

    fn shares(split: &Split) -> HashMap<String, f64> {
        let mut shares = HashMap::new();
        for conversation in 0..REQUESTS {
            let name = chosen(split, conversation).to_owned();
            *shares.entry(name).or_default() += 1.0 / REQUESTS as f64;
        }
        shares
    }

    fn moves(from: &Split, to: &Split) -> HashMap<String, u64> {
        let mut moves = HashMap::new();
        for conversation in 0..REQUESTS {
            let before = chosen(from, conversation);
            let after = chosen(to, conversation);
            if before != after {
                *moves.entry(format!("{before} to {after}")).or_default() += 1;
            }
        }
        moves
    }

    #[test]
    fn each_version_gets_its_share() {
        for weights in [&[95, 5][..], &[1, 1], &[9_500, 500], &[60, 30, 10]] {
            let sum: u32 = weights.iter().sum();
            let shares = shares(&split(weights));
            for (number, weight) in weights.iter().enumerate() {
                let expected = f64::from(*weight) / f64::from(sum);
                let share = shares[&format!("v{number}")];
                assert!((share - expected).abs() < 0.005, "{weights:?}: {share}");
            }
        }
        assert_eq!(shares(&split(&[0, 7])).len(), 1);
        assert!(split(&[0, 0]).choose(1, |_| true).is_none());
    }

    #[test]
    fn a_change_moves_only_the_necessary_conversations() {
        assert!(moves(&split(&[95, 5]), &split(&[95, 5])).is_empty());
        assert!(moves(&split(&[95, 5]), &split(&[9_500, 500])).is_empty());
        let raised = moves(&split(&[95, 5]), &split(&[90, 10]));
        let moved = raised["v0 to v1"];
        assert!(
            raised.len() == 1 && moved.abs_diff(5_000) < 500,
            "{raised:?}"
        );
        let added = moves(&split(&[95, 5]), &split(&[95, 5, 11]));
        assert!(
            added.keys().all(|names| names.ends_with("to v2")),
            "{added:?}"
        );
    }

    #[test]
    fn a_version_without_backends_is_skipped() {
        let split = split(&[50, 50]);
        for conversation in 0..100 {
            let served = split.choose(conversation, |name| name == "v1").unwrap();
            assert_eq!(&*served.name, "v1");
            assert!(split.choose(conversation, |_| false).is_some());
        }
    }

    /// Sends 20 requests per second, each of another conversation, for some simulated seconds. Returns the
    /// number of seconds until a version was taken out. `None`: no version was taken out.
    fn run(split: &Split, seconds: u64, outcome: impl Fn(&str, u64) -> Outcome) -> Option<u64> {
        run_at(split, Duration::from_millis(50), seconds * 20, outcome)
    }

    /// Like [`run`], with this time between two requests.
    fn run_at(
        split: &Split,
        pause: Duration,
        requests: u64,
        outcome: impl Fn(&str, u64) -> Outcome,
    ) -> Option<u64> {
        let start = clock::now();
        for conversation in 0..requests {
            let passed = pause * u32::try_from(conversation).unwrap();
            let version = split.choose(hash(conversation), |_| true).unwrap();
            let found = outcome(&version.name, conversation);
            count(split, version, conversation, found, start + passed);
            if split.serving().count() < split.versions.len() {
                return Some(passed.as_secs());
            }
        }
        None
    }

    fn count(split: &Split, version: &Version, conversation: u64, outcome: Outcome, now: Instant) {
        let mut record = streamed();
        record.observed.has_answer = true;
        record.outcome = outcome;
        split.count(version, Evidence::of(&record, hash(conversation), &[]), now);
    }

    fn failing(is_failing: bool) -> Outcome {
        if is_failing {
            Outcome::UpstreamError
        } else {
            Outcome::Ok
        }
    }

    #[test]
    fn a_bad_version_is_out_within_a_minute() {
        let split = split(&[95, 5]);
        let before: Vec<String> = (0..REQUESTS)
            .map(|conversation| chosen(&split, conversation).to_owned())
            .collect();
        let out = run(&split, 60, |version, number| {
            failing(version == "v1" || number % 100 == 0)
        });
        assert!(out.is_some_and(|seconds| seconds < 60), "{out:?}");
        let removal = split.find("v1").unwrap().removal.get().unwrap();
        assert_eq!(removal.fault, "errors");
        assert!(removal.share > 0.9 && removal.share_of_others < 0.05);
        for (conversation, name) in (0..REQUESTS).zip(before) {
            assert_eq!(chosen(&split, conversation), "v0", "{name}");
        }
    }

    #[test]
    fn a_slightly_bad_version_is_out_later() {
        let split = split(&[80, 20]);
        let out = run(&split, 600, |version, number| {
            failing(version == "v1" && number % 4 == 0)
        });
        assert!(out.is_some_and(|seconds| seconds < 60), "{out:?}");
    }

    #[test]
    fn few_requests_an_hour_are_enough() {
        for (pause, expected) in [(2, 60..200), (30, 600..3_600)] {
            let split = split(&[50, 50]);
            let pause = Duration::from_secs(pause);
            let bad = |version: &str, _| failing(version == "v1");
            let out = run_at(&split, pause, 1_000, bad).unwrap();
            assert!(expected.contains(&out), "{pause:?}: {out}");
        }
    }

    /// Two versions with the same failures: a few at any time, and all requests of some minutes.
    #[test]
    fn slow_traffic_takes_no_equal_version_out() {
        for weights in [[95, 5], [50, 50]] {
            for pause in [1, 5, 30, 120] {
                let out = run_at(
                    &split(&weights),
                    Duration::from_secs(pause),
                    20_000,
                    |_, number| {
                        let minute = number * pause / 60;
                        let is_outage = hash(minute).is_multiple_of(40);
                        failing(is_outage || hash(number).is_multiple_of(33))
                    },
                );
                assert_eq!(out, None, "{weights:?} {pause}");
            }
        }
    }

    #[test]
    fn equal_or_uniformly_bad_versions_stay() {
        for every in [1, 2, 10, 100] {
            let out = run(&split(&[95, 5]), 600, |_, number| {
                failing(number % every == 0)
            });
            assert_eq!(out, None, "{every}");
        }
    }

    #[test]
    fn half_of_the_weight_stays_in_use() {
        let bad = |version: &str, _| failing(version == "v0");
        assert_eq!(run(&split(&[95, 5]), 120, bad), None);
        assert!(run(&split(&[50, 50]), 120, bad).is_some());
        let three = split(&[34, 33, 33]);
        let not_first = |version: &str, _| failing(version != "v0");
        assert!(run(&three, 120, not_first).is_some());
        run(&three, 120, not_first);
        assert_eq!(three.serving().count(), 2);
    }

    #[test]
    fn one_conversation_takes_no_version_out() {
        let split = split(&[50, 50]);
        let now = clock::now();
        for conversation in 0..2_000 {
            let version = split.find("v0").unwrap();
            count(&split, version, 1, Outcome::UpstreamError, now);
            let version = split.find("v1").unwrap();
            count(&split, version, conversation, Outcome::Ok, now);
        }
        assert_eq!(split.serving().count(), 2);
    }

    /// Clients name their conversations, so each request of the client is of another conversation.
    #[test]
    fn one_of_several_clients_takes_no_version_out() {
        let is_out = |bad_clients: u8, clients: u8| {
            let split = split(&[50, 50]);
            let now = clock::now();
            for number in 0..2_000_u64 {
                let client = (number % u64::from(clients)) as u8;
                for version in &split.versions {
                    let mut record = streamed();
                    record.caller = None;
                    record.client = [10, 0, 0, client].into();
                    record.observed.has_answer = true;
                    let is_bad = client < bad_clients && *version.name == *"v0";
                    record.outcome = failing(is_bad);
                    split.count(version, Evidence::of(&record, hash(number), &[]), now);
                }
            }
            split.serving().count() == 1
        };
        assert!(is_out(1, 1), "there is only one client");
        assert!(!is_out(1, 4) && !is_out(2, 4));
        assert!(is_out(4, 4));
    }

    #[test]
    fn without_a_guard_no_version_is_out() {
        let guarded = split(&[95, 5]);
        let split = Split {
            is_guarded: false,
            ..guarded
        };
        assert_eq!(
            run(&split, 120, |version, _| failing(version == "v1")),
            None
        );
    }
}
