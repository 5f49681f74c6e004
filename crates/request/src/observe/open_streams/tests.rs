//! Tests of the stream sweep at fixed instants.

use super::*;
use crate::record::{BackendCondition, ModelLabel};
use http::HeaderMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::RequestId;

const MIN_GAP: Duration = Duration::from_millis(100);
const ABORT_AFTER: Duration = Duration::from_secs(1);
const OUTPUT_GAP: Duration = Duration::from_millis(590);

/// A backend that records what exchanges report to it.
#[derive(Default)]
struct RecordingBackend {
    usual_gap: Option<f64>,
    is_down: AtomicBool,
    gaps: Mutex<Vec<Duration>>,
    /// Number of streams that are stalled, and of stalls so far.
    counts: Mutex<[usize; 2]>,
}

impl BackendMonitor for RecordingBackend {
    fn condition(&self, _now: Instant) -> BackendCondition {
        BackendCondition {
            running: Some(7),
            ..BackendCondition::default()
        }
    }

    fn on_gap(&self, gap: Duration, _: Instant) {
        self.gaps.lock().unwrap().push(gap);
    }

    fn usual_gap(&self) -> Option<f64> {
        self.usual_gap
    }

    fn is_declared_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    fn on_stall(&self, is_stalled: bool) {
        let mut counts = self.counts.lock().unwrap();
        if is_stalled {
            *counts = counts.map(|count| count + 1);
        } else {
            counts[0] -= 1;
        }
    }
}

/// A waker that counts how often it was woken.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn stream_info(accepted: Instant) -> StreamInfo {
    StreamInfo {
        request_id: RequestId::from_headers(&HeaderMap::new(), 1),
        model: ModelLabel::Known("tiny".into()),
        backend: Some(BackendId::new("vllm-0")),
        caller: None,
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        prompt_tokens: 0,
        accepted,
    }
}

fn is_cut(entry: &StreamEntry) -> bool {
    entry.is_cut(Waker::noop())
}

struct StreamFixture {
    epoch: Instant,
    registry: Arc<ExchangeRegistry>,
    backend: Arc<RecordingBackend>,
    in_flight: InFlightGuard,
}

/// A registry without streams. `usual_gap` is the p99 of the backend's output gaps, in seconds.
fn fixture(usual_gap: Option<f64>, abort_after: Option<Duration>) -> StreamFixture {
    let epoch = clock::now();
    let stalls = StallLimits {
        min_gap: MIN_GAP,
        abort_after,
    };
    let registry = ExchangeRegistry::new(
        ObservationSettings {
            stalls,
            ..ObservationSettings::default()
        },
        epoch,
    );
    let backend = Arc::new(RecordingBackend {
        usual_gap,
        ..RecordingBackend::default()
    });
    let in_flight = registry.enter(epoch);
    StreamFixture {
        epoch,
        registry,
        backend,
        in_flight,
    }
}

impl StreamFixture {
    fn stream(&self) -> StreamEntry {
        self.open_stream_with(StreamPolicy::default())
    }

    fn open_stream_with(&self, terms: StreamPolicy) -> StreamEntry {
        let info = stream_info(self.epoch);
        self.in_flight
            .stream(self.backend.clone(), info, terms, None, self.epoch)
    }

    fn at(&self, millis: u64) -> Instant {
        self.epoch + Duration::from_millis(millis)
    }

    fn sweep(&self, millis: u64) -> [usize; 2] {
        self.registry.sweep(self.at(millis));
        *self.backend.counts.lock().unwrap()
    }
}

#[test]
fn a_stall_is_reported_once_until_output() {
    let fixture = fixture(None, None);
    let entry = fixture.stream();
    assert_eq!(entry.on_output(fixture.at(10), None), None);
    assert_eq!(fixture.sweep(109), [0, 0]);
    assert_eq!(fixture.sweep(110), [1, 1]);
    assert_eq!(fixture.sweep(500), [1, 1], "the same stall");
    let stall = entry.on_output(fixture.at(600), Some(OUTPUT_GAP)).unwrap();
    assert_eq!(
        (stall.last_output_at, stall.detected_at),
        (fixture.at(10), fixture.at(110))
    );
    assert_eq!(
        (stall.ended_at, stall.condition.running),
        (Some(fixture.at(600)), Some(7))
    );
    assert_eq!(*fixture.backend.gaps.lock().unwrap(), [OUTPUT_GAP]);
    assert_eq!(fixture.sweep(699), [0, 1]);
    assert_eq!(fixture.sweep(700), [1, 2], "another stall");
}

