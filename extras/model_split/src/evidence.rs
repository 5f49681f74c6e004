//! Compares finished requests of a version of a model with those of the other versions, to find a worse
//! version.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_protocol::named_enum;
use tokenweir_request::record::{Outcome, RequestRecord, ResponseEnd};
use tokenweir_request::slo::{Objective, ObjectiveResult};
use xxhash_rust::xxh3::xxh3_64;

named_enum! {
    /// The kind of fault in which a version is worse than the others.
    pub enum Fault {
        /// Requests fail.
        Errors = "errors",
        /// Requests do not meet an objective.
        Objectives = "objectives",
        /// Answers are empty.
        EmptyAnswers = "empty_answers",
    }
}

/// Number of requests, and number of bad requests among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) requests: u64,
    pub(super) bad: u64,
}

/// The counts of finished requests by kind of fault. A request counts only for faults that it could show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    errors: Share,
    objectives: Share,
    empty_answers: Share,
    /// A bit for each conversation with a bad request. Conversations can have the same bit.
    bad_conversations: u64,
    /// Two bit sets over tenants, or over addresses of clients without a tenant: those with a request, and
    /// those with a bad request.
    clients: u64,
    bad_clients: u64,
}

/// The evidence of the last hour.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<Slice>);

/// The evidence of a short part of the window.
#[derive(Debug)]
struct Slice {
    began: Instant,
    evidence: Evidence,
}

/// Minimum time over which versions are compared.
pub(super) const MIN_SPAN: Duration = Duration::from_mins(1);
/// Maximum time over which versions are compared.
const MAX_SPAN: Duration = Duration::from_hours(1);
/// Number of requests of a version from which earlier requests are left out of the comparison.
const ENOUGH_REQUESTS: u64 = 200;
const SLICE: Duration = Duration::from_secs(5);
/// Minimum number of requests of a version, and of all other versions together, for a comparison.
const MIN_REQUESTS: u64 = 20;
/// Minimum number of conversations with bad requests.
const MIN_BAD_CONVERSATIONS: u32 = 5;
/// Minimum number of clients with bad requests, if the version has that many clients. Clients name their
/// conversations themselves, and a single client must not be able to take out a version.
const MIN_BAD_CLIENTS: u32 = 3;
/// Minimum difference between two shares of bad requests.
const MIN_DIFFERENCE: f64 = 0.03;
/// Minimum signed root of the likelihood ratio for two different shares, in standard deviations. Equal versions
/// exceed it once in three million comparisons. With few bad requests it is more exact than the test of two
/// proportions, which would take out a version for 3 bad requests of 20.
const MIN_DEVIATION: f64 = 5.0;

impl Share {
    fn one(is_bad: bool) -> Self {
        Self {
            requests: 1,
            bad: u64::from(is_bad),
        }
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.bad += other.bad;
    }

    /// The share of bad requests. 0 without requests.
    pub(super) fn ratio(self) -> f64 {
        self.bad as f64 / self.requests.max(1) as f64
    }

    /// Whether the share is significantly greater than the share of the other versions.
    fn is_worse_than(self, others: Self) -> bool {
        let fewest = self.requests.min(others.requests);
        if fewest < MIN_REQUESTS || self.ratio() - others.ratio() < MIN_DIFFERENCE {
            return false;
        }
        let mut both = self;
        both.add(others);
        let common = both.ratio();
        let likelihood_ratio = 2.0 * (self.divergence(common) + others.divergence(common));
        likelihood_ratio >= MIN_DEVIATION * MIN_DEVIATION
    }

    /// The logarithm of how much likelier the requests are with their own share than with the share `common`.
    fn divergence(self, common: f64) -> f64 {
        let good = self.requests - self.bad;
        log_likelihood(self.bad, self.ratio(), common)
            + log_likelihood(good, 1.0 - self.ratio(), 1.0 - common)
    }
}

fn log_likelihood(count: u64, own: f64, common: f64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    count as f64 * (own / common).ln()
}

