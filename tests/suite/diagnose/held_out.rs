//! Faults of engines whose parameters (batch sizes, token budgets, speeds, nonlinear costs) were not used to
//! develop the rules. Each fault arises from the load of a simulated engine, so the engine itself produces
//! the symptoms. For some faults there is no rule: then every verdict is wrong.

use super::engines::{EngineFixture, Traffic};
use super::fleet_model::between;
use super::scenarios;
use std::collections::BTreeMap;
use std::time::Duration;
use tokenweir_diagnose::{EVERY, Verdict};
use tokenweir_sim::engine::EngineSpec;
use tokenweir_sim::engine::cost_model::CostModel;

/// Returns an engine with random parameters, its usual traffic, and the traffic that causes a fault.
type Stage = fn(&mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic);

/// A fault of an engine with random parameters.
struct HeldOutFault {
    name: &'static str,
    stage: Stage,
    /// Whether a verdict names this fault. For a fault without a rule, no verdict does.
    is_right: fn(&Verdict) -> bool,
    /// Whether a verdict is true, but leaves open which of two causes applies.
    is_undecided: fn(&Verdict) -> bool,
}

/// The number of scenarios with each result of the diagnosis.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    named: u32,
    undecided: u32,
    missed: u32,
    wrong: u32,
}

const FAULTS: [HeldOutFault; 6] = [
    HeldOutFault {
        name: "batch limit",
        stage: batch_limit,
        is_right: |it| has_cause(it, "prefill_starvation", "the batch is at its limit"),
        is_undecided: |it| has_cause(it, "prefill_starvation", "cannot tell"),
    },
    HeldOutFault {
        name: "token budget",
        stage: token_budget,
        is_right: |it| has_cause(it, "prefill_starvation", "prompts use up"),
        is_undecided: |it| has_cause(it, "prefill_starvation", "cannot tell"),
    },
    HeldOutFault {
        name: "small KV cache",
        stage: small_cache,
        is_right: |it| it.verdict == "kv_thrashing" || it.verdict == "kv_backlog",
        is_undecided: |_| false,
    },
    without_rule("busy and healthy", busy),
    without_rule("pauses of the process (no rule)", pauses),
    without_rule("longer answers (no rule)", longer_answers),
];

/// Builds a fault for which the diagnosis has no rule, so that every verdict is wrong.
const fn without_rule(name: &'static str, stage: Stage) -> HeldOutFault {
    HeldOutFault {
        name,
        stage,
        is_right: |_| false,
        is_undecided: |_| false,
    }
}

fn has_cause(verdict: &Verdict, name: &str, cause: &str) -> bool {
    verdict.verdict == name
        && verdict
            .cause
            .as_deref()
            .is_some_and(|it| it.starts_with(cause))
}

/// Draws an engine with a random speed and a random cost model, and with 256 sequence slots.
fn engine(random: &mut fastrand::Rng) -> EngineSpec {
    let cost_model = CostModel {
        is_roofline: random.bool(),
        attention_pair_seconds: between(random, 0.0, 2e-9),
        jitter: between(random, 0.0, 0.2),
        has_batch_buckets: random.bool(),
        accepted_drafts: if random.bool() {
            0.0
        } else {
            between(random, 0.5, 2.0)
        },
        ..CostModel::LINEAR
    };
    EngineSpec {
        block_size: *random.choice(&[16, 32, 64]).unwrap_or(&16),
        blocks: 40_000,
        max_num_seqs: 256,
        max_num_batched_tokens: 8_192,
        step_base: Duration::from_secs_f64(between(random, 0.006, 0.04)),
        prefill_token: Duration::from_secs_f64(between(random, 3e-5, 2e-4)),
        decode_sequence: Duration::from_secs_f64(between(random, 2e-5, 1e-4)),
        cost_model,
        ..EngineSpec::DEFAULT
    }
}

/// Returns about how many requests per second an engine completes with a full batch of `sequences` sequences.
fn batch_rate(spec: &EngineSpec, sequences: f64, traffic: &Traffic) -> f64 {
    let mean = |range: (u32, u32)| f64::from(range.0 + range.1) / 2.0;
    let prefill = mean(traffic.prompt) * spec.prefill_token.as_secs_f64();
    let step = spec.step_base.as_secs_f64() + sequences * spec.decode_sequence.as_secs_f64();
    1.0 / (prefill + mean(traffic.output) * step / sequences)
}

fn batch_limit(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let limit = random.u32(2..=24);
    let spec = EngineSpec {
        max_num_seqs: limit,
        ..engine(random)
    };
    let (prompt, output) = ((50, random.u32(100..600)), (60, random.u32(100..400)));
    let traffic = Traffic {
        rate: 1.0,
        prompt,
        output,
    };
    let accepted = 1.0 + spec.cost_model.accepted_drafts;
    let rate = accepted * batch_rate(&spec, f64::from(limit), &traffic);
    (
        spec,
        Traffic {
            rate: 0.3 * rate,
            ..traffic
        },
        Traffic {
            rate: 1.6 * rate,
            ..traffic
        },
    )
}

