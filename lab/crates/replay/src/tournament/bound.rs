//! An upper bound of the share of requests whose TTFT is within the objective. It is computed for an ideal
//! machine: one with the speed of all engines together, with one cache that evicts nothing, and without
//! output tokens. The machine serves in order of arrival, and drops the longest prompts when a request would
//! be late. No other way drops fewer, because all requests have the same objective (Kise, Ibaraki and Mine
//! 1978).

use crate::trace::TraceRequest;
use std::collections::{BinaryHeap, HashSet};
use tokenweir_sim::engine::EngineSpec;

/// The upper bound. `None`: the traffic is a closed loop, in which the arrivals depend on the speed of the
/// machine. `speed`: see [`SimulationSetup`](crate::simulation::SimulationSetup). `limit`: the TTFT objective
/// in seconds.
pub(super) fn goodput_bound(
    specs: &[EngineSpec],
    requests: &[TraceRequest],
    speed: f64,
    limit: f64,
) -> Option<f64> {
    if requests.iter().any(|request| request.after.is_some()) {
        return None;
    }
    // The time per token is least in a full step, because the fixed time of the step is divided by all its
    // tokens.
    let per_token = |spec: &EngineSpec| {
        let step = spec.step_base.as_secs_f64() / f64::from(spec.max_num_batched_tokens);
        spec.prefill_token.as_secs_f64() + step
    };
    let tokens_per_second: f64 = specs.iter().map(|spec| per_token(spec).recip()).sum();
    let fastest = specs.iter().map(per_token).fold(f64::INFINITY, f64::min);
    let mut cache = HashSet::new();
    let mut kept = BinaryHeap::new();
    let mut free_at = 0.0_f64;
    let mut count = 0_usize;
    for request in requests {
        let at = request.at.as_secs_f64() / speed;
        let cached = request
            .prompt
            .blocks
            .iter()
            .take_while(|block| cache.contains(*block));
        let cached = cached.count() as f64 * request.block_tokens();
        cache.extend(request.prompt.blocks.iter().copied());
        let tokens = (f64::from(request.prompt_tokens) - cached).max(1.0);
        if tokens * fastest > limit {
            continue;
        }
        if free_at <= at {
            (free_at, kept) = (at, BinaryHeap::new());
        }
        free_at += tokens / tokens_per_second;
        kept.push((tokens * 1e3) as u64);
        count += 1;
        if free_at > at + limit
            && let Some(longest) = kept.pop()
        {
            free_at -= longest as f64 / 1e3 / tokens_per_second;
            count -= 1;
        }
    }
    Some(count as f64 / requests.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::engine_groups::default_engine_spec;
    use std::time::Duration;

    #[test]
    fn the_bound_drops_the_longest_prompts() {
        let request = |at: u64, prompt_tokens| TraceRequest {
            at: Duration::from_millis(at),
            prompt_tokens,
            ..TraceRequest::default()
        };
        let requests = [
            request(0, 20_000),
            request(1, 5_000),
            request(2, 20_000),
            request(3, 5_000),
        ];
        let specs = [default_engine_spec()];
        let bound = |limit| goodput_bound(&specs, &requests, 1.0, limit).unwrap();
        // The machine computes about 26,000 tokens per second.
        assert!((bound(0.3) - 0.25).abs() < 1e-9, "{}", bound(0.3));
        assert!((bound(1.2) - 0.75).abs() < 1e-9, "{}", bound(1.2));
        assert!((bound(5.0) - 1.0).abs() < 1e-9);
    }
}
