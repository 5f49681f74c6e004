//! The rule about a backend at which attempts fail. It needs only a few requests.

mod same_moment;

use super::limits::named;
use super::observation::{AttemptCounts, AttemptFailures, FleetBackend, FleetObservation};
use crate::harm::HARMED_SHARE;
use crate::recent::Recent;
use crate::rule::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::EngineError;
use tokenweir_request::record::ErrorSource;
use tokenweir_request::significance::{TimeSpread, is_share_above};
use tokenweir_routing::resilience::Availability;

/// Length of the window whose attempts are counted.
const WINDOW: Duration = Duration::from_mins(1);
/// Length of a second window. Its failures count until [`RECOVERED_AFTER`] attempts in succession have
/// succeeded.
const LONG_WINDOW: Duration = Duration::from_mins(5);
/// Minimum number of failed attempts in the window.
const MIN_FAILED: u64 = 3;
/// Number of successes in succession after which earlier failures do not count any more.
const RECOVERED_AFTER: u64 = 10;
/// If a backend is down for at least this time, the verdict `backend_down` covers its failures. If it is down
/// for a shorter time, its failures still count: a backend that goes down and comes back at each failure is
/// failing.
const COVERED_BY_DOWN: Duration = Duration::from_secs(15);
/// The kind of failure with which a backend reports that it is full.
const BUSY: &str = "busy";

/// The clause for a common cause: connections break at the same moments.
pub(super) const SAME_MOMENT: &str = "all at the same moment: something between the gateway and the backends (network, firewall, mesh, proxy)";
/// The first step of the remedy if all backends fail in the same way.
pub(super) const COMMON_REMEDY: &str = "Look at what is between the gateway and all backends before the engines: a load balancer, a proxy, \
                             the network, name resolution, or a key.";

/// For a timeout between the gateway and the engine: the minimum number of responses that broke after the same
/// time, and then the minimum of this time.
const MIN_EQUAL: u64 = 4;
const MIN_EQUAL_SECONDS: f64 = 0.2;
/// Minimum share of the responses that break after the same time, for a failing backend.
const EQUAL_SHARE: f64 = 0.02;

/// The remedy for error responses from a proxy in front of the engine.
pub(super) const PROXY_REMEDY: &str = "Read the log of the proxy in front of the engines: its limit of the body (413), its rules (403), its rate limit \
                                       (429), its routes and redirects (3xx, 404), or the engines that it reaches (5xx).";

pub(super) const RATE_LIMIT_REMEDY: &str =
    "Find the rate limit in front of the backend, or of its server, and raise it for the gateway.";

pub(super) static BACKEND_FAILING: DiagnosisRule = DiagnosisRule {
    name: "backend_failing",
    severity: "warning, critical if more than 5 % of requests fail",
    meaning: "More than 5 % of the attempts at the backend fail.",
    evidence: "Three or more attempts failed, significantly more than 5 %: of those of the last \
               minute, or, while fewer than ten succeeded in succession, of those of the last \
               five minutes. A failed attempt has a 5xx, a broken response, a timeout, or a 4xx \
               that peers do not give.",
    excluded: "the client or the gateway caused the failure, or the backend was full while the \
               gateway refused requests",
    remedy: "Read the log of the backend. The access log has the failed requests and their \
             attempts. Set the weight of the backend to 0 until it works.",
    disproof: "Requests that are sent directly to the backend succeed.",
    ..DiagnosisRule::BACKEND
};

/// The attempts of the last five minutes at all backends.
#[derive(Debug, Default)]
pub(super) struct BackendFailures {
    backends: HashMap<BackendId, BackendAttempts>,
    last_attempt_at: Option<Instant>,
    /// The backends that fail only because of a timeout of the gateway.
    excused: Vec<String>,
}

#[derive(Debug, Default)]
struct BackendAttempts {
    /// The attempts of the last five minutes, the oldest first. There is one entry for each evaluation with
    /// attempts.
    recent: Recent<AttemptCounts>,
    /// Number of successes since the last failure.
    successes: u64,
    /// The failed attempts of the last five minutes, kept until new attempts show whether the failures go on.
    found: Vec<AttemptFailures>,
    is_failing: bool,
    /// The failures of the last evaluation that found some. They explain an ejection, after which the backend
    /// gets no attempts.
    last_failures: Vec<AttemptFailures>,
    /// Since when the backend has got no requests. `None`: it gets requests.
    down_since: Option<Instant>,
    /// The restarts of the engine so far. `None`: no evaluation yet.
    restarts: Option<u64>,
    restarted_at: Option<Instant>,
}

