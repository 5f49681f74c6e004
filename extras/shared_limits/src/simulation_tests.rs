//! Simulates four gateways with a store that answers late, hangs, loses its data or fails over to an old copy.
//! Each run depends only on its seed.

use crate::claims::{StoreAnswer, SubjectClaim};
use crate::grants::Grants;
use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use tokenweir_request::access::{
    ApiKeys, KeyDigest, KeyEntry, KeyFile, QuotaAnswer, QuotaRegistry, QuotaScope, QuotaUnit,
    SubjectUsage, TenantEntry, UsageLimits,
};

/// 2026-11-29 00:00:00 UTC in milliseconds since 1970.
const MIDNIGHT: u64 = 1_795_910_400_000;
const STEP_MILLIS: u64 = 10;
const TICK_MILLIS: u64 = 100;
const GATEWAYS: usize = 4;

/// The simulated store, with the rules of `grant.lua`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    periods: HashMap<String, StoredPeriod>,
    has_data_since: u64,
}

#[derive(Debug, Clone, Default)]
struct StoredPeriod {
    granted: u64,
    used: u64,
    swept: u64,
    by_gateway: HashMap<String, StoredShare>,
}

#[derive(Debug, Clone, Copy, Default)]
struct StoredShare {
    granted: u64,
    used: u64,
    at: u64,
}

impl Store {
    pub(crate) fn with_data_since(has_data_since: u64) -> Self {
        Self {
            has_data_since,
            ..Self::default()
        }
    }

    pub(crate) fn call(&mut self, gateway: &str, claim: &SubjectClaim, now: u64) -> StoreAnswer {
        let now = now / 1_000;
        if self.has_data_since == 0 {
            self.has_data_since = now;
        }
        let is_gauge = claim.unit == QuotaUnit::OpenRequests;
        let SubjectClaim {
            subject,
            unit,
            period,
            claim,
        } = claim;
        let name = format!("{} {unit:?} {period:?} {}", subject.name, claim.number);
        let stored = self.periods.entry(name).or_default();
        let own = stored.by_gateway.get(gateway).copied().unwrap_or_default();
        let stated = if is_gauge {
            claim.used
        } else {
            claim.used.max(own.used)
        };
        stored.used = stored.used - own.used + stated;
        let base = own.granted.max(claim.held).max(stated);
        stored.granted = stored.granted - own.granted + base;
        let lacks = claim.limit.saturating_sub(stored.granted) < claim.wanted.saturating_sub(base);
        let is_swept = (stored.swept..stored.swept + 10).contains(&now);
        if lacks && !is_swept {
            for (name, share) in &mut stored.by_gateway {
                if name != gateway && now > share.at + 30 {
                    let kept = if is_gauge { 0 } else { share.used };
                    stored.granted = stored.granted - share.granted + kept;
                    stored.used = stored.used - share.used + kept;
                    share.granted = kept;
                    share.used = kept;
                }
            }
            stored.swept = now;
        }
        let settles = self.has_data_since..self.has_data_since + 10;
        let is_settling = settles.contains(&now);
        let free = if is_settling {
            0
        } else {
            claim.limit.saturating_sub(stored.granted)
        };
        let granted = stated.max(claim.wanted.min(base + free));
        stored.granted = stored.granted - base + granted;
        let share = StoredShare {
            granted,
            used: stated,
            at: now,
        };
        stored.by_gateway.insert(gateway.to_owned(), share);
        StoreAnswer {
            quota: QuotaAnswer {
                share: granted,
                used: stated,
                granted_by_all: stored.granted,
                used_by_all: stored.used,
            },
            is_settling,
            has_data_since: self.has_data_since,
        }
    }
}

pub(crate) fn keys(limits: UsageLimits, registry: &Arc<QuotaRegistry>) -> ApiKeys {
    let key = KeyEntry {
        name: "k".into(),
        hash: KeyDigest::from_key(b"k"),
        limits: UsageLimits::default(),
    };
    let tenant = TenantEntry {
        name: "a".into(),
        limits,
        keys: vec![key],
        ..TenantEntry::default()
    };
    let file = KeyFile {
        tenants: vec![tenant],
    };
    ApiKeys::new(&file, &ApiKeys::with_registry(registry.clone()))
}

struct Gateway {
    id: String,
    subject: Arc<SubjectUsage>,
    registry: Arc<QuotaRegistry>,
    grants: Grants,
    is_connected: bool,
    /// The claims that were sent, with their answers, which have not arrived yet.
    pending: Option<(Vec<SubjectClaim>, Vec<StoreAnswer>, u64)>,
    /// The open requests: the time of their end, and their tokens.
    open: Vec<(u64, u64)>,
}

impl Gateway {
    fn new(id: String, limits: UsageLimits, now: u64) -> Self {
        let registry = Arc::new(QuotaRegistry::new(QuotaScope::Shared));
        let keys = keys(limits, &registry);
        let subject = keys.quota_subjects().next().unwrap();
        Self {
            id,
            subject,
            grants: Grants::new(registry.clone(), 1, now),
            registry,
            is_connected: false,
            pending: None,
            open: Vec::new(),
        }
    }

