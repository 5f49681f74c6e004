//! The laboratory as a whole: small worlds whose outcome is known.

use super::experiment::Experiment;
use super::fleet::{Group, usual};
use super::router::RouterKind;
use super::score::{Figures, Objectives, Score};
use super::trace::{self, Job};
use super::world::{Setup, World};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::routing::{Policy, PolicyKind, Prompt};

const TRACE: &str = "../../tests/traces/conversation.jsonl";

/// The shipped trace.
fn jobs() -> Vec<Job> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TRACE);
    trace::read(&fs::read(path).unwrap()[..]).unwrap()
}

fn setup(replicas: &str, speed: f64) -> Setup {
    let group: Group = replicas.parse().unwrap();
    Setup {
        frozen: None,
        specs: vec![group.spec; group.count],
        speed,
        spread: Duration::from_secs(3),
        scrape: Duration::from_millis(100),
        gateways: 1,
        policy: Policy::default(),
        epoch: clock::now(),
    }
}

const KV_AWARE: RouterKind = RouterKind::Shipped(PolicyKind::KvAware);
const ROUND_ROBIN: RouterKind = RouterKind::Shipped(PolicyKind::RoundRobin);
const OBJECTIVES: Objectives = Objectives { ttft: 2.0, tpot: 0.1 };

fn figures(setup: &Setup, jobs: &[Job], kind: RouterKind, seed: u64) -> Figures {
    World::new(setup, jobs, kind, seed).run(|_| ()).figures(&OBJECTIVES)
}

#[test]
fn a_seed_gives_the_same_world_each_time_and_another_one_does_not() {
    let (jobs, setup) = (&jobs()[..300], setup("4", 1.5));
    for kind in RouterKind::all() {
        let first = figures(&setup, jobs, kind, 1);
        assert_eq!(first, figures(&setup, jobs, kind, 1), "{}", kind.name());
        assert_ne!(first, figures(&setup, jobs, kind, 2), "{}", kind.name());
    }
}

#[test]
fn every_request_is_served_once_with_all_its_tokens() {
    let (jobs, setup) = (jobs(), setup("3:kv=200000", 2.0));
    for kind in RouterKind::all() {
        let score = World::new(&setup, &jobs, kind, 1).run(|_| ());
        let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.map(u64::from).sum::<u64>();
        assert_eq!(score.served.len(), jobs.len(), "{}", kind.name());
        assert_eq!(
            sum(&mut score.served.iter().map(|served| served.output)),
            sum(&mut jobs.iter().map(|job| job.output_tokens)),
        );
        assert!(score.served.iter().all(|served| served.cached < served.prompt));
    }
}

#[test]
fn a_request_that_fits_nowhere_is_not_served_and_nothing_waits_for_it() {
    let jobs = jobs();
    let small = setup("2:kv=20000", 0.2);
    let score = World::new(&small, &jobs, KV_AWARE, 1).run(|_| ());
    let fits = |job: &&Job| job.prompt_tokens + job.output_tokens <= small.specs[0].capacity();
    assert_eq!(score.served.len(), jobs.iter().filter(fits).count());
    assert!(score.served.len() < jobs.len());
}

#[test]
fn a_client_that_leaves_is_served_as_far_as_it_stayed() {
    let mut jobs = jobs();
    for job in &mut jobs {
        job.left_after = Some(1);
    }
    let score = World::new(&setup("4", 1.0), &jobs, KV_AWARE, 1).run(|_| ());
    assert_eq!(score.served.len(), jobs.len());
    assert!(score.served.iter().all(|served| served.output == 1));
}

#[test]
fn predicting_the_first_token_serves_more_of_the_shipped_trace_than_taking_turns() {
    let (jobs, setup) = (jobs(), setup("4", 1.6));
    let (aware, turns) =
        (figures(&setup, &jobs, KV_AWARE, 1), figures(&setup, &jobs, ROUND_ROBIN, 1));
    assert!(aware.goodput > 1.2 * turns.goodput, "{aware:?} {turns:?}");
    assert!(aware.cached > turns.cached && aware.ttft_p99 < turns.ttft_p99);
}