impl BackendFailures {
    /// Returns a verdict for each backend that matches [`BACKEND_FAILING`] at `now`. Only backends that are
    /// available or ejected can match.
    /// `is_excused`: whether a setting of the gateway is the reason for failures of a kind.
    pub(super) fn judge(
        &mut self,
        fleet: &FleetObservation,
        is_excused: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<Verdict> {
        self.backends
            .retain(|id, _| fleet.backends.iter().any(|backend| backend.id == *id));
        if fleet.backends.iter().any(|it| it.attempts.attempts > 0) {
            self.last_attempt_at = Some(now);
        }
        let age = self
            .last_attempt_at
            .map(|at| now.saturating_duration_since(at));
        let is_idle = age.is_none_or(|age| age >= LONG_WINDOW);
        let severity = VerdictSeverity::of_harm(fleet.counts.failed, fleet.counts.requests);
        let mut matches = Vec::new();
        let mut asked = 0;
        let mut excused = Vec::new();
        for backend in &fleet.backends {
            let attempts = self.backends.entry(backend.id.clone()).or_default();
            attempts.push(observed(backend, fleet), now);
            attempts.note_state(backend.is_up, now);
            attempts.note_restarts(backend.restarts, now);
            // If no backend has got a request for a long time, nothing shows that the condition still
            // holds.
            attempts.is_failing = !is_idle && attempts.is_failing_at(now);
            let gets_requests = matches!(
                backend.state,
                Availability::Available | Availability::Ejected
            );
            asked += usize::from(attempts.in_window(LONG_WINDOW, now).attempts > 0);
            if attempts.most_are(&is_excused, now) {
                excused.push(backend.id.to_string());
            }
            if attempts.is_failing && gets_requests {
                matches.push(attempts.found_at(backend, fleet, severity, now));
            }
        }
        // The setting explains the failures only if they occur at no fewer than half of the backends with
        // attempts.
        self.excused = if 2 * excused.len() >= asked {
            excused
        } else {
            Vec::new()
        };
        matches.retain(|found: &Verdict| !self.is_excused(&found.backend));
        if matches.len() > 1 && matches.len() == asked {
            self.name_common_cause(&mut matches, now);
        }
        matches
    }

    /// Whether a setting of the gateway causes the failures of a backend.
    fn is_excused(&self, backend: &str) -> bool {
        self.excused.iter().any(|excused| excused == backend)
    }

    /// Adds the reason of the last failures to the verdict about an ejected backend.
    pub(super) fn explain_ejection(&self, found: &mut Verdict, fleet: &FleetObservation) {
        let mut backends = self.backends.iter();
        let known = backends.find(|(id, _)| id.as_str() == found.backend);
        let failures = known.map_or(&[][..], |(_, attempts)| &attempts.last_failures);
        let Some(most) = failures.iter().max_by_key(|failure| failure.count) else {
            return;
        };
        found.add_to_cause(&format!("its last failures: {}", most.describe(fleet)));
        if self.is_excused(&found.backend) {
            found.severity = VerdictSeverity::Info;
            "See gateway_limit: the timeout, and not the backend, is the cause."
                .clone_into(&mut found.remedy);
            return;
        }
        let names = [
            "circuit_breaker.consecutive_failures",
            "circuit_breaker.failure_ratio",
        ];
        for setting in names.iter().filter_map(|name| fleet.setting(name)) {
            found.add_to_cause(&named(setting));
        }
        if let Some(remedy) = most.remedy() {
            remedy.clone_into(&mut found.remedy);
        }
    }
}

/// Returns the attempts at a backend that the rule counts. While the gateway refuses requests for lack of
/// capacity, a failure of the kind [`BUSY`] does not count.
fn observed(backend: &FleetBackend, fleet: &FleetObservation) -> AttemptCounts {
    let mut observed = backend.attempts.clone();
    if fleet.counts.refused > 0 {
        observed.failures.retain(|failure| failure.kind != BUSY);
    }
    observed
}

impl BackendAttempts {
    fn push(&mut self, counts: AttemptCounts, now: Instant) {
        self.recent.forget(LONG_WINDOW, now);
        let failed = counts.failed();
        if failed > 0 {
            self.last_failures.clone_from(&counts.failures);
        }
        self.successes = if failed > 0 {
            0
        } else {
            self.successes + counts.attempts
        };
        if counts.attempts > 0 {
            self.recent.add(counts, now);
        }
    }

