//! Routers that remember nothing: a cost of five terms, and the policy of the gateway with the true state of
//! the engines.

use crate::routers::RoutingInput;
use tokenweir_routing::{Candidate, Policy, PrefillCost};

/// The first value is the factor of the uncached tokens if no request waits. The second value limits the mean
/// number of waiting requests per backend in this factor.
const FIVE_TERMS_CHARGE: (f64, f64) = (1.7, 8.0);

/// Index of the candidate with the least cost. The cost has five terms: the base duration of a step, the
/// backlog, the uncached tokens, the waiting requests and the running requests (`crowding`: relative to the
/// mean).
///
/// ```text
/// base + per_token × (backlog × crowding + uncached × (1.7 + min(waiting per backend, 8) × crowding))
/// ```
pub(in crate::routers) fn five_terms(view: &RoutingInput<'_>) -> usize {
    let count = view.candidates.len() as f64;
    let mean = |read: fn(&Candidate) -> f64| view.candidates.iter().map(read).sum::<f64>() / count;
    let waiting = mean(|candidate| candidate.waiting);
    let running = mean(|candidate| candidate.running);
    let (idle, most) = FIVE_TERMS_CHARGE;
    let cost = |candidate: &Candidate| {
        let crowding = (1.0 + candidate.running) / (1.0 + running);
        let uncached = candidate.prompt - candidate.cached;
        let tokens =
            candidate.backlog * crowding + uncached * (idle + waiting.min(most) * crowding);
        candidate.prefill.base + candidate.prefill.per_token * tokens
    };
    view.least(&view.candidates.iter().map(cost).collect::<Vec<f64>>())
}

/// Index of the candidate that a policy chooses if it knows the true lengths of prompt and output, the true
/// cached tokens, and the true load and speed of each engine. Only the backlog is the gateway's estimate.
pub(in crate::routers) fn exact_state(policy: &Policy, view: &RoutingInput<'_>) -> usize {
    let exact = |candidate: &Candidate| {
        let (spec, load) = (view.engine)(candidate.position);
        let context = load.kv_usage * f64::from(spec.capacity());
        let base = spec.step_base.as_secs_f64()
            + spec.decode_sequence.as_secs_f64() * load.running as f64
            + spec.kv_token.as_secs_f64() * context;
        let per_token =
            spec.prefill_token.as_secs_f64() + base / f64::from(spec.max_num_batched_tokens);
        Candidate {
            prompt: view.job.prompt_tokens.into(),
            output: view.job.output_tokens.into(),
            cached: (view.cached_tokens)(candidate.position).into(),
            waiting: load.waiting as f64,
            running: load.running as f64,
            kv_usage: Some(load.kv_usage),
            prefill: PrefillCost { base, per_token },
            ..*candidate
        }
    };
    let candidates: Vec<Candidate> = view.candidates.iter().map(exact).collect();
    policy
        .pick(&candidates, &view.routing_request)
        .map_or(0, |choice| choice.index)
}
