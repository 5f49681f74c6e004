//! What a ledger believes, step by step.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn start() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    Instant::now()
}

fn ledger(epoch: Instant) -> Ledger {
    let ledger = Ledger::new(epoch, 5 * SECOND);
    // A token is a byte.
    let mut promise =
        ledger.promise(&ledger.candidate(&prompt(1, 0), epoch), &prompt(1, 0), true, epoch);
    let counts = Counts { prompt: Some(1), cached: None, output: Some(100) };
    ledger.answered(&mut promise, &counts);
    ledger.give_back(promise, epoch);
    ledger
}

/// A prompt of this many tokens whose blocks nobody else has.
fn prompt(bytes: u64, seed: u64) -> Prompt {
    let mut random = fastrand::Rng::with_seed(seed);
    let blocks = (0..bytes / 512).map(|_| random.u64(..)).collect();
    Prompt { bytes, blocks, block_bytes: 512 }
}

fn send(ledger: &Ledger, prompt: &Prompt, now: Instant) -> Promise {
    ledger.promise(&ledger.candidate(prompt, now), prompt, true, now)
}

fn report(kv_usage: f64, waiting: f64, running: f64) -> Report {
    Report { kv_usage: Some(kv_usage), waiting, running, capacity: Some(100_000), tokens: None }
}

#[test]
fn what_was_sent_since_the_report_counts_although_the_replica_has_not_said_so() {
    let (now, prompt) = (start(), prompt(10_000, 1));
    let ledger = ledger(now);
    ledger.on_report(&report(0.5, 0.0, 3.0), &ledger.own(), now);
    let before = ledger.candidate(&prompt, now);
    assert_eq!((before.kv_usage, before.waiting, before.running), (Some(0.5), 0.0, 3.0));
    send(&ledger, &prompt, now);
    let after = ledger.candidate(&prompt, now);
    assert!((after.kv_usage.unwrap() - 0.601).abs() < 1e-9, "{after:?}");
    assert_eq!((after.waiting, after.backlog, after.in_flight), (1.0, 10_000.0, 1));
}

#[test]
fn the_next_report_takes_the_place_of_what_was_promised() {
    let (now, prompt) = (start(), prompt(10_000, 1));
    let ledger = ledger(now);
    let promise = send(&ledger, &prompt, now);
    ledger.on_report(&report(0.3, 0.0, 1.0), &ledger.own(), now);
    assert_eq!(ledger.candidate(&prompt, now).kv_usage, Some(0.3));
    ledger.give_back(promise, now);
    let after = ledger.candidate(&prompt, now).kv_usage.unwrap();
    assert!((after - 0.199).abs() < 1e-9, "what came back since is taken away: {after}");
}

#[test]
fn belief_fades_smoothly_from_the_report_to_our_own_knowledge_as_it_ages() {
    let (now, prompt) = (start(), prompt(1_000, 1));
    let ledger = ledger(now);
    ledger.on_report(&report(0.95, 12.0, 30.0), &ledger.own(), now);
    let at = |tenths: u32| ledger.candidate(&prompt, now + SECOND * tenths / 10);
    let beliefs: Vec<Candidate> = (0..600).map(at).collect();
    assert!(beliefs.windows(2).all(|pair| {
        let fall = |read: fn(&Candidate) -> f64| read(&pair[0]) - read(&pair[1]);
        (0.0..0.05).contains(&fall(|belief| belief.kv_usage.unwrap()))
            && (0.0..0.5).contains(&fall(|belief| belief.waiting))
            && (0.0..0.05).contains(&fall(|belief| belief.certainty))
    }));
    assert!(beliefs[599].kv_usage.unwrap() < 0.1 && beliefs[599].certainty < 0.1);
}