    /// Forgets the attempts at a backend that has been down for [`COVERED_BY_DOWN`]: they do not show whether
    /// the backend works when it is up again.
    fn note_state(&mut self, is_up: bool, now: Instant) {
        if is_up {
            self.down_since = None;
            return;
        }
        let since = *self.down_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= COVERED_BY_DOWN {
            *self = Self {
                down_since: self.down_since,
                restarts: self.restarts,
                restarted_at: self.restarted_at,
                last_failures: std::mem::take(&mut self.last_failures),
                ..Self::default()
            };
        }
    }

    /// The attempts in the window that ends at `now`, with the failed attempts by kind and status.
    fn in_window(&self, window: Duration, now: Instant) -> AttemptCounts {
        let mut sums = AttemptCounts::default();
        for counts in self.recent.within(window, now) {
            sums.attempts += counts.attempts;
            counts.failures.iter().for_each(|it| sums.add_failures(it));
        }
        sums
    }

    fn is_failing_at(&self, now: Instant) -> bool {
        let is_above = |window| {
            let counts = self.in_window(window, now);
            let failed = counts.failed();
            failed >= MIN_FAILED && is_share_above(failed, counts.attempts, HARMED_SHARE)
        };
        let counts = self.in_window(WINDOW, now);
        let failed = counts.failed();
        let goes_on =
            failed >= MIN_FAILED && failed as f64 >= HARMED_SHARE * counts.attempts as f64;
        // A few successes after failures do not show that the failures have ended.
        let has_recovered = self.successes >= RECOVERED_AFTER;
        is_above(WINDOW)
            || self.has_timeout(now)
            || self.is_failing && (goes_on || !has_recovered)
            || !has_recovered && is_above(LONG_WINDOW)
    }

    /// Whether most failures of the last minute are of an excused kind.
    fn most_are(&self, is_excused: impl Fn(&str) -> bool, now: Instant) -> bool {
        let counts = self.in_window(WINDOW, now);
        let failures = counts.failures.iter();
        let excused = failures.filter(|failure| is_excused(failure.kind));
        let excused: u64 = excused.map(|failure| failure.count).sum();
        let all = counts.failed();
        all > 0 && 2 * excused >= all
    }

    /// Whether responses of the last five minutes broke after the same time, and at least one of them in the
    /// last minute.
    fn has_timeout(&self, now: Instant) -> bool {
        let counts = self.in_window(LONG_WINDOW, now);
        let is_relevant = |failure: &AttemptFailures| {
            failure.equal_seconds().is_some()
                && failure.count as f64 >= EQUAL_SHARE * counts.attempts as f64
        };
        self.in_window(WINDOW, now).failed() > 0 && counts.failures.iter().any(is_relevant)
    }

    fn found_at(
        &mut self,
        backend: &FleetBackend,
        fleet: &FleetObservation,
        severity: VerdictSeverity,
        now: Instant,
    ) -> Verdict {
        let recent = self.in_window(LONG_WINDOW, now).failures;
        if !recent.is_empty() {
            self.found = recent;
        }
        let most = self.found.iter().max_by_key(|failure| failure.count);
        let counts = self.in_window(WINDOW, now);
        let attempts = counts.attempts;
        let failed = counts.failed() as f64;
        let mut cause = most.map_or_else(String::new, |most| {
            format!("most of its failures: {}", most.describe(fleet))
        });
        if backend.state == Availability::Ejected {
            cause.push_str("; the circuit breaker has ejected it");
        } else if attempts == 0 {
            cause.push_str("; it gets no requests now, so nothing shows that it works");
        }
        let evidence =
            |measure, value, unit| Evidence::new(measure, value, unit, WINDOW.as_secs_f64());
        let remedy = most.and_then(AttemptFailures::remedy);
        let found = BACKEND_FAILING.verdict(severity).about(&backend.id);
        let found = found.because(cause).with([
            evidence("failed_share", failed / attempts.max(1) as f64, "ratio"),
            evidence("failed_attempts", failed, "requests"),
            evidence("attempts", attempts as f64, "requests"),
        ]);
        found.remedy(remedy.unwrap_or(BACKEND_FAILING.remedy))
    }
}

/// The remedy for an error that the engine reports. `None`: the kind of error does not show a remedy.
fn remedy_of(about: EngineError) -> Option<&'static str> {
    Some(match about {
        EngineError::Gpu => {
            "Drain the backends of this host. Look for Xid and ECC errors (dmesg, nvidia-smi \
             -q), and reset or replace the GPU."
        }
        EngineError::OutOfMemory => {
            "Restart the engine with a lower --gpu-memory-utilization, --max-num-seqs or \
             --max-num-batched-tokens, and look for other processes on its GPU."
        }
        EngineError::Peer => {
            "Restart all ranks of the engine together, and look at the node and the network of \
             the rank that was lost."
        }
        EngineError::Media => {
            "Look at the host of the media, and at the way from the engines to it; the engines \
             are not the cause."
        }
        _ => return None,
    })
}

