//! Sweeps at moments that the tests choose.

use super::*;
use crate::clock;
use crate::headers::{RequestId, X_REQUEST_ID};
use crate::observe::Phase;
use crate::record::{BackendId, ModelLabel};
use http::{HeaderMap, HeaderValue};
use std::task::Wake;
use std::task::Waker;

const FLOOR: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(1);
const GAP: Duration = Duration::from_millis(590);

/// A replica that remembers what it was told.
#[derive(Default)]
struct Told {
    usual_gap: Option<f64>,
    gaps: Mutex<Vec<Duration>>,
    silent: AtomicUsize,
    silences: AtomicUsize,
}

impl Replica for Told {
    fn condition(&self, _now: Instant) -> Condition {
        Condition { running: Some(7), ..Condition::default() }
    }

    fn recent_times(&self) -> RecentTimes {
        RecentTimes::default()
    }

    fn on_gap(&self, gap: Duration) {
        self.gaps.lock().unwrap().push(gap);
    }

    fn usual_gap(&self) -> Option<f64> {
        self.usual_gap
    }

    fn on_stall(&self, is_silent: bool) {
        if is_silent {
            self.silences.fetch_add(1, Ordering::Relaxed);
            self.silent.fetch_add(1, Ordering::Relaxed);
        } else {
            self.silent.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Told {
    /// Streams that are silent now, and silences so far.
    fn counts(&self) -> [usize; 2] {
        [self.silent.load(Ordering::Relaxed), self.silences.load(Ordering::Relaxed)]
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn subject(request_id: &'static str, accepted: Instant) -> Subject {
    let id = HeaderValue::from_static(request_id);
    Subject {
        request_id: RequestId::of(&HeaderMap::from_iter([(X_REQUEST_ID, id)]), 1),
        model: ModelLabel::known("tiny".into()),
        backend: Some(BackendId::new("vllm-0")),
        caller: None,
        accepted,
    }
}

struct Scene {
    epoch: Instant,
    live: Arc<Live>,
    replica: Arc<Told>,
    presence: Presence,
}

/// Nothing is open yet. The replica's gaps are usually this long, in seconds.
fn scene(usual_gap: Option<f64>, abort_after: Option<Duration>) -> Scene {
    let epoch = clock::now();
    let stalls = StallLimits { factor: 10.0, floor: FLOOR, abort_after };
    let live = Live::new(Settings { stalls, ..Settings::default() }, epoch);
    let replica = Arc::new(Told { usual_gap, ..Told::default() });
    let presence = live.enter();
    Scene { epoch, live, replica, presence }
}

impl Scene {
    fn stream(&self) -> Place {
        self.stream_on(Terms::default())
    }

    fn stream_on(&self, terms: Terms) -> Place {
        let subject = subject("r-1", self.epoch);
        self.presence.stream(self.replica.clone(), subject, terms, self.epoch)
    }

    fn at(&self, millis: u64) -> Instant {
        self.epoch + Duration::from_millis(millis)
    }

    fn sweep(&self, millis: u64) -> [usize; 2] {
        self.live.sweep(self.at(millis));
        self.replica.counts()
    }
}

#[test]
fn a_silence_of_the_floor_is_told_once_and_ends_with_the_next_output() {
    let scene = scene(None, None);
    let place = scene.stream();
    assert_eq!(place.pulse().on_output(scene.at(10), None), None);
    assert_eq!(scene.sweep(109), [0, 0]);
    assert_eq!(scene.sweep(110), [1, 1]);
    assert_eq!(scene.sweep(500), [1, 1], "the same silence");
    let stall = place.pulse().on_output(scene.at(600), Some(GAP)).unwrap();
    assert_eq!((stall.since, stall.seen), (scene.at(10), scene.at(110)));
    assert_eq!((stall.until, stall.condition.running), (Some(scene.at(600)), Some(7)));
    assert_eq!(*scene.replica.gaps.lock().unwrap(), [GAP]);
    assert_eq!(scene.sweep(699), [0, 1]);
    assert_eq!(scene.sweep(700), [1, 2], "another one");
}

#[test]
fn where_gaps_are_usually_long_a_silence_must_be_longer() {
    for (usual_gap, threshold) in [(0.05, 500), (0.001, 100), (f64::NAN, 100), (-1.0, 100)] {
        let scene = scene(Some(usual_gap), None);
        let place = scene.stream();
        place.pulse().on_output(scene.at(1), None);
        assert_eq!(scene.sweep(threshold), [0, 0], "{usual_gap}");
        assert_eq!(scene.sweep(threshold + 1), [1, 1], "{usual_gap}");
    }
}

#[test]
fn before_the_first_output_and_after_the_end_nobody_is_silent() {
    let scene = scene(None, Some(LIMIT));
    let place = scene.stream();
    assert_eq!(scene.sweep(60_000), [0, 0]);
    place.pulse().on_output(scene.at(60_000), None);
    assert_eq!(place.pulse().on_end(scene.at(60_001)), None);
    assert_eq!(scene.sweep(120_000), [0, 0]);
    assert!(!place.pulse().is_cut(Waker::noop()));
}

#[test]
fn a_stream_that_its_client_does_not_take_is_not_silent() {
    let scene = scene(None, Some(LIMIT));
    let place = scene.stream();
    place.pulse().on_output(scene.at(10), None);
    place.pulse().wait_for_replica(false);
    assert_eq!(scene.sweep(60_000), [0, 0]);
    assert!(!place.pulse().is_cut(Waker::noop()));
    place.pulse().wait_for_replica(true);
    assert_eq!(scene.sweep(60_000), [1, 1]);
}

#[test]
fn a_silence_that_lasts_too_long_cuts_the_stream_and_wakes_it() {
    let scene = scene(None, Some(LIMIT));
    let (silent, lively) = (scene.stream(), scene.stream());
    let woken = Arc::new(Woken::default());
    silent.pulse().on_output(scene.at(10), None);
    lively.pulse().on_output(scene.at(900), None);
    assert!(!silent.pulse().is_cut(&woken.clone().into()));
    assert_eq!(scene.sweep(1_009), [2, 2]);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    scene.live.sweep(scene.at(1_010));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(silent.pulse().is_cut(Waker::noop()));
    assert!(!lively.pulse().is_cut(Waker::noop()));
}

#[test]
fn a_stream_that_is_dropped_is_silent_no_more() {
    let scene = scene(None, None);
    let (first, second) = (scene.stream(), scene.stream());
    first.pulse().on_output(scene.at(10), None);
    second.pulse().on_output(scene.at(10), None);
    assert_eq!(scene.sweep(200), [2, 2]);
    drop(first);
    assert_eq!(scene.sweep(300), [1, 2]);
    let stall = second.pulse().on_end(scene.at(400)).unwrap();
    assert_eq!(stall.until, Some(scene.at(400)));
    drop(second);
    assert_eq!(scene.sweep(500), [0, 2]);
}

#[test]
fn an_exchange_is_open_as_long_as_its_presence() {
    let scene = scene(None, None);
    assert_eq!(scene.live.open(), 1);
    let more = [scene.live.enter(), scene.live.enter()];
    assert_eq!(scene.live.open(), 3);
    drop(more);
    assert_eq!(scene.live.open(), 1);
    scene.live.cut_all();
    assert!(scene.presence.is_cutting());
}

fn is_cut(place: &Place) -> bool {
    place.pulse().is_cut(Waker::noop())
}

#[test]
fn a_stream_is_cut_when_its_first_output_is_overdue_and_not_after_it_came() {
    let scene = scene(None, None);
    let terms = Terms { first_output_by: Some(scene.at(500)), ..Terms::default() };
    let (late, fine) = (scene.stream_on(terms), scene.stream_on(terms));
    fine.pulse().on_output(scene.at(400), None);
    scene.sweep(499);
    assert!(!is_cut(&late));
    scene.sweep(501);
    assert!(is_cut(&late) && !is_cut(&fine));
}

#[test]
fn the_terms_of_a_stream_win_over_the_general_limit_of_a_silence() {
    let scene = scene(None, Some(2 * FLOOR));
    let terms = Terms { idle: Some(FLOOR / 2), ..Terms::default() };
    let (strict, usual) = (scene.stream_on(terms), scene.stream());
    for place in [&strict, &usual] {
        place.pulse().on_output(scene.at(10), None);
    }
    scene.sweep(10 + FLOOR.as_millis() as u64);
    assert!(is_cut(&strict) && !is_cut(&usual));
}

#[test]
fn a_comment_is_wanted_once_for_each_time_of_silence() {
    let scene = scene(None, None);
    let keep_alive = Some(Duration::from_secs(15));
    let rules = StreamRules { keep_alive, ..StreamRules::default() };
    let place = scene.stream_on(Terms { rules, ..Terms::default() });
    let wanted = |millis| {
        scene.sweep(millis);
        place.pulse().take_comment(scene.at(millis))
    };
    place.pulse().on_bytes(scene.at(1_000));
    place.pulse().wait_for_replica(true);
    assert_eq!(
        [15_900, 16_000, 16_100, 30_900, 31_000].map(wanted),
        [false, true, false, false, true]
    );
    place.pulse().wait_for_replica(false);
    assert!(!wanted(60_000), "it is the client that does not take what came");
}

#[test]
fn a_glance_tells_what_each_stream_does_and_how_long_it_has_been_silent() {
    let scene = scene(None, None);
    let [_fresh, lively, held, stalled, over] = [(); 5].map(|()| scene.stream());
    for place in [&lively, &held, &stalled, &over] {
        place.pulse().on_bytes(scene.at(10));
        place.pulse().on_output(scene.at(10), None);
        place.pulse().count(3);
    }
    stalled.pulse().wait_for_replica(true);
    scene.sweep(1_500);
    lively.pulse().on_output(scene.at(1_900), None);
    lively.pulse().count(7);
    over.pulse().on_end(scene.at(1_900));
    let glance = scene.live.glance(4, scene.at(2_000));
    let phases: Vec<_> = glance.oldest.iter().map(|stream| (stream.phase, stream.tokens)).collect();
    let expected = [(Phase::Prefill, 0), (Phase::Decode, 7), (Phase::Held, 3), (Phase::Stalled, 3)];
    assert_eq!(phases, expected);
    assert_eq!((glance.count, glance.tokens, glance.phases[&Phase::Ending]), (5, 16, 1));
    assert_eq!(glance.oldest[1].silence, Some(Duration::from_millis(100)));
    assert_eq!(glance.oldest[0].silence, None);
    drop(over);
    assert_eq!(scene.live.glance(4, scene.at(2_000)).count, 4);
}
