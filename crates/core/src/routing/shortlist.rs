//! Of a fleet that is too large to look at whole for each request: the few replicas worth a look.
//!
//! Those that were sent most of the prompt, and the best of some that are drawn evenly from all, by
//! what they show [at a glance](super::glance). Who draws does not send all that come at once to the
//! same one; and a glance at dozens costs the caches of the CPU less than a look at one. So a
//! decision costs the same in a fleet of a hundred replicas as in one of a thousand.

use super::glance::{Glance, Glances};
use super::recipients::Recipients;
use super::{Ask, Candidate, PolicyKind, Prompt, mix};
use std::iter::{Chain, Copied};
use std::slice::Iter;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What is remembered of a fleet to draw its short lists. It survives all changes of the fleet.
#[derive(Debug)]
pub struct Shortlist {
    epoch: Instant,
    /// Nothing, while the fleet has always been small, and looked at whole.
    large: OnceLock<Large>,
}

/// What is remembered of a large fleet.
#[derive(Debug)]
struct Large {
    recipients: Recipients,
    glances: Glances,
}

/// Most replicas that are all looked at.
const MOST: usize = 64;
/// Replicas of a larger fleet that are drawn for a session, or for a policy of luck.
const DRAWN: usize = 8;
/// Replicas of a larger fleet that are chosen at a glance for any other request.
const CHOSEN: usize = 4;
/// Each of them is the best of so many.
const OF: usize = 16;

impl Shortlist {
    /// For a fleet of so many replicas. Times are kept from `epoch` on.
    pub fn new(epoch: Instant, replicas: usize) -> Self {
        let list = Self { epoch, large: OnceLock::new() };
        list.fit(replicas);
        list
    }

    /// The fleet has so many replicas from now on.
    pub fn fit(&self, replicas: usize) {
        if replicas > MOST {
            self.large.get_or_init(Large::new);
        }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.large.get().map_or(0, |large| large.recipients.bytes() + large.glances.bytes())
    }

    /// A prompt has been sent to the replica at a position of the fleet.
    pub fn sent(&self, prompt: &Prompt, position: usize) {
        if let Some(large) = self.large.get() {
            large.recipients.add(&prompt.blocks, position);
        }
    }

    /// The replica at a position is believed to be this now, for no prompt in particular; `None`:
    /// it is to get nothing.
    pub fn show(
        &self,
        position: usize,
        now: Instant,
        candidate: impl FnOnce() -> Option<Candidate>,
    ) {
        let Some(large) = self.large.get() else { return };
        let glance = candidate().map_or(Glance::SHUT, |candidate| {
            let rested = Duration::try_from_secs_f64(candidate.rested).unwrap_or_default();
            let since_epoch = now.saturating_duration_since(self.epoch);
            Glance::new(&candidate, since_epoch.saturating_sub(rested))
        });
        large.glances.set(position, glance);
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
        let large = self.large.get().filter(|_| positions.len() > MOST)?;
        let mut short = Vec::with_capacity(DRAWN + Recipients::MOST);
        match (policy, ask.session) {
            (PolicyKind::KvAware, None) => short.extend(large.best(positions, ask.seed)),
            (PolicyKind::KvAware | PolicyKind::P2c | PolicyKind::Random, session) => {
                let seed = session.unwrap_or(ask.seed);
                short.extend(drawn(positions, DRAWN, seed).filter_map(|mut part| part.next()));
            }
            _ => return None,
        }
        for position in large.recipients.of(&prompt.blocks) {
            if positions.binary_search(&position).is_ok() && !short.contains(&position) {
                short.push(position);
            }
        }
        Some(short)
    }
}

impl Large {
    fn new() -> Self {
        Self { recipients: Recipients::new(), glances: Glances::new() }
    }

    /// Those that show best, each of some that are drawn.
    fn best(&self, positions: &[usize], seed: u64) -> impl Iterator<Item = usize> {
        let best = |part: Part<'_>| part.take(OF).min_by_key(|position| self.glances.at(*position));
        drawn(positions, CHOSEN, seed).filter_map(best)
    }
}

/// The positions of a part of the fleet, from one that is drawn.
type Part<'a> = Copied<Chain<Iter<'a, usize>, Iter<'a, usize>>>;

