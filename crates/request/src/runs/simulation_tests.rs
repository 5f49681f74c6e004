//! Simulates random histories of runs: clients disconnect and return, engines answer and fail, and time passes.
//! The seed determines the history. `SEEDS=100000` runs more histories, and `SEED=7` repeats the history of
//! seed 7.

use super::note::RunOutcome;
use super::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::Party;

const WINDOW: Duration = Duration::from_mins(1);
const STEPS: usize = 60;
/// Length of the random text that the simulated engines write repeatedly, in bytes. It is no
/// multiple of the segment size.
const PERIOD: usize = 60_013;
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Engine {
    producer: Producer,
    run: usize,
    flag: Arc<Flag>,
    is_waiting: bool,
}

struct Client {
    reader: Reader,
    run: usize,
    position: usize,
    flag: Arc<Flag>,
    is_waiting: bool,
}

/// The expected state of a run.
struct Facts {
    key: RunKey,
    party: Party,
    request: Digest,
    written: usize,
    end: Option<End>,
    /// When the last reader left. `None`: the run has readers.
    alone_since: Option<Instant>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct World {
    random: fastrand::Rng,
    now: Instant,
    settings: RunSettings,
    /// Maximum number of open requests of the gateway.
    places: usize,
    registry: Arc<Registry>,
    engines: Vec<Engine>,
    clients: Vec<Client>,
    runs: Vec<Facts>,
    latest: HashMap<RunKey, usize>,
    billed: usize,
}

/// The head of the response of a run, which its length names.
fn head_of(run: usize) -> RunHead {
    RunHead {
        status: http::StatusCode::OK,
        headers: http::HeaderMap::new(),
        length: Some(run as u64),
    }
}

/// Returns the bytes that the engine of a run writes from a position on. They depend on run and position, so
/// the test detects lost bytes, repeated bytes and bytes of another run.
fn text(run: usize, position: usize, length: usize) -> &'static [u8] {
    static RANDOM: OnceLock<Vec<u8>> = OnceLock::new();
    let random = RANDOM.get_or_init(|| {
        let mut random = fastrand::Rng::with_seed(0);
        let period: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
        period.repeat(2)
    });
    let start = (position + run * 977) % PERIOD;
    &random[start..start + length]
}

