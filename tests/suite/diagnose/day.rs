//! A day of replicas that are well: they get hot, idle, restarted and replaced, and nothing is said.

use super::plant::Plant;
use std::time::Instant;
use tokenweir_diagnose::EVERY;

const DAY: u64 = 24 * 3_600;
const HOUR: u64 = 3_600;

/// Steps of a day.
fn steps() -> u64 {
    DAY / EVERY.as_secs()
}

#[test]
fn a_day_of_tides_bursts_heat_restarts_and_slow_clients_gives_no_verdict() {
    for seed in 0..1 {
        let mut plant = Plant::new(3, seed, Instant::now());
        let rate = plant.machines[0].shape.rate;
        for step in 0..steps() {
            let second = step * EVERY.as_secs();
            let tide = 0.55 - 0.45 * (second as f64 / DAY as f64 * std::f64::consts::TAU).cos();
            let is_burst = second % HOUR < 120;
            let is_night = second < 2 * HOUR;
            for machine in &mut plant.machines {
                let burst = if is_burst { 1.6 } else { 1.0 };
                machine.shape.rate = if is_night { 0.02 } else { rate * tide * burst };
            }
            let diagnosis = plant.step(|place, _, tick, random| {
                // From noon to three the caches are full, and nobody waits.
                if (12 * HOUR..15 * HOUR).contains(&second) {
                    tick.kv = 0.93 + 0.05 * random.f64();
                }
                // One after the other is restarted for a new version: it is down for a minute and
                // comes back with a cold cache.
                let since = second.wrapping_sub(17 * HOUR + place as u64 * 1_200);
                if since < 60 {
                    (tick.is_up, tick.has_page) = (false, false);
                    (tick.requests, tick.running, tick.waiting) = (0.0, 0.0, 0.0);
                    tick.restarts = since == 0;
                } else if since < 600 {
                    tick.hit *= since as f64 / 600.0;
                    tick.ttft *= 1.5;
                }
                // One client takes what has come for it slowly: its request stays long.
                if (19 * HOUR..20 * HOUR).contains(&second) && place == 1 {
                    tick.beyond += 1.0;
                }
                // Somebody else uses a replica directly.
                if (21 * HOUR..22 * HOUR).contains(&second) && place == 2 {
                    let theirs = (8.0 * random.f64()).round();
                    tick.foreign = theirs;
                    tick.running += theirs;
                    tick.beyond -= theirs;
                }
            });
            let said: Vec<_> =
                diagnosis.verdicts.iter().map(|it| (&it.verdict, &it.backend)).collect();
            assert!(said.is_empty(), "seed {seed}, {second} s: {said:?} {:#?}", diagnosis.verdicts);
        }
    }
}
