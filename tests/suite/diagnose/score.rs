//! Precision and recall of every rule over seeded scenarios.

use super::faults::{FAULTS, Fault};
use super::plant::Plant;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;
use tokenweir_diagnose::{EVERY, RULES};

/// What a rule got right and wrong.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    named: u32,
    missed: u32,
    wrong: u32,
    seconds: u64,
}

/// Steps of health before the fault: eight minutes, in which it is learned what is usual.
const CALM: usize = 96;
/// Steps within which a fault must be named.
const LIMIT: u64 = 60 / EVERY.as_secs();
/// What is said after that counts as wrong as well.
const AFTER: u64 = 6;

/// What was said, of whom and after how many steps of the fault.
fn said(fault: &Fault, seed: u64) -> BTreeMap<(Cow<'static, str>, String), u64> {
    let mut plan = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let replicas = fault.least + plan.usize(0..3);
    let how = plan.f64();
    let mut plant = Plant::new(replicas, seed, Instant::now());
    let mut said = BTreeMap::new();
    for _ in 0..CALM {
        let diagnosis = plant.step(|_, _, _, _| {});
        said.extend(diagnosis.verdicts.into_iter().map(|it| ((it.verdict, it.backend), 0)));
    }
    for step in 1..=LIMIT + AFTER {
        let diagnosis = plant.step(|place, shape, tick, random| {
            (fault.apply)(place, how, shape, tick, random);
        });
        for verdict in diagnosis.verdicts {
            said.entry((verdict.verdict, verdict.backend)).or_insert(step);
        }
    }
    said
}

fn play(scenarios: u64) -> BTreeMap<&'static str, Score> {
    let mut scores: BTreeMap<&str, Score> =
        RULES.iter().map(|it| (it.name, Score::default())).collect();
    for fault in &FAULTS {
        for seed in 0..scenarios {
            let said = said(fault, seed);
            let right =
                said.iter().find(|((name, backend), _)| *name == fault.name && backend == "gpu-0");
            let score = scores.get_mut(fault.name).unwrap();
            match right {
                Some((_, step)) if (1..=LIMIT).contains(step) => {
                    score.named += 1;
                    score.seconds = score.seconds.max(step * EVERY.as_secs());
                }
                _ => score.missed += 1,
            }
            for (name, backend) in said.keys() {
                if *name != fault.name || backend != "gpu-0" {
                    scores.get_mut(&**name).unwrap().wrong += 1;
                }
            }
        }
    }
    scores
}

fn judge(scores: &BTreeMap<&'static str, Score>) {
    eprintln!("| verdict | scenarios | precision | recall | slowest |\n|---|---|---|---|---|");
    for (name, Score { named, missed, wrong, seconds }) in scores {
        let precision = f64::from(*named) / f64::from((named + wrong).max(1));
        let recall = f64::from(*named) / f64::from((named + missed).max(1));
        let scenarios = named + missed;
        eprintln!("| `{name}` | {scenarios} | {precision:.3} | {recall:.3} | {seconds} s |");
    }
    for (name, Score { named, missed, wrong, .. }) in scores {
        assert!(f64::from(*named) >= 0.95 * f64::from(named + missed), "recall of {name}");
        assert!(f64::from(*named) >= 0.95 * f64::from(named + wrong), "precision of {name}");
        assert!(*named > 0, "{name} was never tried");
    }
}

#[test]
fn every_pathology_is_named_within_a_minute_and_nothing_else_is() {
    judge(&play(12));
}

#[test]
#[ignore = "takes minutes: two hundred scenarios for each pathology"]
fn every_pathology_is_named_in_two_hundred_scenarios_each() {
    judge(&play(200));
}
