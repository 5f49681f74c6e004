//! Tests that the engine schedules as vLLM's V1 scheduler does.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn engine(blocks: u32, batched: u32) -> Engine {
    Engine::new(EngineSpec {
        block_size: 4,
        blocks,
        max_num_seqs: 3,
        max_num_batched_tokens: batched,
        step_base: MILLISECOND * 10,
        prefill_token: MILLISECOND,
        decode_sequence: MILLISECOND * 2,
        kv_token: Duration::ZERO,
        ..EngineSpec::DEFAULT
    })
}

/// A prompt of `tokens` tokens. Prompts with one `family` have one content.
fn request(family: u64, tokens: u32, output_tokens: u32) -> SequenceRequest {
    let block_hashes = (0..u64::from(tokens / 4))
        .map(|block| family * 1000 + block)
        .collect();
    SequenceRequest {
        prompt_tokens: tokens,
        block_hashes,
        output_tokens,
        adapter: None,
    }
}

/// Runs until the engine is idle. Returns the number of tokens per sequence, and all steps.
fn run(engine: &mut Engine) -> (BTreeMap<SequenceId, u32>, Vec<EngineStep>) {
    let mut token_counts = BTreeMap::new();
    let steps = run_from(engine, Duration::ZERO);
    for token in steps.iter().flat_map(|step| &step.tokens) {
        let before = token_counts.insert(token.id, token.nth);
        assert_eq!(token.nth, before.map_or(token.nth, |before| before + 1));
    }
    (token_counts, steps)
}

fn submit(engine: &mut Engine, id: u64, request: SequenceRequest) {
    engine
        .submit(SequenceId(id), request, Duration::ZERO)
        .expect("fits");
}

#[test]
fn a_cached_prompt_computes_its_last_block_only() {
    let mut engine = engine(8, 64);
    submit(&mut engine, 1, request(1, 12, 1));
    assert_eq!(run(&mut engine).1[0].duration, MILLISECOND * (10 + 12));

    submit(&mut engine, 2, request(1, 12, 1));
    let step = engine.step(Duration::ZERO).expect("work");
    let expected = MILLISECOND * (10 + 4);
    assert_eq!(
        step.duration, expected,
        "the last block is computed although it is cached"
    );
    assert_eq!(step.tokens[0].cached_tokens, 8);
    let load = engine.load();
    assert_eq!((load.prefix_queries, load.prefix_hits), (24, 8));
}

#[test]
fn evicted_blocks_are_computed_again() {
    let mut engine = engine(8, 64);
    for (id, family) in [(1, 1), (2, 2), (3, 1)] {
        submit(&mut engine, id, request(family, 24, 1));
    }
    let (_, steps) = run(&mut engine);
    let last = steps.last().expect("three prompts");
    let computed_and_cached = (last.duration, last.tokens[0].cached_tokens);
    let expected = (MILLISECOND * (10 + 16), 8);
    assert_eq!(
        computed_and_cached, expected,
        "the second prompt evicted most of the first one"
    );
}

#[test]
fn long_prompts_are_computed_beside_decoding() {
    let mut engine = engine(16, 8);
    submit(&mut engine, 1, request(1, 4, 9));
    engine.step(Duration::ZERO);
    submit(&mut engine, 2, request(2, 16, 1));
    let steps = (0..3).filter_map(|_| engine.step(Duration::ZERO));
    let chunks: Vec<_> = steps
        .map(|step| (step.duration, step.tokens.len()))
        .collect();
    // A step takes 10 ms, plus 2 ms for each decoding sequence, plus 1 ms for each prompt token.
    let expected = [(7, 1), (7, 1), (2, 2)];
    assert_eq!(
        chunks,
        expected.map(|(prefill, tokens)| (MILLISECOND * (12 + prefill), tokens))
    );
}

#[test]
fn steps_grow_with_prompt_tokens_and_sequences() {
    let mut engine = engine(16, 64);
    submit(&mut engine, 1, request(1, 4, 3));
    submit(&mut engine, 2, request(2, 6, 3));
    let durations: Vec<_> = run(&mut engine)
        .1
        .iter()
        .map(|step| step.duration)
        .collect();
    assert_eq!(
        durations,
        [MILLISECOND * 20, MILLISECOND * 14, MILLISECOND * 14]
    );
}

#[test]
fn at_most_max_num_seqs_run_in_order() {
    let mut engine = engine(16, 64);
    for id in 1..=4 {
        submit(&mut engine, id, request(id, 4, 2));
    }
    engine.step(Duration::ZERO);
    assert_eq!((engine.load().running, engine.load().waiting), (3, 1));
    let (_, steps) = run(&mut engine);
    assert_eq!(
        steps.last().map(|step| step.tokens[0].id),
        Some(SequenceId(4))
    );
}