    /// Sends a request. Returns whether it is admitted.
    fn request(&mut self, now: u64) -> bool {
        let rule = self.registry.rule();
        let is_admitted = self.subject.with_quotas(|quotas| {
            for quota in &mut *quotas {
                quota.advance(now);
                quota.want();
            }
            let is_admitted = !quotas.iter().any(|quota| quota.is_used_up(rule));
            if is_admitted {
                for quota in quotas {
                    if quota.unit != QuotaUnit::Tokens {
                        quota.add(1);
                    }
                }
            }
            is_admitted
        });
        if self.subject.mark_active() {
            self.registry.activate(&self.subject);
        }
        is_admitted
    }

    /// Ends the requests that are due. Returns their tokens.
    fn end_requests(&mut self, now: u64) -> u64 {
        let ended = self.open.extract_if(.., |(at, _)| *at <= now);
        let ended: Vec<u64> = ended.map(|(_, tokens)| tokens).collect();
        let tokens = ended.iter().sum();
        if !ended.is_empty() {
            self.subject.with_quotas(|quotas| {
                for quota in quotas {
                    quota.advance(now);
                    match quota.unit {
                        QuotaUnit::Requests => {}
                        QuotaUnit::Tokens => quota.add(tokens),
                        QuotaUnit::OpenRequests => ended.iter().for_each(|_| quota.end_request()),
                    }
                }
            });
            if self.subject.mark_active() {
                self.registry.activate(&self.subject);
            }
        }
        tokens
    }

    fn tick(&mut self, store: Option<&mut Store>, now: u64, random: &mut fastrand::Rng) {
        let Some(store) = store else {
            self.is_connected = false;
            self.grants.apply_rule(now);
            return;
        };
        if self.pending.is_some() {
            return;
        }
        if !self.is_connected {
            self.is_connected = true;
            self.grants.restate(iter::once(self.subject.clone()));
        }
        let claims = self.grants.claims(now, GATEWAYS as u64);
        if claims.is_empty() && !self.grants.needs_heartbeat(now) {
            return;
        }
        let answers = claims.iter().map(|claim| store.call(&self.id, claim, now));
        let answers: Vec<StoreAnswer> = answers.collect();
        // One of fifty answers is lost after the store has applied the claims.
        let latency = if random.u8(0..50) == 0 {
            u64::MAX
        } else {
            random.u64(1..80)
        };
        self.pending = Some((claims, answers, now.saturating_add(latency)));
    }

    fn deliver(&mut self, now: u64) {
        let Some((claims, answers, at)) = self.pending.take() else {
            return;
        };
        if at == u64::MAX {
            self.grants.fail(&claims, now);
        } else if at > now {
            self.pending = Some((claims, answers, at));
        } else if !answers.is_empty() && self.grants.settle(&claims, &answers, now) {
            self.grants.restate(iter::once(self.subject.clone()));
        }
    }
}

/// The fault of the store in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Hung,
    DataLost,
    FailedOver,
}

struct Simulation {
    gateways: Vec<Gateway>,
    store: Store,
    is_hung: bool,
    random: fastrand::Rng,
    now: u64,
    started: u64,
    tokens: u64,
    most_open: usize,
    limits: UsageLimits,
}

impl Simulation {
    fn new(seed: u64, limits: UsageLimits) -> Self {
        let start = MIDNIGHT + 10 * 3_600_000;
        let gateway = |number| Gateway::new(format!("g{number}"), limits, start);
        Self {
            gateways: (0..GATEWAYS).map(gateway).collect(),
            store: Store::with_data_since(start / 1_000 - 1_000),
            is_hung: false,
            random: fastrand::Rng::with_seed(seed),
            now: start,
            started: 0,
            tokens: 0,
            most_open: 0,
            limits,
        }
    }

    /// Runs for some seconds with the given number of requests per second. Most requests arrive at one gateway,
    /// which changes every 15 s.
    fn run(&mut self, seconds: u64, per_second: f64) {
        let end = self.now + seconds * 1_000;
        while self.now < end {
            self.now += STEP_MILLIS;
            let now = self.now;
            for number in 0..GATEWAYS {
                let gateway = &mut self.gateways[number];
                gateway.deliver(now);
                self.tokens += gateway.end_requests(now);
                let favourite = (now / 15_000) as usize % GATEWAYS;
                let share = [0.7, 0.2, 0.08, 0.02][(number + GATEWAYS - favourite) % GATEWAYS];
                let expected = per_second * share * STEP_MILLIS as f64 / 1e3;
                let arrivals = expected as u64 + u64::from(self.random.f64() < expected.fract());
                for _ in 0..arrivals {
                    if gateway.request(now) {
                        self.started += 1;
                        let ends_at = now + self.random.u64(100..3_000);
                        gateway.open.push((ends_at, self.random.u64(100..900)));
                    }
                }
                if (now + 20 * number as u64).is_multiple_of(TICK_MILLIS) {
                    let store = (!self.is_hung).then_some(&mut self.store);
                    gateway.tick(store, now, &mut self.random);
                }
            }
            let open = self.gateways.iter().map(|gateway| gateway.open.len());
            self.most_open = self.most_open.max(open.sum());
        }
    }