#[test]
fn the_threshold_follows_p99_and_min_gap() {
    for (usual_gap, threshold) in [(0.05, 500), (0.001, 100), (f64::NAN, 100), (-1.0, 100)] {
        let fixture = fixture(Some(usual_gap), None);
        let entry = fixture.stream();
        entry.on_output(fixture.at(1), None);
        assert_eq!(fixture.sweep(threshold), [0, 0], "{usual_gap}");
        assert_eq!(fixture.sweep(threshold + 1), [1, 1], "{usual_gap}");
    }
}

#[test]
fn stalls_need_output_before_and_after() {
    let fixture = fixture(None, Some(ABORT_AFTER));
    let entry = fixture.stream();
    assert_eq!(fixture.sweep(60_000), [0, 0]);
    entry.on_output(fixture.at(60_000), None);
    assert_eq!(entry.on_end(fixture.at(60_001)), None);
    assert_eq!(fixture.sweep(90_000), [0, 0]);
    assert!(!is_cut(&entry));
    assert_eq!(fixture.sweep(90_001), [0, 0]);
    assert!(is_cut(&entry), "the body does not end");
}

#[test]
fn unread_streams_do_not_stall() {
    let fixture = fixture(None, Some(ABORT_AFTER));
    let entry = fixture.stream();
    entry.on_output(fixture.at(10), None);
    entry.set_waits_for_backend(false);
    assert_eq!(fixture.sweep(60_000), [0, 0]);
    assert!(!is_cut(&entry));
    entry.set_waits_for_backend(true);
    assert_eq!(fixture.sweep(60_000), [1, 1]);
}

#[test]
fn silent_streams_are_aborted_and_woken() {
    let fixture = fixture(None, Some(ABORT_AFTER));
    let (silent, active) = (fixture.stream(), fixture.stream());
    let woken = Arc::new(WakeCounter::default());
    silent.on_output(fixture.at(10), None);
    active.on_output(fixture.at(900), None);
    assert!(!silent.is_cut(&woken.clone().into()));
    assert_eq!(fixture.sweep(1_009), [2, 2]);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    fixture.registry.sweep(fixture.at(1_010));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(is_cut(&silent));
    assert!(!is_cut(&active));
}

#[test]
fn a_dropped_stream_is_no_longer_stalled() {
    let fixture = fixture(None, None);
    let (first, second) = (fixture.stream(), fixture.stream());
    first.on_output(fixture.at(10), None);
    second.on_output(fixture.at(10), None);
    assert_eq!(fixture.sweep(200), [2, 2]);
    drop(first);
    assert_eq!(fixture.sweep(300), [1, 2]);
    let stall = second.on_end(fixture.at(400)).unwrap();
    assert_eq!(stall.ended_at, Some(fixture.at(400)));
    drop(second);
    assert_eq!(fixture.sweep(500), [0, 2]);
}

#[test]
fn exchanges_are_open_until_the_guard_drops() {
    let fixture = fixture(None, None);
    assert_eq!(fixture.registry.open(), 1);
    let more = [10, 20].map(|millis| fixture.registry.enter(fixture.at(millis)));
    assert_eq!(fixture.registry.open(), 3);
    assert_eq!(fixture.registry.oldest(), Some(fixture.at(0)));
    drop(more);
    assert_eq!(fixture.registry.open(), 1);
    fixture.registry.begin_shutdown();
    assert!(fixture.in_flight.is_cutting());
}

#[test]
fn a_late_first_output_aborts_the_stream() {
    let fixture = fixture(None, None);
    let terms = StreamPolicy {
        first_output_by: Some(fixture.at(500)),
        ..StreamPolicy::default()
    };
    let (overdue, on_time) = (
        fixture.open_stream_with(terms),
        fixture.open_stream_with(terms),
    );
    on_time.on_output(fixture.at(400), None);
    fixture.sweep(499);
    assert!(!is_cut(&overdue));
    fixture.sweep(501);
    assert!(is_cut(&overdue) && !is_cut(&on_time));
}

/// The loss of a stream that a sweep after `millis` finds.
fn loss_at(fixture: &StreamFixture, entry: &StreamEntry, millis: u64) -> Option<Loss> {
    fixture.sweep(millis);
    entry.take_loss(fixture.at(millis))
}

#[test]
fn silent_streams_of_lost_backends_move_then_end() {
    let fixture = fixture(None, None);
    let (fixed, movable) = (fixture.stream(), fixture.stream());
    movable.set_movable();
    assert_eq!(
        loss_at(&fixture, &movable, 60_000),
        None,
        "the backend is up"
    );
    for entry in [&fixed, &movable] {
        entry.on_bytes(fixture.at(60_000));
        entry.set_waits_for_backend(true);
    }
    fixture.backend.is_down.store(true, Ordering::Relaxed);
    assert_eq!(loss_at(&fixture, &movable, 64_999), None);
    assert_eq!(loss_at(&fixture, &movable, 65_000), Some(Loss::Moves));
    assert_eq!(
        loss_at(&fixture, &movable, 74_999),
        None,
        "no other backend continued it"
    );
    assert_eq!(loss_at(&fixture, &fixed, 74_999), None);
    assert_eq!(loss_at(&fixture, &movable, 75_000), Some(Loss::Ends));
    assert_eq!(loss_at(&fixture, &fixed, 75_000), Some(Loss::Ends));
}

