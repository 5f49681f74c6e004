//! The world of an experiment, in virtual time: clients that send a trace, gateways that route it
//! and engines that serve it. The gateways are the real ledgers and policies, the engines are the
//! simulator's. Everything that happens is an event, and luck is drawn from one seed, so that a run
//! can be repeated exactly.

use super::router::{Router, RouterKind, View};
use super::score::{Score, Served};
use super::trace::Job;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::{Duration, Instant};
use tokenweir_core::routing::{
    self, Ask, Candidate, Counts, Ledger, Policy, Promise, Prompt, Report, Shortlist,
};
use tokenweir_sim::engine::{Engine, Load, SequenceId, Spec, Step};

/// One experiment but for the router and the seed.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The replicas.
    pub specs: Vec<Spec>,
    /// How many times faster than it was recorded the trace is sent.
    pub speed: f64,
    /// Arrivals are spread over this time after their time stamps, which are rounded.
    pub spread: Duration,
    /// Time between two looks at a replica.
    pub scrape: Duration,
    /// Gateways side by side that know nothing of each other.
    pub gateways: usize,
    /// A replica whose engine computes nothing from one moment to another, while it takes requests and
    /// its metrics are answered.
    pub frozen: Option<(usize, Range<Duration>)>,
    /// The policy's settings.
    pub policy: Policy,
    /// Time 0.
    pub epoch: Instant,
}

/// One run.
pub struct World<'a> {
    setup: &'a Setup,
    jobs: &'a [Job],
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    happened: u64,
    now: Duration,
    engines: Vec<Machine>,
    gateways: Vec<Gateway>,
    flights: Vec<Flight>,
    random: fastrand::Rng,
    arrived: usize,
    score: Score,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request comes, by its number.
    Arrival(usize),
    /// A batch of an engine is done.
    Batch(usize),
    /// A gateway looks at an engine.
    Scrape(usize, usize),
}

/// An engine and the batch that it computes.
struct Machine {
    engine: Engine,
    spec: Spec,
    batch: Option<Step>,
    /// What it says of itself: gauges stand still during a batch.
    said: Load,
    busy: Duration,
}

struct Gateway {
    ledgers: Vec<Ledger>,
    shortlist: Shortlist,
    reports: Vec<Report>,
    router: Router,
    asked: u64,
}

/// A request on its way.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    gateway: usize,
    replica: usize,
    promise: Option<Promise>,
    arrived: Duration,
    first: Duration,
    cached: u32,
}

impl Setup {
    /// When a replica can compute what it is to compute from now on.
    fn resumed(&self, replica: usize, now: Duration) -> Duration {
        match &self.frozen {
            Some((frozen, period)) if *frozen == replica && period.contains(&now) => period.end,
            _ => now,
        }
    }
}

impl<'a> World<'a> {
    /// A world in which nothing has happened.
    pub fn new(setup: &'a Setup, jobs: &'a [Job], kind: RouterKind, seed: u64) -> Self {
        let horizon = Duration::from_secs_f64(setup.policy.kv_aware.horizon_seconds.max(0.001));
        let gateway = |_| Gateway {
            ledgers: setup.specs.iter().map(|_| Ledger::new(setup.epoch, horizon)).collect(),
            shortlist: Shortlist::new(setup.epoch, setup.specs.len()),
            reports: vec![Report::default(); setup.specs.len()],
            router: kind.router(&setup.policy, setup.specs.len()),
            asked: 0,
        };
        let machine = |spec: &Spec| Machine {
            engine: Engine::new(*spec),
            spec: *spec,
            batch: None,
            said: Load::default(),
            busy: Duration::ZERO,
        };
        let mut world = Self {
            setup,
            jobs,
            events: BinaryHeap::new(),
            happened: 0,
            now: Duration::ZERO,
            engines: setup.specs.iter().map(machine).collect(),
            gateways: (0..setup.gateways.max(1)).map(gateway).collect(),
            flights: vec![Flight::default(); jobs.len()],
            random: fastrand::Rng::with_seed(seed),
            arrived: 0,
            score: Score::default(),
        };
        world.begin();
        world
    }