fn token_budget(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let budget = *random
        .choice(&[256, 512, 1_024, 2_048, 4_096])
        .unwrap_or(&512);
    let spec = EngineSpec {
        max_num_batched_tokens: budget,
        ..engine(random)
    };
    let prompt = (random.u32(500..2_000), random.u32(2_000..7_000));
    let output = (5, random.u32(10..60));
    let traffic = Traffic {
        rate: 1.0,
        prompt,
        output,
    };
    let step = spec.step_base.as_secs_f64() + f64::from(budget) * spec.prefill_token.as_secs_f64();
    let tokens = f64::from(prompt.0 + prompt.1) / 2.0;
    let rate = f64::from(budget) / step / tokens;
    (
        spec,
        Traffic {
            rate: 0.3 * rate,
            ..traffic
        },
        Traffic {
            rate: 1.6 * rate,
            ..traffic
        },
    )
}

fn small_cache(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let base = engine(random);
    let (prompt, output) = ((80, random.u32(150..500)), (200, random.u32(300..800)));
    let traffic = Traffic {
        rate: 1.0,
        prompt,
        output,
    };
    let sequences = f64::from(random.u32(6..24));
    let tokens = f64::from(prompt.0 + prompt.1 + output.0 + output.1) / 2.0;
    let blocks = (sequences * tokens / f64::from(base.block_size)) as u32;
    let spec = EngineSpec { blocks, ..base };
    let accepted = 1.0 + spec.cost_model.accepted_drafts;
    let rate = accepted * batch_rate(&spec, sequences, &traffic);
    (
        spec,
        Traffic {
            rate: 0.2 * rate,
            ..traffic
        },
        Traffic {
            rate: 1.6 * rate,
            ..traffic
        },
    )
}

fn busy(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let spec = engine(random);
    let (prompt, output) = ((50, random.u32(100..900)), (60, random.u32(100..400)));
    let traffic = Traffic {
        rate: 1.0,
        prompt,
        output,
    };
    let rate = batch_rate(&spec, 40.0, &traffic);
    (
        spec,
        Traffic {
            rate: 0.3 * rate,
            ..traffic
        },
        Traffic {
            rate: 0.7 * rate,
            ..traffic
        },
    )
}

fn pauses(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let (spec, usual, _) = busy(random);
    let cost_model = CostModel {
        pause_share: 0.03,
        ..spec.cost_model
    };
    (EngineSpec { cost_model, ..spec }, usual, usual)
}

fn longer_answers(random: &mut fastrand::Rng) -> (EngineSpec, Traffic, Traffic) {
    let (spec, usual, _) = busy(random);
    (
        spec,
        usual,
        Traffic {
            output: (usual.output.0 * 2, usual.output.1 * 2),
            ..usual
        },
    )
}

/// Number of steps with usual traffic before the fault: seven minutes.
const USUAL_STEPS: u64 = 420 / EVERY.as_secs();
/// Number of steps with the fault: two minutes, because a queue must first grow before it harms clients.
const FAULT_STEPS: u64 = 120 / EVERY.as_secs();

/// Simulates the fault with this seed, and adds the result of the diagnosis to the score.
fn run(fault: &HeldOutFault, seed: u64, score: &mut Score) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0e1d_00a7);
    let (spec, usual, faulty) = (fault.stage)(&mut random);
    let mut fixture = EngineFixture::new(spec, seed);
    let (mut is_named, mut is_undecided, mut is_wrong) = (false, false, false);
    for step in 0..USUAL_STEPS + FAULT_STEPS {
        let traffic = if step < USUAL_STEPS { usual } else { faulty };
        for verdict in fixture.step(traffic).verdicts {
            if (fault.is_right)(&verdict) && step >= USUAL_STEPS {
                is_named = true;
            } else if (fault.is_undecided)(&verdict) && step >= USUAL_STEPS {
                is_undecided = true;
            } else {
                let Verdict { verdict, cause, .. } = &verdict;
                eprintln!(
                    "{} seed {seed} step {step}: {verdict} {cause:?}",
                    fault.name
                );
                is_wrong = true;
            }
        }
    }
    score.named += u32::from(is_named);
    score.undecided += u32::from(is_undecided && !is_named);
    score.missed += u32::from(!is_named && !is_undecided);
    score.wrong += u32::from(is_wrong);
}

#[test]
fn unseen_engines_get_no_wrong_causes() {
    let seeds = scenarios(6);
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    for fault in &FAULTS {
        let score = scores.entry(fault.name).or_default();
        for seed in 0..seeds {
            run(fault, seed, score);
        }
    }
    eprintln!(
        "| fault | engines | named | cannot tell which | no verdict | wrong verdict |\n|---|---|---|---|---|---|"
    );
    for (
        name,
        Score {
            named,
            undecided,
            missed,
            wrong,
        },
    ) in &scores
    {
        eprintln!("| {name} | {seeds} | {named} | {undecided} | {missed} | {wrong} |");
    }
    let sum = |value: fn(&Score) -> u32| scores.values().map(value).sum::<u32>();
    let with_rule = ["batch limit", "token budget", "small KV cache"].map(|name| scores[name]);
    let named: u32 = with_rule.iter().map(|score| score.named).sum();
    let told = sum(|score| score.named + score.wrong);
    eprintln!(
        "precision {:.3}, recall {:.3}",
        f64::from(named) / f64::from(told.max(1)),
        f64::from(named) / f64::from(3 * seeds as u32)
    );
    assert!(
        f64::from(named) >= 0.95 * f64::from(told),
        "precision: {scores:?}"
    );
    assert!(
        f64::from(named) >= 0.7 * f64::from(3 * seeds as u32),
        "recall: {scores:?}"
    );
}
