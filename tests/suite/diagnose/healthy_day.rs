//! A simulated day of healthy backends. High load, idle times, restarts and replacements must cause no
//! verdict.

use super::fleet_model::Plant;
use tokenweir_diagnose::EVERY;

const DAY: u64 = 24 * 3_600;
const HOUR: u64 = 3_600;

fn steps() -> u64 {
    DAY / EVERY.as_secs()
}

#[test]
fn a_day_of_changes_has_no_verdict() {
    let mut plant = Plant::new(3, 0);
    let rate = plant.backends[0].shape.rate;
    for step in 0..steps() {
        let second = step * EVERY.as_secs();
        let tide = 0.55 - 0.45 * (second as f64 / DAY as f64 * std::f64::consts::TAU).cos();
        let is_burst = second % HOUR < 120;
        let is_night = second < 2 * HOUR;
        for backend in &mut plant.backends {
            let burst = if is_burst { 1.6 } else { 1.0 };
            backend.shape.rate = if is_night { 0.02 } else { rate * tide * burst };
        }
        let diagnosis = plant.step(|index, _, tick, random| {
            // From 12 to 15 o'clock the caches are full, but no request waits.
            if (12 * HOUR..15 * HOUR).contains(&second) {
                tick.kv = 0.93 + 0.05 * random.f64();
            }
            // One backend after the other restarts with a new version. It is down for a minute and comes
            // back with an empty cache.
            let since = second.wrapping_sub(17 * HOUR + index as u64 * 1_200);
            if since < 60 {
                (tick.is_up, tick.has_page) = (false, false);
                (tick.requests, tick.running, tick.waiting) = (0.0, 0.0, 0.0);
                tick.restarts = since == 0;
            } else if since < 600 {
                tick.hit *= since as f64 / 600.0;
                tick.ttft *= 1.5;
            }
            // One client reads its response slowly, so its request stays open for a long time.
            if (19 * HOUR..20 * HOUR).contains(&second) && index == 1 {
                tick.beyond += 1.0;
            }
            // Another client sends requests to a backend without the gateway.
            if (21 * HOUR..22 * HOUR).contains(&second) && index == 2 {
                let theirs = (8.0 * random.f64()).round();
                tick.foreign = theirs;
                tick.running += theirs;
                tick.beyond -= theirs;
            }
        });
        assert!(diagnosis.harmful_changes().is_empty(), "{second} s");
        let verdicts: Vec<_> = diagnosis
            .verdicts
            .iter()
            .map(|it| (&it.verdict, &it.backend))
            .collect();
        assert!(
            verdicts.is_empty(),
            "{second} s: {verdicts:?} {:#?}",
            diagnosis.verdicts
        );
    }
}