#[test]
fn requests_of_another_gateway_are_seen_in_the_reports() {
    let (now, prompt) = (start(), prompt(1_000, 1));
    let ledger = ledger(now);
    let mut first = send(&ledger, &prompt, now);
    ledger.answered(&mut first, &Counts { prompt: Some(1_000), cached: Some(0), output: None });
    ledger.on_report(&report(0.2, 4.0, 7.0), &ledger.own(), now);
    let belief = ledger.candidate(&prompt, now);
    assert_eq!((belief.waiting, belief.running), (4.0, 7.0));
    assert!(belief.backlog > 1_000.0, "those that wait have prompts too: {belief:?}");
}

#[test]
fn the_first_that_waits_is_being_computed_meanwhile() {
    let (now, prompt) = (start(), prompt(10_000, 1));
    let ledger = ledger(now);
    let mut first = send(&ledger, &prompt, now);
    send(&ledger, &prompt, now);
    let backlog = |at| ledger.candidate(&prompt, at).backlog as u64;
    assert_eq!(backlog(now), 20_000 - 9_728, "of the second, its blocks are cached by then");
    assert!(backlog(now + SECOND / 10) < backlog(now));
    let long_after = backlog(now + 100 * SECOND);
    assert!(long_after > 0, "but no more than one of them: {long_after}");
    ledger.first_output(&mut first, now + SECOND);
    assert_eq!(backlog(now + SECOND), 272);
}

#[test]
fn a_request_that_is_no_stream_is_taken_to_be_computed_at_the_usual_speed() {
    let (now, prompt) = (start(), prompt(10_000, 1));
    let ledger = ledger(now);
    let promise = ledger.promise(&ledger.candidate(&prompt, now), &prompt, false, now);
    let backlog = |at| ledger.candidate(&prompt, at).backlog as u64;
    assert!(backlog(now) > 9_900 && backlog(now + 100 * SECOND) == 0);
    ledger.give_back(promise, now);
    assert_eq!(ledger.own(), Own::default());
}

#[test]
fn a_prompt_that_was_sent_is_believed_cached_until_the_replica_restarts() {
    let now = start();
    let ledger = ledger(now);
    let (long, other) = (prompt(51_200, 1), prompt(51_200, 2));
    send(&ledger, &long, now);
    assert_eq!(ledger.candidate(&long, now).cached as u64, 51_200);
    assert_eq!(ledger.candidate(&other, now).cached as u64, 0);
    ledger.on_restart();
    assert_eq!(ledger.candidate(&long, now).cached as u64, 0);
}

#[test]
fn a_replica_without_a_prefix_cache_is_found_out_by_what_its_answers_say() {
    let now = start();
    let ledger = ledger(now);
    ledger.on_report(&report(0.1, 0.0, 0.0), &ledger.own(), now);
    let long = prompt(51_200, 1);
    for seed in 0..30 {
        let mut promise = send(&ledger, &long, now);
        let nothing = Counts { prompt: Some(51_200), cached: Some(0), output: Some(10) };
        ledger.answered(&mut promise, &nothing);
        ledger.give_back(promise, now);
        send(&ledger, &prompt(20_000, 100 + seed), now);
    }
    assert_eq!(ledger.candidate(&long, now).cached as u64, 0);
}

#[test]
fn a_replica_that_lies_is_found_out_by_its_own_first_outputs() {
    let now = start();
    let (honest, liar) = (ledger(now), ledger(now));
    let idle = report(0.0, 0.0, 0.0);
    for n in 0..20 {
        let sent = now + SECOND * n;
        for (ledger, seconds) in [(&honest, 1), (&liar, 30)] {
            ledger.on_report(&idle, &ledger.own(), sent);
            let mut promise = send(ledger, &prompt(5_000, n.into()), sent);
            ledger.first_output(&mut promise, sent + SECOND * seconds);
            ledger.give_back(promise, sent + SECOND * seconds);
        }
    }
    let seconds =
        |ledger: &Ledger| ledger.candidate(&prompt(5_000, 99), now).prefill.seconds(5_000.0);
    assert!(seconds(&liar) > 5.0 * seconds(&honest));
}