impl AttemptCounts {
    /// Adds failed attempts to those of the same kind and status.
    pub(crate) fn add_failures(&mut self, failures: &AttemptFailures) {
        let key = |it: &AttemptFailures| (it.kind, it.status, it.error_source);
        match self
            .failures
            .iter_mut()
            .find(|known| key(known) == key(failures))
        {
            Some(known) => {
                known.count += failures.count;
                known.seconds += failures.seconds;
                known.squares += failures.squares;
            }
            None => self.failures.push(failures.clone()),
        }
    }

    fn failed(&self) -> u64 {
        self.failures.iter().map(|failure| failure.count).sum()
    }
}

impl AttemptFailures {
    /// The failure as text about the backend, such as `it answers 502`.
    fn describe(&self, fleet: &FleetObservation) -> String {
        let words = self.words();
        if let Some(setting) = self.timeout_setting().and_then(|name| fleet.setting(name)) {
            return format!("{words}: {}", named(setting));
        }
        match self.equal_seconds() {
            Some(seconds) => format!("{words}, each after {seconds:.1} s"),
            None => words,
        }
    }

    /// The time after which the attempts failed, in seconds, if all times are so similar that a timeout must be
    /// the cause. `None`: the times differ, or there are too few.
    fn equal_seconds(&self) -> Option<f64> {
        let is_broken =
            ["truncated_cut", "truncated_clean", "connection_reset"].contains(&self.kind);
        if !is_broken || self.count < MIN_EQUAL {
            return None;
        }
        let count = self.count as f64;
        let times = TimeSpread::of_means(self.seconds / count, self.squares / count);
        (times.mean >= MIN_EQUAL_SECONDS && times.is_equal()).then_some(times.mean)
    }