    /// Causes the fault for the given number of seconds under load.
    fn fail(&mut self, fault: Fault, seconds: u64, per_second: f64) {
        match fault {
            Fault::None => self.run(seconds, per_second),
            Fault::Hung => {
                self.is_hung = true;
                self.run(seconds, per_second);
                self.is_hung = false;
            }
            Fault::DataLost => {
                self.is_hung = true;
                self.run(2, per_second);
                self.is_hung = false;
                self.store = Store::default();
                self.run(seconds, per_second);
            }
            Fault::FailedOver => {
                let copy = self.store.clone();
                self.run(2, per_second);
                self.is_hung = true;
                self.run(2, per_second);
                self.is_hung = false;
                self.store = copy;
                self.run(seconds, per_second);
            }
        }
    }

    fn replace(&mut self, number: usize) {
        let id = format!("g{number}-{}", self.now);
        self.gateways[number] = Gateway::new(id, self.limits, self.now);
    }
}

fn per_day(requests: Option<u64>, tokens: Option<u64>) -> UsageLimits {
    UsageLimits {
        requests_per_day: requests,
        tokens_per_day: tokens,
        ..UsageLimits::default()
    }
}

const FAULTS: [Fault; 4] = [Fault::None, Fault::Hung, Fault::DataLost, Fault::FailedOver];

#[test]
fn overrun_of_requests_is_at_most_three_percent() {
    for seed in 0..25 {
        for fault in FAULTS {
            let mut simulation = Simulation::new(seed, per_day(Some(10_000), None));
            let load = 100.0 + 20.0 * seed as f64;
            simulation.run(20, load);
            simulation.fail(fault, 12, load);
            simulation.run(140, load);
            let started = simulation.started;
            assert!(started <= 10_300, "{fault:?}, seed {seed}: {started}");
            assert!(started >= 9_900, "{fault:?}, seed {seed}: {started}");
        }
    }
}

#[test]
fn overrun_of_tokens_is_at_most_three_percent() {
    for seed in 0..10 {
        for fault in FAULTS {
            let mut simulation = Simulation::new(seed, per_day(None, Some(5_000_000)));
            simulation.run(20, 100.0);
            simulation.fail(fault, 12, 100.0);
            simulation.run(120, 100.0);
            let tokens = simulation.tokens;
            // When the last token of the limit is used, open requests still generate further tokens.
            assert!(tokens <= 5_150_000, "{fault:?}, seed {seed}: {tokens}");
            assert!(tokens >= 4_900_000, "{fault:?}, seed {seed}: {tokens}");
        }
    }
}

#[test]
fn restarts_of_gateways_gain_nothing() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed, per_day(Some(2_000), None));
        simulation.run(60, 100.0);
        let before = simulation.started.max(2_000);
        for number in 0..GATEWAYS {
            simulation.replace(number);
            simulation.run(10, 100.0);
        }
        let gained = simulation.started.saturating_sub(before);
        assert_eq!(gained, 0, "seed {seed}");
    }
}

#[test]
fn a_restart_of_the_store_gains_nothing() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(seed, per_day(Some(2_000), None));
        simulation.run(60, 100.0);
        let before = simulation.started.max(2_000);
        simulation.fail(Fault::DataLost, 60, 100.0);
        let gained = simulation.started.saturating_sub(before);
        assert_eq!(gained, 0, "seed {seed}");
    }
}

#[test]
fn a_share_of_each_minute_holds_without_store() {
    let limits = UsageLimits {
        requests_per_minute: Some(1_200),
        ..UsageLimits::default()
    };
    for seed in 0..10 {
        let mut simulation = Simulation::new(seed, limits);
        simulation.run(60, 100.0);
        simulation.is_hung = true;
        simulation.run(60, 100.0);
        let before = simulation.started;
        simulation.run(60, 100.0);
        let in_minute = simulation.started - before;
        assert!(in_minute <= 1_236, "seed {seed}: {in_minute}");
        assert!(in_minute >= 600, "seed {seed}: {in_minute}");
        simulation.is_hung = false;
        simulation.run(60, 100.0);
        let before = simulation.started;
        simulation.run(60, 100.0);
        let in_minute = simulation.started - before;
        assert!(
            (1_180..=1_236).contains(&in_minute),
            "seed {seed}: {in_minute}"
        );
    }
}

#[test]
fn gateways_share_a_limit_of_open_requests() {
    let limits = UsageLimits {
        concurrency: Some(200),
        ..UsageLimits::default()
    };
    for seed in 0..10 {
        let mut simulation = Simulation::new(seed, limits);
        simulation.run(150, 300.0);
        let most = simulation.most_open;
        assert!((180..=206).contains(&most), "seed {seed}: {most}");
    }
}