#[test]
fn a_replica_that_was_slow_once_is_tried_again() {
    let now = start();
    let ledger = ledger(now);
    for n in 0..20 {
        let mut promise = send(&ledger, &prompt(5_000, n), now);
        ledger.first_output(&mut promise, now + 60 * SECOND);
        ledger.give_back(promise, now + 60 * SECOND);
    }
    let seconds =
        |after| ledger.candidate(&prompt(5_000, 99), now + after).prefill.seconds(5_000.0);
    assert!(seconds(60 * SECOND) > 5.0);
    assert!(seconds(600 * SECOND) < 0.1 * seconds(60 * SECOND));
}

/// Seconds for which a ledger says that its backend is overdue.
fn overdue(ledger: &Ledger, now: Instant) -> f64 {
    ledger.candidate(&prompt(100, 99), now).overdue
}

#[test]
fn a_backend_that_gives_no_output_is_overdue_until_it_does() {
    let now = start();
    let ledger = ledger(now);
    let mut first = send(&ledger, &prompt(100, 1), now);
    send(&ledger, &prompt(100, 2), now + SECOND / 10);
    assert!(overdue(&ledger, now + SECOND / 5) <= 0.0, "within twice its prediction");
    assert!((3.9..4.0).contains(&overdue(&ledger, now + 4 * SECOND)));
    ledger.first_output(&mut first, now + 4 * SECOND);
    assert!((3.8..3.9).contains(&overdue(&ledger, now + 4 * SECOND)), "the other one waits");
}

#[test]
fn clients_that_leave_an_overdue_backend_are_no_sign_that_it_goes_on() {
    let now = start();
    let ledger = ledger(now);
    let first = send(&ledger, &prompt(100, 1), now);
    send(&ledger, &prompt(100, 2), now + SECOND / 10);
    ledger.give_back(first, now + 4 * SECOND);
    assert!((3.8..3.9).contains(&overdue(&ledger, now + 4 * SECOND)));
}

#[test]
fn a_request_that_is_no_stream_is_overdue_if_the_engine_makes_no_tokens() {
    let now = start();
    let ledger = Ledger::new(now, 5 * SECOND);
    let tell = |tokens: f64, at| {
        let report = Report { tokens: Some(tokens), ..report(0.1, 0.0, 1.0) };
        ledger.on_report(&report, &ledger.own(), at);
    };
    let ask =
        |at| ledger.promise(&ledger.candidate(&prompt(100, 1), at), &prompt(100, 1), false, at);
    // The first one teaches that answers take a second.
    let mut taught = ask(now);
    ledger.answered(&mut taught, &Counts { output: Some(9), ..Counts::default() });
    ledger.give_back(taught, now + SECOND);
    tell(10.0, now + SECOND);
    let mut other = ask(now + SECOND);
    assert!(overdue(&ledger, now + 5 * SECOND) <= 0.0, "answers differ in length");
    tell(10.0, now + 10 * SECOND);
    assert!(overdue(&ledger, now + 10 * SECOND) > 7.0);
    let refused = ask(now + 10 * SECOND);
    ledger.give_back(refused, now + 10 * SECOND);
    assert!(overdue(&ledger, now + 10 * SECOND) > 7.0, "the front end answers, not the engine");
    tell(11.0, now + 11 * SECOND);
    assert!(
        overdue(&ledger, now + 60 * SECOND) <= 0.0,
        "it makes tokens, so it may be a long answer"
    );
    ledger.answered(&mut other, &Counts { output: Some(9), ..Counts::default() });
    ledger.give_back(other, now + 60 * SECOND);
    assert_eq!(ledger.own(), Own::default());
}