#[test]
fn the_newest_sequence_is_preempted_and_recomputed() {
    let mut engine = engine(4, 64);
    submit(&mut engine, 1, request(1, 8, 8));
    submit(&mut engine, 2, request(2, 8, 8));
    engine.step(Duration::ZERO);
    assert_eq!(engine.load().running, 2);
    let step = engine.step(Duration::ZERO).expect("work");
    assert_eq!(
        step.tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        [SequenceId(1)]
    );
    let load = engine.load();
    assert_eq!((load.running, load.waiting, load.preemptions), (1, 1, 1));

    let (token_counts, _) = run(&mut engine);
    assert_eq!(token_counts.into_values().collect::<Vec<_>>(), [8, 8]);
    assert_eq!(
        engine.load().prompt_tokens,
        16,
        "a recomputed prompt does not count again"
    );
    assert_eq!(engine.load().prefix_queries, 16);
}

#[test]
fn an_adapter_without_slot_waits_and_others_pass() {
    let mut engine = Engine::new(EngineSpec {
        max_loras: 1,
        adapter_load: MILLISECOND * 100,
        ..engine(16, 64).spec
    });
    let mut submit = |id, adapter| {
        let request = SequenceRequest {
            adapter,
            ..request(id, 4, 2)
        };
        submit(&mut engine, id, request);
    };
    submit(1, Some(7));
    submit(2, Some(8));
    submit(3, None);
    let step = engine.step(Duration::ZERO).expect("work");
    assert_eq!(step.duration, MILLISECOND * (100 + 10 + 8), "one is loaded");
    assert_eq!(
        step.tokens
            .iter()
            .map(|token| token.id.0)
            .collect::<Vec<_>>(),
        [1, 3]
    );
    assert_eq!((engine.load().waiting, engine.adapters()), (1, vec![7, 8]));
    engine.step(Duration::ZERO);
    let step = engine.step(Duration::ZERO).expect("work");
    assert_eq!(step.tokens[0].id, SequenceId(2));
    assert_eq!(step.duration, MILLISECOND * (100 + 10 + 4));
}

#[test]
fn a_sequence_longer_than_the_cache_is_rejected() {
    let result = engine(2, 64).submit(SequenceId(1), request(1, 8, 1), Duration::ZERO);
    assert_eq!(
        result,
        Err(SequenceTooLong {
            tokens: 9,
            capacity: 8
        })
    );
}

#[test]
fn a_sequence_reports_its_three_times() {
    let mut engine = engine(8, 4);
    engine
        .submit(SequenceId(1), request(1, 8, 2), MILLISECOND * 5)
        .expect("fits");
    let mut now = MILLISECOND * 7;
    let finished = loop {
        let step = engine.step(now).expect("work");
        now += step.duration;
        if let Some(&finished) = step.finished.first() {
            break finished;
        }
    };
    assert_eq!(
        (finished.arrived, finished.scheduled),
        (MILLISECOND * 5, MILLISECOND * 7)
    );
    assert_eq!(
        (finished.first_token, finished.last_token),
        (MILLISECOND * 35, MILLISECOND * 47)
    );
}

proptest! {
    #[test]
    fn all_blocks_are_freed_and_sequences_ended(
        actions in prop::collection::vec((0_u8..3, 0_u64..4, 1_u32..30, 1_u32..20), 1..80),
    ) {
        let drive = || {
            let mut engine = engine(16, 8);
            let mut now = Duration::ZERO;
            let mut steps = Vec::new();
            let mut aborted = 0;
            let mut submitted = 0;
            for (index, &(action, family, prompt, output)) in actions.iter().enumerate() {
                match action {
                    0 => {
                        submit(&mut engine, index as u64, request(family, prompt, output));
                        submitted += 1;
                    }
                    1 => aborted += u32::from(engine.abort(SequenceId(index as u64 / 2))),
                    _ => {
                        if let Some(step) = engine.step(now) {
                            now += step.duration;
                            steps.push(step);
                        }
                    }
                }
                let used: HashSet<_> = engine.running.iter().flat_map(|it| &it.blocks).collect();
                assert_eq!(used.len() + engine.pool.free(), engine.pool.total());
            }
            steps.extend(run_from(&mut engine, now));
            let ended: usize = steps.iter().map(|step| step.finished.len()).sum();
            assert_eq!(ended as u32 + aborted, submitted);
            assert_eq!(engine.pool.free(), engine.pool.total());
            steps
        };
        prop_assert_eq!(drive(), drive(), "the same input gives the same steps");
    }
}

/// Runs from the time `now` on until the engine is idle. Returns all steps.
fn run_from(engine: &mut Engine, mut now: Duration) -> Vec<EngineStep> {
    std::iter::from_fn(|| {
        let step = engine.step(now)?;
        now += step.duration;
        Some(step)
    })
    .collect()
}
