//! The rendezvous backend of a prompt: the backend on which several gateways agree for a part of a
//! prompt that no backend is known to have in its cache.
//!
//! Gateways learn of a cached prefix only when an engine has computed it. Until then, each of them
//! would send the prefix to another backend, and the longer the queues, the more copies are computed.
//! All gateways that hash prompts alike pick the same rendezvous backend without a message, so the
//! uncached part of the prompt may already be in its cache. For each backend, the gateway learns how often
//! this holds, see
//! [`LearnedEstimates::rendezvous_hit_share`](crate::LearnedEstimates::rendezvous_hit_share).
//! `kv_aware` adds that share of the uncached tokens to the cached ones.

use super::session::highest_scored;
use crate::Candidate;

/// Marks the rendezvous backend among the candidates. It is chosen by rendezvous hashing among the
/// candidates with the longest cached prefix, with the hash of the prompt up to the first block after
/// that prefix. `blocks`: the block hashes of the prompt, which are equal at all gateways. A prompt
/// that is cached completely has no rendezvous backend.
pub fn mark_rendezvous(candidates: &mut [Candidate], blocks: &[u64]) {
    let longest = candidates.iter().map(|candidate| candidate.cached_blocks).max().unwrap_or(0);
    let Some(key) = blocks.get(longest as usize) else { return };
    let has_longest = |candidate: &Candidate| candidate.cached_blocks == longest;
    if let Some(index) = highest_scored(candidates, *key, has_longest) {
        candidates[index].is_rendezvous = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::idle_candidate;
    use crate::{Policy, RoutingRequest};

    fn fleet(cached_blocks: [u32; 4]) -> Vec<Candidate> {
        let candidate = |(key, cached_blocks)| Candidate { key, cached_blocks, ..idle_candidate() };
        (1..).zip(cached_blocks).map(candidate).collect()
    }

    /// The key of the backend that is marked as the rendezvous backend. `None`: no backend is marked.
    fn marked(mut candidates: Vec<Candidate>, blocks: &[u64]) -> Option<u64> {
        mark_rendezvous(&mut candidates, blocks);
        let mut marked = candidates.iter().filter(|candidate| candidate.is_rendezvous);
        let first = marked.next().map(|candidate| candidate.key);
        assert!(marked.next().is_none(), "there is only one");
        first
    }

    #[test]
    fn gateways_agree_on_the_backend_of_a_prompt_that_nobody_has_cached() {
        let reversed = || fleet([0; 4]).into_iter().rev().collect();
        let mut counts = [0; 4];
        for first_block in 0..1_000 {
            let key = marked(fleet([0; 4]), &[first_block, 5]).unwrap();
            assert_eq!(marked(reversed(), &[first_block, 9]), Some(key), "only the first block");
            counts[key as usize - 1] += 1;
        }
        assert!(counts.iter().all(|count| (200..300).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_backend_with_a_shorter_cached_prefix_is_not_the_rendezvous_backend_of_a_prompt() {
        for block in 0..100 {
            let key = marked(fleet([2, 0, 2, 1]), &[7, 8, block]);
            assert!([Some(1), Some(3)].contains(&key), "{key:?}");
        }
        assert_eq!(marked(fleet([0, 3, 0, 0]), &[7, 8, 9]), None, "all is cached");
        assert_eq!(marked(fleet([0; 4]), &[]), None, "the prompt has no complete block");
    }

    #[test]
    fn a_rendezvous_backend_gets_a_prompt_only_if_it_often_had_such_prompts_cached_before() {
        let choose = |rendezvous_hit_share| {
            let idle = Candidate { rendezvous_hit_share, ..idle_candidate() };
            let busy = Candidate { key: 1, backlog: 400.0, is_rendezvous: true, ..idle };
            let candidates = [busy, Candidate { key: 2, ..idle }];
            let choice = Policy::default().pick(&candidates, &RoutingRequest::default()).unwrap();
            (choice.index, choice.reason)
        };
        assert_eq!(choose(0.9), (0, "rendezvous"));
        assert_eq!(choose(0.0), (1, "lowest_ttft"));
    }
}
