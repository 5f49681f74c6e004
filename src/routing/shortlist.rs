//! Of a fleet that is too large to look at whole for each request: the few replicas worth a look.
//!
//! Those that were sent most of the prompt, and some that are drawn evenly from all. The best of
//! eight drawn at random is among the best quarter of the fleet nine times in ten (1 − 0.75⁸), and
//! who draws does not send all that come at once to the same one. With 8, 16 or 32 of 128 or 500
//! replicas, alike or not, as many requests meet their objectives; each that is looked at costs the
//! caches of the CPU. So a decision costs the same in a fleet of a hundred replicas as in one of a
//! thousand.

use super::recipients::Recipients;
use super::{Ask, PolicyKind, Prompt, mix};

/// What is remembered of a fleet to draw its short lists.
#[derive(Debug)]
pub struct Shortlist {
    /// `None`: the fleet is small, and always looked at whole.
    recipients: Option<Recipients>,
}

/// Most replicas that are all looked at.
const MOST: usize = 64;
/// Replicas that are drawn from a larger fleet.
const DRAWN: usize = 8;

impl Shortlist {
    /// For a fleet of so many replicas.
    pub fn new(replicas: usize) -> Self {
        Self { recipients: (replicas > MOST).then(Recipients::new) }
    }

    /// Whether it is one for a fleet of so many replicas.
    pub fn is_for(&self, replicas: usize) -> bool {
        self.recipients.is_some() == (replicas > MOST)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.recipients.as_ref().map_or(0, Recipients::bytes)
    }

    /// A prompt has been sent to the replica at a position of the fleet.
    pub fn sent(&self, prompt: &Prompt, position: usize) {
        if let Some(recipients) = &self.recipients {
            recipients.add(&prompt.blocks, position);
        }
    }

    /// Those of `positions`, which ascend, that a policy is to choose among. `None`: all of them,
    /// because they are few or the policy has to see all. A session has the same ones again.
    pub fn of(
        &self,
        policy: PolicyKind,
        positions: &[usize],
        prompt: &Prompt,
        ask: &Ask,
    ) -> Option<Vec<usize>> {
        let draws = matches!(policy, PolicyKind::KvAware | PolicyKind::P2c | PolicyKind::Random);
        let recipients = self.recipients.as_ref().filter(|_| draws && positions.len() > MOST)?;
        let mut short = drawn(positions, ask.session.unwrap_or(ask.seed));
        for position in recipients.of(&prompt.blocks) {
            if positions.binary_search(&position).is_ok() && !short.contains(&position) {
                short.push(position);
            }
        }
        Some(short)
    }
}

/// One of each of [`DRAWN`] equal parts of the fleet.
fn drawn(positions: &[usize], seed: u64) -> Vec<usize> {
    let mut short = Vec::with_capacity(DRAWN + Recipients::MOST);
    let bound = |part: usize| part * positions.len() / DRAWN;
    short.extend((0..DRAWN).map(|part| {
        let (begin, end) = (bound(part), bound(part + 1));
        let luck = mix(seed.wrapping_add(part as u64)) % (end - begin) as u64;
        positions[begin + luck as usize]
    }));
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashMap};

    const KV_AWARE: PolicyKind = PolicyKind::KvAware;

    fn prompt(seed: u64) -> Prompt {
        let text = seed.to_string().repeat(10_000);
        Prompt::new(7, std::iter::once(text.as_bytes()))
    }

    fn ask(seed: u64) -> Ask {
        Ask { seed: mix(seed), ..Ask::default() }
    }

    fn all(count: usize) -> Vec<usize> {
        (0..count).collect()
    }

    #[test]
    fn a_small_fleet_and_policies_that_must_see_all_have_no_short_list() {
        let small = Shortlist::new(MOST);
        assert_eq!(small.of(KV_AWARE, &all(MOST), &prompt(1), &ask(1)), None);
        assert_eq!(small.bytes(), 0);
        let large = Shortlist::new(1_000);
        assert_eq!(large.of(KV_AWARE, &all(10), &prompt(1), &ask(1)), None, "few serve the model");
        assert_eq!(large.of(PolicyKind::RoundRobin, &all(1_000), &prompt(1), &ask(1)), None);
    }

    #[test]
    fn those_that_were_sent_most_of_a_prompt_are_on_its_list() {
        let list = Shortlist::new(1_000);
        for position in [3, 997] {
            list.sent(&prompt(5), position);
        }
        let short = list.of(KV_AWARE, &all(1_000), &prompt(5), &ask(1)).unwrap();
        assert!(short.contains(&3) && short.contains(&997), "{short:?}");
        let others: Vec<usize> = (0..997).filter(|position| *position != 3).collect();
        let short = list.of(KV_AWARE, &others, &prompt(5), &ask(1)).unwrap();
        assert!(!short.contains(&3) && !short.contains(&997), "they do not serve the model");
    }

    #[test]
    fn all_are_drawn_equally_often_and_none_twice_for_one_request() {
        let (list, mut counts) = (Shortlist::new(100), HashMap::<usize, u32>::new());
        for seed in 0..5_000 {
            let short = list.of(KV_AWARE, &all(100), &Prompt::default(), &ask(seed)).unwrap();
            assert_eq!(short.iter().collect::<BTreeSet<_>>().len(), DRAWN);
            for position in short {
                *counts.entry(position).or_default() += 1;
            }
        }
        // 400 each, but for parts of 12 and of 13.
        assert_eq!(counts.len(), 100);
        assert!(counts.values().all(|count| (300..500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_session_is_drawn_the_same_list_again() {
        let list = Shortlist::new(500);
        let of = |seed| {
            let ask = Ask { session: Some(9), ..ask(seed) };
            list.of(KV_AWARE, &all(500), &Prompt::default(), &ask)
        };
        assert_eq!(of(1), of(2));
    }
}