#[test]
fn a_backend_is_overdue_while_all_its_streams_are_silent_and_not_while_some_go_on() {
    let now = start();
    let ledger = ledger(now);
    for seed in 0..2 {
        let mut promise = send(&ledger, &prompt(100, seed), now);
        ledger.first_output(&mut promise, now);
    }
    ledger.on_silence(true, now + SECOND);
    assert!(overdue(&ledger, now + 5 * SECOND) <= 0.0, "one may have been preempted");
    ledger.on_silence(true, now + 2 * SECOND);
    assert!((2.9..=3.1).contains(&overdue(&ledger, now + 5 * SECOND)));
    ledger.on_silence(false, now + 5 * SECOND);
    assert!(overdue(&ledger, now + 5 * SECOND) <= 0.0);
}

#[test]
fn a_request_waits_for_a_slot_once_the_slots_are_known_to_be_taken() {
    let now = start();
    let ledger = Ledger::new(now, 5 * SECOND);
    let mut open: Vec<Promise> =
        (0..6).map(|seed| send(&ledger, &prompt(100, seed), now)).collect();
    let ask = |at| ledger.candidate(&prompt(100, 99), at);
    assert!(ask(now).slot_wait <= 0.0);
    // Four run at once; each answer takes two seconds.
    for (second, seed) in (1..).zip(100..110) {
        let at = now + second * SECOND;
        ledger.on_report(&report(0.1, 2.0, 4.0), &ledger.own(), at);
        let mut oldest = open.remove(0);
        ledger.first_output(&mut oldest, at);
        ledger.give_back(oldest, at + 2 * SECOND);
        open.push(send(&ledger, &prompt(100, seed), at));
    }
    let at = now + 11 * SECOND;
    assert_eq!(ledger.slots(), Some(4.0));
    let wait = ask(at).slot_wait;
    assert!((1.4..1.6).contains(&wait), "the third slot that becomes free, one each 0.5 s: {wait}");
    let line = ledger.learned().prefill();
    let mut late = send(&ledger, &prompt(100, 200), at);
    ledger.first_output(&mut late, at + 60 * SECOND);
    assert_eq!(ledger.learned().prefill(), line, "a wait for a slot is no slow prefill");
    ledger.on_restart();
    assert_eq!((ledger.slots(), ask(at).slot_wait), (None, 0.0));
}

proptest! {
    #[test]
    fn whatever_comes_every_belief_is_finite_and_no_promise_is_left(
        steps in proptest::collection::vec((0_u8..5, 0_u64..200_000, 0.0..2.0_f64, 0_u64..20_000), 1..80),
    ) {
        let mut now = start();
        let ledger = Ledger::new(now, 5 * SECOND);
        let mut open: Vec<Promise> = Vec::new();
        for (step, bytes, part, millis) in steps {
            now += Duration::from_millis(millis);
            match (step, open.pop()) {
                (0, taken) => {
                    open.extend(taken);
                    let said = report(part, bytes as f64, bytes as f64 * part);
                    ledger.on_report(&said, &ledger.own(), now);
                }
                (1, Some(mut promise)) => {
                    ledger.first_output(&mut promise, now);
                    open.push(promise);
                }
                (2, Some(mut promise)) => {
                    let counts = Counts { prompt: Some(bytes), cached: Some(millis), output: Some(7) };
                    ledger.answered(&mut promise, &counts);
                    ledger.give_back(promise, now);
                }
                (_, taken) => {
                    open.extend(taken);
                    open.push(send(&ledger, &prompt(bytes, bytes % 7), now));
                }
            }
            let belief = ledger.candidate(&prompt(5_000, 3), now);
            let numbers = [belief.overdue, belief.slot_wait, belief.prompt, belief.cached, belief.output, belief.backlog,
                belief.waiting, belief.running, belief.certainty, belief.prefill.per_token];
            prop_assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{belief:?}");
            prop_assert!(belief.cached <= belief.prompt);
        }
        for promise in open {
            ledger.give_back(promise, now);
        }
        prop_assert_eq!(ledger.own(), Own::default());
    }
}
