//! Simulates an hour of each of ten healthy kinds of traffic, such as agents, batches, ramps, deploys and cold
//! starts. None may cause a verdict above a note.

use super::fleet_model::{Plant, Tick};
use tokenweir_diagnose::{EVERY, VerdictSeverity};

#[derive(Debug, Clone, Copy)]
enum Traffic {
    /// Agents: long prompts that are mostly in the caches, short answers.
    Agents,
    /// A batch of ten minutes that fills the engines, twice.
    Batches,
    /// The load grows tenfold and falls again.
    Ramp,
    /// Each backend restarts with a new version, one after the other.
    Deploy,
    /// A backend starts with an empty cache and compiles for its first requests.
    ColdStart,
    /// Users interrupt most answers.
    Interruptions,
    /// An application with long answers joins.
    LongAnswers,
    /// One request in ten seconds.
    Night,
    /// One backend always needs twice the time.
    MixedHardware,
    /// Waves of similar requests, every ten seconds, with one-word answers.
    EvaluationWaves,
}

const TRAFFICS: [Traffic; 10] = [
    Traffic::Agents,
    Traffic::Batches,
    Traffic::Ramp,
    Traffic::Deploy,
    Traffic::ColdStart,
    Traffic::Interruptions,
    Traffic::LongAnswers,
    Traffic::Night,
    Traffic::MixedHardware,
    Traffic::EvaluationWaves,
];
const HOUR_STEPS: u64 = 3_600 / EVERY.as_secs();
const BACKENDS: usize = 3;

impl Traffic {
    fn shape(self, plant: &mut Plant, rate: f64, second: u64) {
        for (index, backend) in plant.backends.iter_mut().enumerate() {
            let shape = &mut backend.shape;
            match self {
                Self::Agents => {
                    shape.hit = 0.9;
                    shape.prompt = 4_000.0;
                    shape.output = 80.0;
                    shape.capacity = 800_000.0;
                }
                Self::Batches if second % 1_800 < 600 => shape.rate = 3.0 * rate,
                Self::Batches => shape.rate = rate,
                Self::Ramp => {
                    let middle = 1.0 - (second as f64 / 1_800.0 - 1.0).abs();
                    shape.rate = rate * (0.3 + 2.7 * middle);
                }
                Self::LongAnswers if second > 900 => shape.output = 700.0,
                Self::Night => shape.rate = 0.1,
                Self::MixedHardware if index == 2 && second == 0 => shape.gap *= 2.0,
                Self::EvaluationWaves => {
                    shape.output = 2.0;
                    shape.rate = if second % 10 < 5 { 2.0 * rate } else { 0.1 };
                }
                _ => {}
            }
        }
    }

    fn change(self, index: usize, second: u64, tick: &mut Tick) {
        let since = match self {
            Self::Deploy => second.wrapping_sub(600 + 600 * index as u64),
            Self::ColdStart if index == 1 => second.wrapping_sub(600),
            _ => u64::MAX,
        };
        if since < 60 {
            tick.is_up = false;
            tick.has_page = false;
            tick.requests = 0.0;
            tick.running = 0.0;
            tick.waiting = 0.0;
            tick.restarts = since == 0;
        } else if since < 300 {
            tick.hit *= since as f64 / 300.0;
            tick.ttft *= 1.5;
        }
        if matches!(self, Self::Interruptions) {
            tick.cancelled = (0.6 * tick.requests).floor();
            tick.cancel_wait = 3.0;
            tick.cancel_spread = 2.0;
        }
    }
}

#[test]
fn an_hour_of_healthy_traffic_accuses_nobody() {
    for traffic in TRAFFICS {
        let mut plant = Plant::new(BACKENDS, 11);
        let rate = plant.backends[0].shape.rate;
        for step in 0..HOUR_STEPS {
            let second = step * EVERY.as_secs();
            traffic.shape(&mut plant, rate, second);
            let diagnosis = plant.step(|index, _, tick, _| traffic.change(index, second, tick));
            let accused = diagnosis
                .verdicts
                .iter()
                .filter(|verdict| verdict.severity > VerdictSeverity::Info)
                .map(|verdict| format!("{} {:?}", verdict.verdict, verdict.cause));
            let accused: Vec<String> = accused.collect();
            assert!(accused.is_empty(), "{traffic:?} {second} s: {accused:?}");
        }
    }
}
