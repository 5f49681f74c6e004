//! A lookahead over two requests: picks the backend with the least sum of two times. They are the predicted
//! TTFT of this request, and the least TTFT of the next request after that. The last requests serve as
//! examples of the next request.

use crate::routers::RoutingInput;
use std::collections::VecDeque;
use tokenweir_routing::Candidate;

/// A router that also considers the request after the current one.
#[derive(Debug, Default)]
pub struct LookaheadRouter {
    recent: VecDeque<PastRequest>,
}

#[derive(Debug)]
struct PastRequest {
    blocks: Box<[u64]>,
    block_tokens: f64,
    prompt: f64,
    /// Cached tokens of the past request at each backend, by position.
    cached: Vec<f64>,
}

/// Number of past requests that serve as examples of the next request.
const SAMPLES: usize = 8;

impl LookaheadRouter {
    pub(in crate::routers) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let uncached = |candidate: &Candidate| candidate.prompt - candidate.cached;
        let ttft = |candidate: &Candidate, tokens: f64| {
            candidate.prefill.base + (candidate.backlog + tokens) * candidate.prefill.per_token
        };
        let blocks = &view.job.prompt.blocks;
        let shared: Vec<f64> = self
            .recent
            .iter()
            .map(|past| past.shared_tokens(blocks))
            .collect();
        let cost = |chosen: &Candidate| {
            let next = |(past, shared): (&PastRequest, &f64)| {
                let at = |candidate: &Candidate| {
                    let known = past.cached[candidate.position];
                    let (before, cached) = if candidate.position == chosen.position {
                        (uncached(chosen), known.max(*shared))
                    } else {
                        (0.0, known)
                    };
                    ttft(candidate, before + past.prompt - cached)
                };
                view.candidates.iter().map(at).fold(f64::INFINITY, f64::min)
            };
            let sum: f64 = self.recent.iter().zip(&shared).map(next).sum();
            ttft(chosen, uncached(chosen)) + sum / self.recent.len().max(1) as f64
        };
        let index = view.least(&view.candidates.iter().map(cost).collect::<Vec<f64>>());
        let mut cached = vec![0.0; view.reports.len()];
        for candidate in view.candidates {
            cached[candidate.position] = candidate.cached;
        }
        cached[view.candidates[index].position] = view.candidates[index].prompt;
        self.recent.truncate(SAMPLES - 1);
        self.recent.push_front(PastRequest {
            blocks: blocks.clone(),
            block_tokens: view.job.block_tokens(),
            prompt: view.candidates[index].prompt,
            cached,
        });
        index
    }
}

impl PastRequest {
    /// Number of leading tokens that the past request has in common with a prompt.
    fn shared_tokens(&self, blocks: &[u64]) -> f64 {
        let pairs = self.blocks.iter().zip(blocks);
        pairs.take_while(|(a, b)| a == b).count() as f64 * self.block_tokens
    }
}
