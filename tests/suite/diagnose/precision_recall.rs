//! Measures precision and recall of every rule of the diagnosis in scenarios that seeds determine.

use super::faults::{FAULTS, Fault};
use super::fleet_model::{BASELINE_STEPS, MINUTE_STEPS, Plant};
use super::scenarios;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tokenweir_diagnose::{EVERY, RULES};

/// Numbers of correct, missed and wrong verdicts of a rule, and the longest time in seconds until a correct
/// verdict.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    named: u32,
    missed: u32,
    wrong: u32,
    seconds: u64,
}

/// Number of steps that are simulated after the first minute of the fault. Wrong verdicts in these steps
/// count, too.
const FURTHER_STEPS: u64 = 6;

/// Returns all verdicts, by rule and backend. The value is the number of the step after the start of the
/// fault in which the verdict first appeared, or 0 if it appeared before the fault.
fn observed_verdicts(fault: &Fault, seed: u64) -> BTreeMap<(Cow<'static, str>, String), u64> {
    let mut plan = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let backend_count = fault.min_backends + plan.usize(0..3);
    let how = plan.f64();
    let mut plant = Plant::new(backend_count, seed);
    let mut verdicts = BTreeMap::new();
    for _ in 0..BASELINE_STEPS {
        let diagnosis = plant.step(|_, _, _, _| {});
        verdicts.extend(
            diagnosis
                .verdicts
                .into_iter()
                .map(|it| ((it.verdict, it.backend), 0)),
        );
    }
    for step in 1..=MINUTE_STEPS + FURTHER_STEPS {
        let diagnosis = plant.step(|place, shape, tick, random| {
            fault.apply(place, how, shape, tick, random);
        });
        for verdict in diagnosis.verdicts {
            verdicts
                .entry((verdict.verdict, verdict.backend))
                .or_insert(step);
        }
    }
    verdicts
}

fn run_scenarios(scenarios: u64) -> BTreeMap<&'static str, Score> {
    let mut scores: BTreeMap<&str, Score> =
        RULES.iter().map(|it| (it.name, Score::default())).collect();
    for fault in &FAULTS {
        for seed in 0..scenarios {
            let verdicts = observed_verdicts(fault, seed);
            let right = verdicts
                .iter()
                .find(|((name, backend), _)| *name == fault.name && backend == "gpu-0");
            let score = scores.get_mut(fault.name).unwrap();
            match right {
                Some((_, step)) if (1..=MINUTE_STEPS).contains(step) => {
                    score.named += 1;
                    score.seconds = score.seconds.max(step * EVERY.as_secs());
                }
                _ => score.missed += 1,
            }
            for (name, backend) in verdicts.keys() {
                if *name != fault.name || backend != "gpu-0" {
                    scores.get_mut(&**name).unwrap().wrong += 1;
                }
            }
        }
    }
    scores
}

#[test]
fn every_fault_is_named_within_a_minute() {
    let scores = run_scenarios(scenarios(12));
    eprintln!("| verdict | scenarios | precision | recall | slowest |\n|---|---|---|---|---|");
    for (
        name,
        Score {
            named,
            missed,
            wrong,
            seconds,
        },
    ) in &scores
    {
        let precision = f64::from(*named) / f64::from((named + wrong).max(1));
        let recall = f64::from(*named) / f64::from((named + missed).max(1));
        let scenarios = named + missed;
        eprintln!("| `{name}` | {scenarios} | {precision:.3} | {recall:.3} | {seconds} s |");
    }
    for (
        name,
        Score {
            named,
            missed,
            wrong,
            ..
        },
    ) in &scores
    {
        assert!(
            f64::from(*named) >= 0.95 * f64::from(named + missed),
            "recall of {name}"
        );
        assert!(
            f64::from(*named) >= 0.95 * f64::from(named + wrong),
            "precision of {name}"
        );
        // These rules need GPUs or five minutes, which the scenarios here do not have. `gpus.rs` and
        // `routed_around.rs` test them.
        let others = ["gpu_throttled", "backend_avoided"];
        assert!(
            *named > 0 || others.contains(name),
            "{name} was never tested"
        );
    }
}