/// Equal parts of the fleet, each from one that is drawn evenly.
fn drawn(positions: &[usize], parts: usize, seed: u64) -> impl Iterator<Item = Part<'_>> {
    let bound = move |part: usize| part * positions.len() / parts;
    (0..parts).map(move |part| {
        let all = &positions[bound(part)..bound(part + 1)];
        let luck = mix(seed.wrapping_add(part as u64)) % all.len() as u64;
        let (before, after) = all.split_at(luck as usize);
        after.iter().chain(before).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Ledger, Policy};
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

    fn list(replicas: usize) -> Shortlist {
        Shortlist::new(epoch(), replicas)
    }

    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn epoch() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_small_fleet_and_policies_that_must_see_all_have_no_short_list() {
        let small = list(MOST);
        assert_eq!(small.of(KV_AWARE, &all(MOST), &prompt(1), &ask(1)), None);
        assert_eq!(small.bytes(), 0);
        let large = list(1_000);
        assert_eq!(large.of(KV_AWARE, &all(10), &prompt(1), &ask(1)), None, "few serve the model");
        assert_eq!(large.of(PolicyKind::RoundRobin, &all(1_000), &prompt(1), &ask(1)), None);
    }

    #[test]
    fn those_that_were_sent_most_of_a_prompt_are_on_its_list() {
        let list = list(1_000);
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
        let (list, mut counts) = (list(100), HashMap::<usize, u32>::new());
        for seed in 0..5_000 {
            let short =
                list.of(PolicyKind::P2c, &all(100), &Prompt::default(), &ask(seed)).unwrap();
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
        let list = list(500);
        let of = |seed| {
            let ask = Ask { session: Some(9), ..ask(seed) };
            list.of(KV_AWARE, &all(500), &Prompt::default(), &ask)
        };
        assert_eq!(of(1), of(2));
    }

    /// A replica that takes prompts as fast as usual, behind a backlog.
    fn behind(backlog: f64) -> Candidate {
        Candidate { backlog, ..super::super::tests::replica() }
    }

    #[test]
    fn the_best_at_a_glance_are_looked_at_and_those_that_get_nothing_are_not() {
        let (list, now) = (list(64 * 4), epoch());
        for position in 0..256 {
            let is_shut = position % 2 == 0;
            list.show(position, now, || {
                (!is_shut).then(|| behind(if position % 8 == 1 { 100.0 } else { 1e4 }))
            });
        }
        for seed in 0..100 {
            let short = list.of(KV_AWARE, &all(256), &Prompt::default(), &ask(seed)).unwrap();
            // Of sixteen in a row, two have a short queue.
            assert_eq!(short.len(), CHOSEN);
            assert!(short.iter().all(|position| position % 8 == 1), "{short:?}");
        }
    }

    #[test]
    fn an_idle_fleet_shares_streams_evenly_from_the_first_on() {
        let (list, mut now) = (list(200), epoch());
        let ledgers: Vec<Ledger> =
            all(200).iter().map(|_| Ledger::new(now, Duration::from_secs(5))).collect();
        let prompt = Prompt { bytes: 400, ..Prompt::default() };
        let show = |position: usize, now| {
            let ledger = &ledgers[position];
            list.show(position, now, || Some(ledger.candidate(&Prompt::default(), now)));
        };
        let mut counts = [0; 200];
        for seed in 0..10_000 {
            let positions = list.of(KV_AWARE, &all(200), &prompt, &ask(seed)).unwrap();
            let candidate = |place| Candidate { place, ..ledgers[place].candidate(&prompt, now) };
            let mut candidates: Vec<Candidate> = positions.into_iter().map(candidate).collect();
            crate::routing::lend(&mut candidates);
            let choice = Policy::default().pick(&candidates, &ask(seed)).unwrap();
            let chosen = candidates[choice.index];
            counts[chosen.place] += 1;
            let mut promise = ledgers[chosen.place].promise(&chosen, &prompt, true, now);
            now += Duration::from_millis(5);
            ledgers[chosen.place].first_output(&mut promise, now);
            ledgers[chosen.place].give_back(promise, now);
            show(chosen.place, now);
            // Each is asked how it is once a second.
            show(seed as usize % 200, now);
        }
        assert!(counts.iter().all(|count| (40..=60).contains(count)), "{counts:?}");
    }
}