impl Evidence {
    /// The evidence of one finished request of a conversation.
    pub(super) fn of(record: &RequestRecord, conversation: u64, objectives: &[Objective]) -> Self {
        let mut evidence = Self::default();
        let outcome = record.outcome;
        let has_failed = outcome.is_backend_failure() || outcome == Outcome::Rejected;
        if has_failed || outcome == Outcome::Ok {
            evidence.errors = Share::one(has_failed);
        }
        for objective in objectives {
            match objective.judge(record) {
                ObjectiveResult::Bad => evidence.objectives = Share::one(true),
                ObjectiveResult::Good => evidence.objectives.requests = 1,
                ObjectiveResult::Excluded => {}
            }
        }
        if let Some(end) = record.response_end() {
            evidence.empty_answers = Share::one(end == ResponseEnd::Empty);
        }
        evidence.clients = client_bit(record);
        if Fault::ALL
            .iter()
            .any(|fault| evidence.share(*fault).bad > 0)
        {
            evidence.bad_conversations = 1 << (conversation % u64::from(u64::BITS));
            evidence.bad_clients = evidence.clients;
        }
        evidence
    }

    pub(super) fn add(&mut self, other: Self) {
        self.errors.add(other.errors);
        self.objectives.add(other.objectives);
        self.empty_answers.add(other.empty_answers);
        self.bad_conversations |= other.bad_conversations;
        self.clients |= other.clients;
        self.bad_clients |= other.bad_clients;
    }

    pub(super) fn share(&self, fault: Fault) -> Share {
        match fault {
            Fault::Errors => self.errors,
            Fault::Objectives => self.objectives,
            Fault::EmptyAnswers => self.empty_answers,
        }
    }

    /// Whether there are bad requests.
    pub(super) fn is_bad(&self) -> bool {
        self.bad_conversations > 0
    }

    /// The fault in which the version is worse than the others. `None`: it is not worse.
    pub(super) fn fault_against(&self, others: &Self) -> Option<Fault> {
        let bad_clients = self.bad_clients.count_ones();
        let is_of_few = bad_clients < self.clients.count_ones().min(MIN_BAD_CLIENTS);
        if is_of_few || self.bad_conversations.count_ones() < MIN_BAD_CONVERSATIONS {
            return None;
        }
        let is_worse = |fault: &Fault| self.share(*fault).is_worse_than(others.share(*fault));
        Fault::ALL.into_iter().find(is_worse)
    }
}

/// The bit for the tenant of a request, or for the address of its client.
fn client_bit(record: &RequestRecord) -> u64 {
    let hash = match &record.caller {
        Some(caller) => xxh3_64(caller.tenant.as_bytes()),
        None => xxh3_64(record.client.to_string().as_bytes()),
    };
    1 << (hash % u64::from(u64::BITS))
}

impl Window {
    /// Adds evidence, and removes evidence that is older than an hour.
    pub(super) fn add(&mut self, evidence: Evidence, now: Instant) {
        while self
            .0
            .front()
            .is_some_and(|oldest| oldest.age(now) >= MAX_SPAN)
        {
            self.0.pop_front();
        }
        match self.0.back_mut() {
            Some(last) if now < last.began + SLICE => last.evidence.add(evidence),
            _ => self.0.push_back(Slice {
                began: now,
                evidence,
            }),
        }
    }

    /// The time over which the version is compared at `now`: long enough to contain [`ENOUGH_REQUESTS`], within
    /// the limits.
    pub(super) fn span(&self, now: Instant) -> Duration {
        let mut requests = 0;
        for slice in self.0.iter().rev() {
            requests += slice.evidence.errors.requests;
            if requests >= ENOUGH_REQUESTS {
                return (slice.age(now) + SLICE).clamp(MIN_SPAN, MAX_SPAN);
            }
        }
        MAX_SPAN
    }

    pub(super) fn evidence(&self, span: Duration, now: Instant) -> Evidence {
        let mut sum = Evidence::default();
        let slices = self.0.iter().rev();
        for slice in slices.take_while(|slice| slice.age(now) < span) {
            sum.add(slice.evidence);
        }
        sum
    }
}

impl Slice {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;
    use tokenweir_request::record::fixtures::streamed;

    fn share(bad: u64, requests: u64) -> Share {
        Share { requests, bad }
    }