    /// Runs to the end; `on_progress` hears of every arrival.
    pub fn run(mut self, mut on_progress: impl FnMut(usize)) -> Score {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Arrival(job) => {
                    self.arrival(job);
                    on_progress(self.arrived);
                }
                Event::Batch(replica) => self.batch_done(replica),
                Event::Scrape(gateway, replica) => self.scrape(gateway, replica),
            }
        }
        self.score.requests = self.jobs.len();
        self.score.seconds = self.now.as_secs_f64();
        for machine in &self.engines {
            self.score.busy.push(machine.busy.as_secs_f64());
            self.score.preemptions += machine.engine.load().preemptions;
        }
        self.score
    }

    fn begin(&mut self) {
        for (number, job) in self.jobs.iter().enumerate() {
            let late = self.setup.spread.mul_f64(self.random.f64());
            self.at((job.at + late).div_f64(self.setup.speed), Event::Arrival(number));
        }
        for gateway in 0..self.gateways.len() {
            for replica in 0..self.engines.len() {
                let first = self.setup.scrape.mul_f64(self.random.f64());
                self.at(first, Event::Scrape(gateway, replica));
            }
        }
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.happened += 1;
        self.events.push(Reverse((time, self.happened, event)));
    }

    fn arrival(&mut self, number: usize) {
        self.arrived += 1;
        let job = &self.jobs[number];
        let gateway = self.random.usize(0..self.gateways.len());
        let seed = self.random.u64(..);
        let now = self.setup.epoch + self.now;
        let Gateway { ledgers, shortlist, reports, router, asked } = &mut self.gateways[gateway];
        let ask = Ask { sequence: *asked, seed, session: job.session };
        *asked += 1;
        let all: Vec<usize> = (0..ledgers.len()).collect();
        let kind = router.policy();
        let short = kind.and_then(|kind| shortlist.of(kind, &all, &job.prompt, &ask));
        let positions = short.unwrap_or(all);
        let candidate = |position: &usize| Candidate {
            place: *position,
            key: routing::mix(*position as u64 + 1),
            ..ledgers[*position].candidate(&job.prompt, now)
        };
        let mut candidates: Vec<Candidate> = positions.iter().map(candidate).collect();
        routing::lend(&mut candidates);
        let choice = router.route(&View { job, candidates: &candidates, reports, ask });
        let replica = candidates[choice].place;
        let promise = ledgers[replica].promise(&candidates[choice], &job.prompt, true, now);
        shortlist.sent(&job.prompt, replica);
        self.gateways[gateway].show(replica, now);
        self.score.placements.push((self.now.as_secs_f64(), replica));
        self.flights[number] = Flight {
            gateway,
            replica,
            promise: Some(promise),
            arrived: self.now,
            ..Flight::default()
        };
        let machine = &mut self.engines[replica];
        let request = job.request(machine.spec.block_size);
        if machine.engine.submit(SequenceId(number as u64), request, self.now).is_err() {
            // Too long for this replica: its client is told so at once.
            self.end(number, None);
            return;
        }
        if machine.batch.is_none() {
            self.next_batch(replica);
        }
    }

    fn next_batch(&mut self, replica: usize) {
        let machine = &mut self.engines[replica];
        machine.batch = machine.engine.step(self.now);
        if let Some(batch) = &machine.batch {
            machine.busy += batch.duration;
            let done = self.setup.resumed(replica, self.now) + batch.duration;
            self.at(done, Event::Batch(replica));
        }
    }

    fn batch_done(&mut self, replica: usize) {
        let machine = &mut self.engines[replica];
        machine.said = machine.engine.load();
        let Some(batch) = machine.batch.take() else { return };
        for token in &batch.tokens {
            let number = token.id.0 as usize;
            if token.nth == 1 {
                self.first_output(number, token.cached_tokens);
            }
            if self.jobs[number].left_after == Some(token.nth) {
                self.engines[replica].engine.abort(token.id);
                self.end(number, Some(token.nth));
            }
        }
        for finished in &batch.finished {
            let number = finished.id.0 as usize;
            self.end(number, Some(self.jobs[number].output_tokens));
        }
        self.next_batch(replica);
        // An engine that has nothing more to do says so.
        let machine = &mut self.engines[replica];
        if machine.batch.is_none() {
            machine.said = machine.engine.load();
        }
    }

    fn first_output(&mut self, number: usize, cached: u32) {
        let flight = &mut self.flights[number];
        flight.first = self.now;
        flight.cached = cached;
        let (gateway, now) = (&self.gateways[flight.gateway], self.setup.epoch + self.now);
        if let Some(promise) = &mut flight.promise {
            gateway.ledgers[flight.replica].first_output(promise, now);
            gateway.show(flight.replica, now);
        }
    }

    /// A request is over, with this many tokens of answer; `None`: it was refused.
    fn end(&mut self, number: usize, output: Option<u32>) {
        let (job, flight) = (&self.jobs[number], &mut self.flights[number]);
        let Some(mut promise) = flight.promise.take() else { return };
        let (gateway, now) = (&self.gateways[flight.gateway], self.setup.epoch + self.now);
        let ledger = &gateway.ledgers[flight.replica];
        if let Some(output) = output {
            ledger.answered(
                &mut promise,
                &Counts {
                    prompt: Some(job.prompt_tokens.into()),
                    cached: Some(flight.cached.into()),
                    output: Some(output.into()),
                },
            );
            self.score.served.push(Served {
                ttft: flight.first.saturating_sub(flight.arrived).as_secs_f64(),
                decode: self.now.saturating_sub(flight.first).as_secs_f64(),
                prompt: job.prompt_tokens,
                cached: flight.cached,
                output,
            });
        }
        ledger.give_back(promise, now);
        gateway.show(flight.replica, now);
    }

    fn scrape(&mut self, gateway: usize, replica: usize) {
        let machine = &self.engines[replica];
        let report = Report {
            kv_usage: Some(machine.said.kv_usage),
            waiting: machine.said.waiting as f64,
            running: machine.said.running as f64,
            capacity: Some(machine.spec.capacity().into()),
            tokens: Some((machine.said.prompt_tokens + machine.said.generation_tokens) as f64),
        };
        let (watching, now) = (&mut self.gateways[gateway], self.setup.epoch + self.now);
        let ledger = &watching.ledgers[replica];
        ledger.on_report(&report, &ledger.own(), now);
        watching.show(replica, now);
        watching.reports[replica] = report;
        let is_over = self.arrived == self.jobs.len();
        if !is_over {
            self.at(self.now + self.setup.scrape, Event::Scrape(gateway, replica));
        }
    }
}

impl Gateway {
    /// A replica shows how it stands to those who draw short lists.
    fn show(&self, replica: usize, now: Instant) {
        let candidate = || self.ledgers[replica].candidate(&Prompt::default(), now);
        self.shortlist.show(replica, now, || Some(candidate()));
    }
}
