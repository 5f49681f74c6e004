//! Changes of the fleet: the diagnosis names a slower fleet in words, and does not report a changing load as
//! harmful.

use super::fleet_model::{MINUTE_STEPS, Plant};
use tokenweir_diagnose::{Diagnosis, Verdict, VerdictSeverity};

fn words(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis
        .harmful_changes()
        .iter()
        .map(|change| &*change.words)
        .collect()
}

#[test]
fn a_slower_fleet_is_named_within_a_minute() {
    let mut plant = Plant::with_baselines(3, 5);
    let diagnoses = plant.play(12 * MINUTE_STEPS, |_, _, tick| {
        tick.gap *= 4.0;
        tick.gap_p99 *= 4.0;
    });
    let minute = MINUTE_STEPS as usize;
    for diagnosis in &diagnoses[minute..] {
        let words = words(diagnosis);
        assert!(
            words[0].starts_with("all backends: time between tokens"),
            "{words:?}"
        );
    }
    let slow = |diagnosis: &Diagnosis| {
        let found = diagnosis.verdicts.iter();
        let slow = found.filter(|verdict| {
            verdict.verdict == "slow_engine" && verdict.severity == VerdictSeverity::Critical
        });
        slow.count()
    };
    assert_eq!(slow(&diagnoses[minute]), 3, "all three");
    let age = diagnoses.last().unwrap().changes[0].age_seconds;
    assert!(age > 600.0, "{age}");
}

#[test]
fn a_young_gateway_compares_with_its_start() {
    let mut plant = Plant::new(3, 5);
    for backend in &mut plant.backends {
        backend.shape.rate = 3.0;
    }
    plant.play(8, |_, _, _| {});
    let diagnoses = plant.play(MINUTE_STEPS, |_, _, tick| tick.gap *= 4.0);
    let words = words(diagnoses.last().unwrap());
    assert!(
        words[0].starts_with("all backends: time between tokens"),
        "{words:?}"
    );
}

#[test]
fn longer_answers_and_more_load_are_no_harm() {
    let mut plant = Plant::with_baselines(3, 6);
    let rate = plant.backends[0].shape.rate;
    for step in 0..20 * MINUTE_STEPS {
        let growth = 1.0 + step as f64 / (5 * MINUTE_STEPS) as f64;
        for backend in &mut plant.backends {
            backend.shape.rate = rate * growth;
            backend.shape.output *= 1.005;
        }
        let diagnosis = plant.step(|_, _, _, _| {});
        assert_eq!(words(&diagnosis), [""; 0], "step {step}");
    }
}

#[test]
fn held_blocks_without_requests_are_a_leak() {
    let mut plant = Plant::with_baselines(2, 8);
    let diagnoses = plant.play(MINUTE_STEPS, |step, place, tick| {
        if place == 0 {
            tick.kv = (0.2 * step as f64).clamp(tick.kv, 0.95);
            tick.waiting = 3.0;
        }
    });
    let last = diagnoses.last().unwrap();
    let named: Vec<&str> = last
        .verdicts
        .iter()
        .map(Verdict::cause_or_meaning)
        .collect();
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].starts_with("KV blocks leak: 95 %"), "{named:?}");
}