#[test]
fn bytes_or_slow_clients_prevent_a_loss() {
    let fixture = fixture(None, None);
    let entry = fixture.stream();
    fixture.backend.is_down.store(true, Ordering::Relaxed);
    entry.on_bytes(fixture.at(10_000));
    assert_eq!(
        loss_at(&fixture, &entry, 60_000),
        None,
        "its client does not read"
    );
    entry.set_waits_for_backend(true);
    fixture.sweep(60_000);
    entry.on_bytes(fixture.at(60_001));
    entry.set_waits_for_backend(true);
    let loss = entry.take_loss(fixture.at(60_002));
    assert_eq!(loss, Some(Loss::Over), "a byte came after the sweep");
    assert!(!is_cut(&entry));
    fixture.backend.is_down.store(false, Ordering::Relaxed);
    assert_eq!(
        loss_at(&fixture, &entry, 90_000),
        None,
        "the backend is up again"
    );
}

#[test]
fn an_idle_timeout_overrides_abort_after() {
    let fixture = fixture(None, Some(2 * MIN_GAP));
    let terms = StreamPolicy {
        idle: Some(MIN_GAP / 2),
        ..StreamPolicy::default()
    };
    let (with_idle_timeout, default) = (fixture.open_stream_with(terms), fixture.stream());
    for entry in [&with_idle_timeout, &default] {
        entry.on_output(fixture.at(10), None);
    }
    fixture.sweep(10 + MIN_GAP.as_millis() as u64);
    assert!(is_cut(&with_idle_timeout) && !is_cut(&default));
}

#[test]
fn comments_are_due_once_per_silent_interval() {
    let fixture = fixture(None, None);
    let keep_alive = Some(Duration::from_secs(15));
    let rules = StreamRules {
        keep_alive,
        ..StreamRules::default()
    };
    let entry = fixture.open_stream_with(StreamPolicy {
        rules,
        ..StreamPolicy::default()
    });
    let is_keep_alive_due = |millis| {
        fixture.sweep(millis);
        entry.take_keep_alive(fixture.at(millis))
    };
    entry.on_bytes(fixture.at(1_000));
    entry.set_waits_for_backend(true);
    assert_eq!(
        [15_900, 16_000, 16_100, 30_900, 31_000].map(is_keep_alive_due),
        [false, true, false, false, true]
    );
    entry.set_waits_for_backend(false);
    assert!(!is_keep_alive_due(60_000), "the client does not read");
}

#[test]
fn snapshots_have_phases_and_silences() {
    let fixture = fixture(None, None);
    let [_prefilling, decoding, write_blocked, stalled, ending] =
        [(); 5].map(|()| fixture.stream());
    for entry in [&decoding, &write_blocked, &stalled, &ending] {
        entry.on_bytes(fixture.at(10));
        entry.on_output(fixture.at(10), None);
        entry.set_progress(3, true);
    }
    stalled.set_waits_for_backend(true);
    fixture.sweep(1_500);
    decoding.on_output(fixture.at(1_900), None);
    decoding.set_progress(7, false);
    ending.on_end(fixture.at(1_900));
    let snapshot = fixture.registry.snapshot(4, fixture.at(2_000));
    let phases: Vec<_> = snapshot
        .oldest
        .iter()
        .map(|stream| (stream.phase, stream.tokens))
        .collect();
    let expected = [
        (StreamPhase::NoOutput, 0),
        (StreamPhase::Decode, 7),
        (StreamPhase::WriteStalled, 3),
        (StreamPhase::Stalled, 3),
    ];
    assert_eq!(phases, expected);
    assert_eq!(
        (
            snapshot.count,
            snapshot.tokens,
            snapshot.phases[&StreamPhase::Closing]
        ),
        (5, 16, 1)
    );
    assert_eq!([snapshot.late_outputs, snapshot.late_answers], [0, 0]);
    let later = fixture.registry.snapshot(0, fixture.at(60_000));
    assert_eq!(
        [later.late_outputs, later.late_answers],
        [1, 2],
        "reasoning: write_blocked, stalled"
    );
    assert_eq!(
        snapshot.oldest[1].since_last_output,
        Some(Duration::from_millis(100))
    );
    assert_eq!(snapshot.oldest[0].since_last_output, None);
    drop(ending);
    assert_eq!(fixture.registry.snapshot(4, fixture.at(2_000)).count, 4);
}