    /// The timeout setting of the gateway that ends attempts in this way. `None`: no timeout does.
    fn timeout_setting(&self) -> Option<&'static str> {
        match self.kind {
            "timeout" | "timeout_headers" => Some("timeouts.response_headers"),
            "first_output_timeout" | "timeout_first_output" => Some("timeouts.first_output"),
            "timeout_idle" => Some("stalls.abort_after"),
            _ => None,
        }
    }

    fn words(&self) -> String {
        let words = self.kind_words();
        match (self.error_source, self.status) {
            (Some(ErrorSource::Engine(error)), _) => format!("{words} ({})", error.as_str()),
            (Some(source), Some(status)) => format!("{status} {source}"),
            _ => words,
        }
    }

    fn kind_words(&self) -> String {
        if let Some(status) = self.status {
            return format!("it answers {status}");
        }
        let words = match self.kind {
            "connect_error" => "no connection to it can be opened",
            "connection_reset" => "it closes the connection before its response",
            "truncated_cut" => "it cuts its responses",
            "truncated_clean" => "it ends its responses without their last event",
            "inband_error" => "it reports errors inside its responses",
            "upstream_abort" => "its engine aborts requests",
            "timeout" | "timeout_headers" => "it does not answer in time",
            "first_output_timeout" | "timeout_first_output" => "its first output is not in time",
            "timeout_idle" => "its streams stop",
            "bad_response" => "its responses are not valid HTTP",
            other => return other.replace('_', " "),
        };
        words.to_owned()
    }

    /// The remedy for an error status. `None`: the status alone does not show the cause.
    fn remedy(&self) -> Option<&'static str> {
        if self.equal_seconds().is_some() {
            return Some(
                "Something between the gateway and the engine ends responses after this time: \
                 raise the timeout of the proxy, sidecar or firewall.",
            );
        }
        let of_source = match self.error_source {
            Some(ErrorSource::Proxy(_)) => Some(PROXY_REMEDY),
            Some(ErrorSource::Engine(error)) => remedy_of(error),
            None => None,
        };
        if of_source.is_some() {
            return of_source;
        }
        match self.status? {
            401 | 403 | 407 => Some(
                "Compare the key that the backend was started with (--api-key) with its api_key \
                 in the configuration of the gateway.",
            ),
            404 | 405 => Some(
                "Compare its models and its paths with those of its peers: GET /v1/models of the \
                 backend.",
            ),
            429 => Some(RATE_LIMIT_REMEDY),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation;
    use super::*;
    use crate::fleet::observation::RecentCounts;
    use tokenweir_protocol::clock;

    struct Fixture {
        rule: BackendFailures,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                rule: BackendFailures::default(),
                now: clock::epoch(),
            }
        }

        /// Evaluates the rule after `attempts` attempts at the backend `bad`, of which `failed` failed, and
        /// ten successful attempts at the backend `good`. Returns the verdict on `bad`.
        fn step(&mut self, attempts: u64, failed: u64) -> Option<Verdict> {
            self.now += Duration::from_secs(5);
            let failure = AttemptFailures {
                kind: "truncated_cut",
                status: None,
                count: failed,
                ..AttemptFailures::default()
            };
            let counts = AttemptCounts {
                attempts,
                failures: vec![failure],
            };
            let good = AttemptCounts {
                attempts: 10,
                failures: Vec::new(),
            };
            let backends = vec![backend("bad", counts), backend("good", good)];
            let fleet = FleetObservation {
                backends,
                ..FleetObservation::default()
            };
            let found = self.rule.judge(&fleet, |_| false, self.now);
            assert!(found.iter().all(|it| it.backend == "bad"));
            found.into_iter().next()
        }
    }

    pub(super) fn backend(name: &str, attempts: AttemptCounts) -> FleetBackend {
        FleetBackend {
            attempts,
            ..observation::tests::backend(name, Availability::Available)
        }
    }

    /// Evaluates the rule at most `steps` times, and returns the number of evaluations until the verdict.
    /// Every `every`-th evaluation has `per_step` attempts. Of each ten attempts, `failing` fail.
    fn steps_until_found(steps: u64, every: u64, per_step: u64, failing: u64) -> Option<u64> {
        let mut fixture = Fixture::new();
        let mut sent = 0;
        (1..=steps).find(|step| {
            let attempts = if step % every == 0 { per_step } else { 0 };
            let fails = |number: &u64| (number * 7) % 10 < failing;
            let failed = (sent..sent + attempts).filter(fails).count() as u64;
            sent += attempts;
            fixture.step(attempts, failed).is_some()
        })
    }

    /// The cause after five evaluations with 20 attempts each. At each backend, one response of each evaluation
    /// breaks after the given number of seconds.
    fn cause_after(seconds: &[f64], names: &[&str]) -> Option<String> {
        let mut rule = BackendFailures::default();
        let mut now = clock::epoch();
        let mut found = Vec::new();
        for seconds in seconds {
            now += Duration::from_secs(5);
            let failure = AttemptFailures {
                kind: "truncated_cut",
                count: 1,
                seconds: *seconds,
                squares: seconds * seconds,
                ..AttemptFailures::default()
            };
            let counts = AttemptCounts {
                attempts: 20,
                failures: vec![failure],
            };
            let backends = names.iter().map(|name| backend(name, counts.clone()));
            let fleet = FleetObservation {
                backends: backends.collect(),
                ..FleetObservation::default()
            };
            found = rule.judge(&fleet, |_| false, now);
        }
        let first = found.into_iter().next()?;
        first.cause.map(Into::into)
    }

    #[test]
    fn breaks_after_equal_times_show_a_timeout() {
        let equal = [2.0, 2.01, 1.99, 2.0, 2.02];
        let cause = "most of its failures: it cuts its responses, each after 2.0 s";
        assert_eq!(cause_after(&equal, &["a"]).as_deref(), Some(cause));
        let common = format!("{cause}; all backends fail alike, so the cause is common to them");
        assert_eq!(cause_after(&equal, &["a", "b"]), Some(common));
        let different = [2.0, 0.3, 5.0, 1.0, 9.0];
        assert_eq!(cause_after(&different, &["a"]), None, "5 % by chance");
    }

    #[test]
    fn an_ejection_keeps_its_last_failures() {
        let mut rule = BackendFailures::default();
        let failure = AttemptFailures {
            kind: "client_error",
            status: Some(401),
            count: 2,
            ..AttemptFailures::default()
        };
        let counts = AttemptCounts {
            attempts: 2,
            failures: vec![failure],
        };
        let mut now = clock::epoch();
        for counts in [counts, AttemptCounts::default()] {
            now += LONG_WINDOW;
            let fleet = FleetObservation {
                backends: vec![backend("a", counts)],
                ..FleetObservation::default()
            };
            rule.judge(&fleet, |_| false, now);
        }
        let mut found = Verdict {
            backend: "a".to_owned(),
            ..Verdict::default()
        };
        rule.explain_ejection(&mut found, &FleetObservation::default());
        let cause = "its last failures: it answers 401";
        assert_eq!(found.cause.as_deref(), Some(cause));
        assert!(found.remedy.contains("api_key"));
    }

    #[test]
    fn many_failures_are_found_within_a_minute() {
        for (every, per_step) in [(1, 1), (1, 3), (1, 50)] {
            let found = steps_until_found(24, every, per_step, 4);
            assert!(
                found.is_some_and(|step| step <= 12),
                "{every} {per_step}: {found:?}"
            );
        }
        assert!(
            steps_until_found(60, 4, 1, 4).is_some(),
            "three requests a minute"
        );
        assert_eq!(steps_until_found(240, 1, 3, 0), None);
        let mut fixture = Fixture::new();
        assert!(fixture.step(2, 2).is_none(), "two failures");
        let mut fixture = Fixture::new();
        assert!(
            (0..100).all(|step| fixture.step(10, u64::from(step % 4 == 0)).is_none()),
            "2.5 %"
        );
    }

    #[test]
    fn ten_successes_in_succession_end_the_verdict() {
        let mut fixture = Fixture::new();
        (0..4).for_each(|_| drop(fixture.step(10, 4)));
        for step in 0..100 {
            let held = fixture.step(0, 0).expect("it is held");
            let cause = held.cause.unwrap();
            assert!(cause.contains("it cuts its responses"), "{cause}");
            assert_eq!(
                cause.contains("it gets no requests now"),
                step >= 11,
                "{step}: {cause}"
            );
        }
        assert!(fixture.step(9, 0).is_some(), "nine successes are few");
        assert!(fixture.step(1, 0).is_none());
    }

    #[test]
    fn failures_are_forgotten_25_seconds_after_going_down() {
        let found_after = |down_steps: u64| {
            let mut fixture = Fixture::new();
            fixture.step(10, 10);
            for _ in 0..down_steps {
                fixture.now += Duration::from_secs(5);
                let down = observation::tests::backend("bad", Availability::Down);
                let fleet = FleetObservation {
                    backends: vec![down],
                    ..FleetObservation::default()
                };
                assert_eq!(fixture.rule.judge(&fleet, |_| false, fixture.now).len(), 0);
            }
            fixture.step(1, 0).is_some()
        };
        assert!(found_after(1), "a backend that flaps");
        assert!(!found_after(5));
    }

    #[test]
    fn five_idle_minutes_end_the_verdict() {
        let mut fixture = Fixture::new();
        (0..4).for_each(|_| drop(fixture.step(10, 4)));
        let idle = |fixture: &mut Fixture| {
            fixture.now += Duration::from_secs(5);
            let backends = vec![backend("bad", AttemptCounts::default())];
            let fleet = FleetObservation {
                backends,
                ..FleetObservation::default()
            };
            fixture.rule.judge(&fleet, |_| false, fixture.now).len()
        };
        assert_eq!((0..59).map(|_| idle(&mut fixture)).sum::<usize>(), 59);
        assert_eq!(idle(&mut fixture), 0);
    }

    #[test]
    fn busy_responses_of_a_full_fleet_are_ignored() {
        let now = clock::epoch();
        let busy = Some(503);
        let judge = |kind, status, refused| {
            let failures = vec![AttemptFailures {
                kind,
                status,
                count: 9,
                ..AttemptFailures::default()
            }];
            let backends = vec![backend(
                "a",
                AttemptCounts {
                    attempts: 9,
                    failures,
                },
            )];
            let counts = RecentCounts {
                refused,
                ..RecentCounts::default()
            };
            let fleet = FleetObservation {
                backends,
                counts,
                ..FleetObservation::default()
            };
            let found = BackendFailures::default().judge(&fleet, |_| false, now);
            found
                .into_iter()
                .next()
                .map(|it| (it.cause.unwrap(), it.remedy))
        };
        let (cause, remedy) = judge("unauthorized", Some(401), 0).unwrap();
        assert_eq!(cause, "most of its failures: it answers 401");
        assert!(remedy.contains("api_key"));
        assert!(judge(BUSY, busy, 0).is_some());
        assert_eq!(judge(BUSY, busy, 1), None);
    }
}