impl Facts {
    fn of(arrival: &Arrival) -> Self {
        let Arrival {
            key,
            party,
            request,
            ..
        } = *arrival;
        Self {
            key,
            party,
            request,
            written: 0,
            end: None,
            alone_since: None,
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let memory = [128 << 10, 256 << 10, 8 << 20][random.usize(..3)];
        let places = [1, 2, 8, usize::MAX][random.usize(..4)];
        Self {
            random,
            now: clock::epoch(),
            settings: RunSettings {
                window: WINDOW,
                memory,
            },
            places,
            registry: Arc::default(),
            engines: Vec::new(),
            clients: Vec::new(),
            runs: Vec::new(),
            latest: HashMap::new(),
            billed: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..20 => self.arrive(),
            20..45 => self.engine_writes(),
            45..75 => self.client_reads(),
            75..83 => self.client_leaves(),
            83..88 => self.engine_ends(),
            _ => self.time_passes(),
        }
        self.end_abandoned();
        self.check();
    }

    fn random_arrival(&mut self) -> Arrival {
        let tenant = self.random.u8(..2);
        let earlier = RunId::new(self.random.u64(..=self.runs.len() as u64));
        Arrival {
            key: RunKey::new(Digest::of(&[&[tenant]]), &[self.random.u8(..3)]),
            request: Digest::of(&[&[u8::from(self.random.u8(..8) == 0)]]),
            party: Party::new(Some(&tenant.to_string()), CLIENT),
            client: CLIENT,
            new_id: RunId::new(self.runs.len() as u64),
            had_events_of: (self.random.u8(..4) == 0).then_some(earlier),
            may_begin: self.random.u8(..8) > 0,
            places: self.places,
        }
    }

    fn arrive(&mut self) {
        let arrival = self.random_arrival();
        let Arrival {
            key,
            request,
            may_begin,
            had_events_of,
            ..
        } = arrival;
        let was_known = self.registry.is_known(&key);
        let known_id = was_known.then(|| RunId::new(self.latest[&key] as u64));
        let has_run = had_events_of.is_none() || had_events_of == known_id;
        let (reader, run) = match self.registry.enter(&arrival, &self.settings) {
            Entry::Begun(producer, reader) => {
                assert!(!was_known && may_begin && has_run, "one run for each key");
                let run = self.runs.len();
                self.latest.insert(key, run);
                self.runs.push(Facts::of(&arrival));
                let flag = Arc::default();
                self.engines.push(Engine {
                    producer,
                    run,
                    flag,
                    is_waiting: false,
                });
                (reader, run)
            }
            Entry::Attached(reader) => {
                assert!(was_known && has_run, "never the events of another run");
                let run = self.latest[&key];
                assert_eq!(Some(reader.run_id()), known_id);
                assert_eq!(self.runs[run].request, request, "never with another body");
                self.runs[run].alone_since = None;
                (reader, run)
            }
            Entry::OtherRequest => {
                return assert!(was_known && self.runs[self.latest[&key]].request != request);
            }
            Entry::UnknownEvent => return assert!(!has_run),
            Entry::TooManyReaders => {
                let run = self.latest[&key];
                let readers = self
                    .clients
                    .iter()
                    .filter(|client| client.run == run)
                    .count();
                return assert!(was_known && readers == run::MAX_READERS);
            }
            Entry::Unknown => return assert!(!was_known && !may_begin),
            Entry::OverLimit(limit) => {
                return assert!(!was_known && limit != RunOutcome::RunMemory);
            }
        };
        let (flag, is_waiting) = (Arc::default(), false);
        self.clients.push(Client {
            reader,
            run,
            position: 0,
            flag,
            is_waiting,
        });
    }

    fn engine_writes(&mut self) {
        let Some(index) = pick(&mut self.random, self.engines.len()) else {
            return;
        };
        let engine = &mut self.engines[index];
        let facts = &mut self.runs[engine.run];
        if facts.written == 0 {
            engine.producer.set_head(head_of(engine.run));
        }
        let waker = engine.flag.poll();
        let is_abandoned = engine.producer.poll_abandoned(&waker);
        engine.is_waiting = is_abandoned || engine.producer.poll_writable().is_pending();
        if engine.is_waiting {
            return;
        }
        let length = [1, 700, 5_000, 20_000][self.random.usize(..4)];
        engine
            .producer
            .write(text(engine.run, facts.written, length));
        facts.written += length;
    }

    fn engine_ends(&mut self) {
        let Some(index) = pick(&mut self.random, self.engines.len()) else {
            return;
        };
        let Engine { producer, run, .. } = self.engines.swap_remove(index);
        self.billed += 1;
        let end = match self.random.u8(..4) {
            0 => {
                // The producer is dropped as after a panic of its task.
                drop(producer);
                End::Broken
            }
            1 => {
                producer.end(End::Broken, false);
                End::Broken
            }
            2 => {
                producer.end(End::Whole, false);
                assert!(!self.is_kept(run), "a failed request is run again");
                End::Whole
            }
            _ => {
                producer.end(End::Whole, true);
                End::Whole
            }
        };
        self.runs[run].end = Some(end);
    }

    fn client_reads(&mut self) {
        let Some(index) = pick(&mut self.random, self.clients.len()) else {
            return;
        };
        for _ in 0..self.random.u8(1..6) {
            read(&mut self.clients[index], &self.runs);
        }
    }

    fn client_leaves(&mut self) {
        let Some(index) = pick(&mut self.random, self.clients.len()) else {
            return;
        };
        let run = self.clients[index].run;
        let was_open = self.is_kept(run) && self.runs[run].end.is_none();
        let party = self.runs[run].party;
        let of_party = self
            .absent_runs()
            .filter(|other| self.runs[*other].party == party)
            .count();
        let of_all = self.absent_runs().count();
        drop(self.clients.swap_remove(index));
        if self.clients.iter().any(|other| other.run == run) {
            return;
        }
        self.runs[run].alone_since = Some(self.now);
        if was_open {
            let has_place = of_party < (self.places / 4).max(1) && of_all < self.places / 2;
            assert_eq!(
                self.is_kept(run),
                has_place,
                "{of_party} {of_all} {}",
                self.places
            );
        }
    }

    /// The open runs that continue without a client.
    fn absent_runs(&self) -> impl Iterator<Item = usize> {
        let has_client = |run: usize| self.clients.iter().any(|client| client.run == run);
        let is_absent = move |run: &usize| {
            self.runs[*run].end.is_none() && self.is_kept(*run) && !has_client(*run)
        };
        (0..self.runs.len()).filter(is_absent)
    }

    fn time_passes(&mut self) {
        self.now += WINDOW * self.random.u32(1..30) / 20;
        self.registry.sweep(self.now);
    }

    /// Ends the runs whose response no client can get any more, as the runs' tasks do.
    fn end_abandoned(&mut self) {
        for index in (0..self.engines.len()).rev() {
            let engine = &mut self.engines[index];
            let (run, waker) = (engine.run, engine.flag.poll());
            let is_abandoned = engine.producer.poll_abandoned(&waker);
            engine.is_waiting = engine.producer.poll_writable().is_pending();
            if is_abandoned {
                assert!(
                    !self.clients.iter().any(|client| client.run == run),
                    "it has a client"
                );
                let note = self.engines[index].producer.note().get();
                let alone = self.now - self.runs[run].alone_since.unwrap();
                assert!(
                    note != RunOutcome::Abandoned || alone >= WINDOW,
                    "{alone:?}"
                );
                assert!(!self.is_kept(run));
                self.runs[run].end = Some(End::Broken);
                self.billed += 1;
                drop(self.engines.swap_remove(index));
            }
        }
    }

    fn is_kept(&self, run: usize) -> bool {
        let facts = &self.runs[run];
        self.latest[&facts.key] == run && self.registry.is_known(&facts.key)
    }

    fn check(&mut self) {
        assert_eq!(
            self.billed + self.engines.len(),
            self.runs.len(),
            "each run is billed once"
        );
        for (key, run) in &self.latest {
            let is_open = self.runs[*run].end.is_none();
            let open = self
                .engines
                .iter()
                .filter(|engine| engine.run == *run)
                .count();
            assert_eq!(open, usize::from(is_open));
            assert!(!self.registry.is_known(key) || self.runs[*run].end != Some(End::Broken));
        }
        // No task may wait for an event that has already happened.
        if let Some(index) = pick(&mut self.random, self.clients.len()) {
            let client = &mut self.clients[index];
            if client.is_waiting && !client.flag.0.load(Ordering::Relaxed) {
                read(client, &self.runs);
                assert!(client.is_waiting, "a client was not woken");
            }
        }
        for engine in &mut self.engines {
            if engine.is_waiting && !engine.flag.0.load(Ordering::Relaxed) {
                assert!(
                    engine.producer.poll_writable().is_pending(),
                    "a run was not woken"
                );
            }
        }
        assert_eq!(self.registry.absent_of(CLIENT), self.absent_runs().count());
        let passing = self.engines.len() * (24 << 10);
        assert!(self.registry.used_bytes() <= self.settings.memory + passing);
    }

    /// Lets all clients leave, and checks that no run and no memory remains.
    fn finish(mut self) {
        while let Some(client) = self.clients.pop() {
            self.runs[client.run].alone_since.get_or_insert(self.now);
        }
        self.registry.sweep(self.now);
        self.now += WINDOW;
        self.registry.sweep(self.now);
        self.end_abandoned();
        assert!(self.engines.is_empty(), "a run without a client goes on");
        assert_eq!(self.billed, self.runs.len());
        self.registry.sweep(self.now);
        assert_eq!(self.registry.used_bytes(), 0);
        assert_eq!(self.registry.absent.get(), 0);
        let table = self.registry.lock();
        assert!(table.runs.is_empty() && table.parties.is_empty() && table.networks.is_empty());
    }
}

impl Flag {
    fn poll(self: &Arc<Self>) -> Waker {
        self.0.store(false, Ordering::Relaxed);
        self.clone().into()
    }
}

/// Lets a client read once, and compares the bytes with the output of its run's engine.
fn read(client: &mut Client, runs: &[Facts]) {
    let waker = client.flag.poll();
    let facts = &runs[client.run];
    if client.position == 0 {
        match client.reader.poll_head(&waker) {
            Poll::Ready(Some(head)) => assert_eq!(head.length, Some(client.run as u64)),
            Poll::Ready(None) => assert!(facts.end.is_some() && facts.written == 0),
            Poll::Pending => {
                client.is_waiting = true;
                return;
            }
        }
    }
    let chunk = client.reader.poll_chunk(&waker);
    client.is_waiting = chunk.is_pending();
    match chunk {
        Poll::Pending => assert!(facts.end.is_none() && client.position == facts.written),
        Poll::Ready(Chunk::Data(data)) => {
            let expected = text(client.run, client.position, data.len());
            assert!(*data == *expected, "other bytes at {}", client.position);
            client.position += data.len();
            assert!(client.position <= facts.written);
        }
        Poll::Ready(Chunk::End(end)) => {
            assert_eq!(Some(end), facts.end);
            assert_eq!(client.position, facts.written, "no byte is lost");
        }
    }
}

fn pick(random: &mut fastrand::Rng, length: usize) -> Option<usize> {
    (length > 0).then(|| random.usize(..length))
}

#[test]
fn readers_get_bytes_once_and_runs_end() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(5_000),
    };
    for seed in seeds {
        let world = std::panic::AssertUnwindSafe(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.finish();
        });
        if let Err(panic) = std::panic::catch_unwind(world) {
            println!("SEED={seed} repeats this history");
            std::panic::resume_unwind(panic);
        }
    }
}