#[test]
fn a_replica_that_is_four_times_slower_gets_only_what_it_can_serve() {
    let jobs = jobs();
    let mut setup = setup("4", 1.2);
    setup.specs[0].prefill_token = usual().prefill_token * 4;
    let aware = figures(&setup, &jobs, KV_AWARE, 1);
    let turns = figures(&setup, &jobs, ROUND_ROBIN, 1);
    assert!(aware.goodput > 1.2 * turns.goodput, "{aware:?} {turns:?}");
    assert!(aware.ttft_p99 < turns.ttft_p99, "{aware:?} {turns:?}");
}

#[test]
fn the_load_at_which_turns_serve_half_is_found() {
    let jobs = &jobs()[..300];
    let experiment = Experiment { setup: setup("4", 1.0), jobs, objectives: OBJECTIVES, seeds: 2 };
    let speed = experiment.calibrate(ROUND_ROBIN, 0.5, &|| ());
    let found = figures(&Setup { speed, ..experiment.setup.clone() }, jobs, ROUND_ROBIN, 1);
    assert!((found.goodput - 0.5).abs() < 0.02, "{speed} {found:?}");
    let outcomes = experiment.run(&[ROUND_ROBIN, KV_AWARE], &|| ());
    assert_eq!(outcomes[1].policy, "kv_aware");
    assert_eq!(outcomes[0].goodputs.len(), 2);
    assert_eq!(
        outcomes[0].goodputs[0].to_bits(),
        figures(&experiment.setup, jobs, ROUND_ROBIN, 1).goodput.to_bits()
    );
}

/// A chat of 30 tokens that is sent then.
fn short(at: Duration, output_tokens: u32) -> Job {
    Job {
        at,
        prompt_tokens: 30,
        output_tokens,
        prompt: Prompt { bytes: 120, ..Prompt::default() },
        session: None,
        left_after: None,
    }
}

/// Requests that were sent to the second replica in this time.
fn sent(score: &Score, from: f64, to: f64) -> usize {
    let is_one = |(at, replica): &&(f64, usize)| *replica == 1 && (from..to).contains(at);
    score.placements.iter().filter(is_one).count()
}

/// Two replicas of these kinds.
fn pair(first: &str, second: &str) -> Setup {
    let specs = [first, second].map(|text| text.parse::<Group>().unwrap().spec).to_vec();
    Setup { specs, spread: Duration::ZERO, ..setup("2", 1.0) }
}

#[test]
fn a_frozen_engine_gets_two_more_requests_at_most_and_its_share_again_when_it_goes_on() {
    // Two a second. The second engine is faster, so it gets most; it freezes for ten seconds after a
    // minute.
    let jobs: Vec<Job> = (0..600).map(|n| short(n * Duration::from_millis(500), 20)).collect();
    let frozen = Some((1, Duration::from_mins(1)..Duration::from_secs(70)));
    let setup = Setup { frozen, ..pair("1:step=60", "1:step=20") };
    let score = World::new(&setup, &jobs, KV_AWARE, 1).run(|_| ());
    assert!(sent(&score, 0.0, 60.0) > 60, "{}", sent(&score, 0.0, 60.0));
    let during = sent(&score, 60.0, 70.0);
    assert!(during <= 3, "{during}: the one that became overdue, and two more");
    let after = sent(&score, 70.0, 130.0);
    assert!(after > 20, "{after}");
}

#[test]
fn bursts_are_split_evenly_over_slots_that_are_known_whoever_is_faster() {
    // 40 at once each 20 s, over two engines of 16 sequences, of which one is twice as fast.
    let at = |number: u32| number / 40 * Duration::from_secs(20);
    let length = |number: u32| 60 + number * 37 % 80;
    let jobs: Vec<Job> = (0..800).map(|number| short(at(number), length(number))).collect();
    let setup = pair("1:seqs=16", "1:seqs=16,step=20");
    let score = World::new(&setup, &jobs, KV_AWARE, 1).run(|_| ());
    for burst in 2..20 {
        let from = f64::from(burst) * 20.0;
        let second = sent(&score, from, from + 1.0);
        assert!((16..=24).contains(&second), "{second} of 40 in burst {burst}");
    }
}