    #[test]
    fn only_a_significant_difference_counts() {
        for (own, others) in [
            (share(20, 20), share(4, 400)),
            (share(5, 20), share(0, 400)),
            (share(10, 100), share(19, 1_900)),
            (share(520, 1_000), share(400, 1_000)),
        ] {
            assert!(own.is_worse_than(others), "{own:?} {others:?}");
            assert!(!others.is_worse_than(own), "{own:?} {others:?}");
        }
        for (own, others) in [
            // 3 bad requests of 20 can be chance, although the test of two proportions gives 4.8.
            (share(3, 20), share(4, 400)),
            (share(9, 50), share(48, 950)),
            (share(19, 19), share(0, 1_000)),
            (share(1_000, 1_000), share(0, 19)),
            // The difference is significant, but too small for an action.
            (share(2_900, 100_000), share(0, 100_000)),
            (share(50, 100), share(50, 100)),
            (share(100, 100), share(100, 100)),
            (share(0, 0), share(0, 0)),
        ] {
            assert!(!own.is_worse_than(others), "{own:?} {others:?}");
        }
    }

    /// Compares two versions with the same share of bad requests over many minutes of traffic.
    #[test]
    fn equal_versions_are_not_worse() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut draw = |requests: u64, ratio: f64| {
            let bad = (0..requests).filter(|_| random.f64() < ratio).count();
            share(bad as u64, requests)
        };
        for ratio in [0.001, 0.01, 0.05, 0.3] {
            for _ in 0..2_000 {
                let own = draw(50, ratio);
                assert!(!own.is_worse_than(draw(950, ratio)), "{own:?} {ratio}");
            }
        }
    }

    #[test]
    fn a_record_shows_its_faults() {
        let mut answered = streamed();
        answered.observed.has_answer = true;
        let shows = |outcome| {
            let mut record = answered.clone();
            record.outcome = outcome;
            Evidence::of(&record, 7, &[])
        };
        assert_eq!(shows(Outcome::Ok).errors, share(0, 1));
        for failed in [
            Outcome::UpstreamError,
            Outcome::Truncated,
            Outcome::Rejected,
        ] {
            assert_eq!(shows(failed).errors, share(1, 1));
        }
        for other in [Outcome::ClientError, Outcome::Cancelled, Outcome::Shutdown] {
            let evidence = shows(other);
            assert_eq!((evidence.errors, evidence.is_bad()), (share(0, 0), false));
        }
        let mut empty = answered.clone();
        empty.observed.has_answer = false;
        let evidence = Evidence::of(&empty, 7, &[]);
        assert_eq!(evidence.empty_answers, share(1, 1));
        assert!(evidence.is_bad() && !shows(Outcome::Ok).is_bad());
    }

    /// A window with one request each of these seconds.
    fn window(seconds: impl Iterator<Item = u64>, start: Instant) -> Window {
        let mut window = Window::default();
        let one = Evidence {
            errors: share(1, 1),
            ..Evidence::default()
        };
        for second in seconds {
            window.add(one, start + Duration::from_secs(second));
        }
        window
    }

    #[test]
    fn the_span_has_enough_requests() {
        let start = clock::now();
        for (requests, every, expected) in [
            (10_000, 0, 60..=60),
            (300, 1, 200..=210),
            (300, 10, 1_990..=2_000),
            (300, 30, 3_600..=3_600),
            (10, 1, 3_600..=3_600),
        ] {
            let last = start + Duration::from_secs((requests - 1) * every);
            let span = window((0..requests).map(|number| number * every), start).span(last);
            assert!(
                expected.contains(&span.as_secs()),
                "{requests} {every}: {span:?}"
            );
        }
    }

    #[test]
    fn a_window_forgets_after_an_hour() {
        let start = clock::now();
        let window = window(0..7_200, start);
        let last = start + Duration::from_secs(7_199);
        let counted = |span| window.evidence(span, last).errors.requests;
        assert!((55..=60).contains(&counted(MIN_SPAN)));
        assert!((3_595..=3_600).contains(&counted(MAX_SPAN)));
        assert!(window.0.len() <= 721, "{}", window.0.len());
    }
}
