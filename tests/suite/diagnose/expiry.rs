//! The end of verdicts: a verdict must not remain after the end of the load or of the drain during which it
//! was measured.

use super::faults::FAULTS;
use super::fleet_model::{MINUTE_STEPS, Plant, Tick};

/// Sets the load of a step of the model, and all consequences of the load, to zero.
fn end_load(tick: &mut Tick) {
    (tick.requests, tick.running, tick.waiting, tick.kv) = (0.0, 0.0, 0.0, 0.0);
    (tick.cancelled, tick.stalls, tick.stalled, tick.preemptions) = (0.0, 0.0, 0.0, 0.0);
}

#[test]
fn a_minute_after_load_nothing_is_left() {
    for fault in &FAULTS {
        let mut plant = Plant::with_baselines(fault.min_backends + 1, 7);
        let mut during = plant.step(|_, _, _, _| {});
        for _ in 0..2 * MINUTE_STEPS {
            during = plant.step(|place, shape, tick, random| {
                fault.apply(place, 0.7, shape, tick, random);
            });
        }
        let is_named = during.verdicts.iter().any(|it| it.verdict == fault.name);
        assert!(is_named, "{} is staged: {:?}", fault.name, during.verdicts);
        let after = plant
            .play(MINUTE_STEPS + 1, |_, _, tick| end_load(tick))
            .pop()
            .unwrap();
        assert!(
            after.verdicts.is_empty(),
            "{}: {:#?}",
            fault.name,
            after.verdicts
        );
        assert!(
            after.anomalies.is_empty(),
            "{}: {:#?}",
            fault.name,
            after.anomalies
        );
    }
}

#[test]
fn a_drain_beside_busy_peers_is_no_fault() {
    let mut plant = Plant::with_baselines(3, 11);
    for step in 0..5 * MINUTE_STEPS {
        let diagnosis = plant.step(|place, _, tick, _| {
            if place == 0 {
                tick.is_up = step >= 4 * MINUTE_STEPS;
                end_load(tick);
            } else {
                (tick.waiting, tick.running) = (9.0, 9.0);
            }
        });
        let is_first = |backend: &String| backend == "gpu-0";
        let verdicts = diagnosis.verdicts.iter().filter(|it| is_first(&it.backend));
        assert_eq!(
            verdicts.count(),
            0,
            "step {step}: {:#?}",
            diagnosis.verdicts
        );
        let anomalies = diagnosis
            .anomalies
            .iter()
            .filter(|it| is_first(&it.backend));
        assert_eq!(
            anomalies.count(),
            0,
            "step {step}: {:#?}",
            diagnosis.anomalies
        );
    }
}
