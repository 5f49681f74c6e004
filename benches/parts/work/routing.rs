//! What chooses a replica.

use super::Part;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::record::{BackendId, Condition, Decision};
use tokenweir_core::routing::prefix::PrefixTable;
use tokenweir_core::routing::{
    Ask, Candidate, Ledger, Policy, PolicyKind, Prompt, Question, Report, Shortlist,
};

/// Bytes of a prompt of 32k tokens.
const LONG: usize = 4 * 32_768;

/// Replicas that have had some prompts, each others.
struct Fleet {
    ledgers: Vec<Ledger>,
    all: Vec<usize>,
    shortlist: Shortlist,
    policy: Policy,
    now: Instant,
}

/// Decisions among so many replicas, and what is kept of them.
pub(super) fn decisions(replicas: usize) -> Vec<Part> {
    let fleet = Rc::new(Fleet::new(replicas));
    let prompts = [("no prompt", Prompt::default()), ("32k tokens", prompt(LONG, 9))];
    let deciding = prompts.map(|(what, prompt)| {
        let (fleet, mut ask) = (fleet.clone(), ask());
        Part::new(format!("decide among {replicas}, {what}"), 1, 0, move || {
            ask.seed += 1;
            let candidates = fleet.candidates(black_box(&prompt), &ask);
            black_box(fleet.policy.pick(&candidates, &ask));
        })
    });
    let shadow = [PolicyKind::LeastRequests, PolicyKind::PrefixAffinity, PolicyKind::Session];
    let explaining = [("", &[][..]), (" and 3 in shadow", &shadow[..])].map(|(what, shadow)| {
        let policies: Vec<Policy> =
            shadow.iter().map(|kind| Policy { kind: *kind, ..fleet.policy }).collect();
        let fleet = fleet.clone();
        let ids: Arc<[BackendId]> = (0..replicas).map(|_| BackendId::new("vllm-0")).collect();
        let (ask, prompt) = (ask(), Prompt::default());
        let candidates = fleet.candidates(&prompt, &ask);
        Part::new(format!("explain{what} among {replicas}"), 1, 0, move || {
            let question = Question::new(fleet.policy, black_box(&candidates).clone(), ask);
            let choice = question.pick().unwrap();
            let condition = Condition::default();
            black_box(Decision::new(question, choice, condition, &ids, &policies));
        })
    });
    deciding.into_iter().chain(explaining).collect()
}

/// What is done to a prompt of 32k tokens.
pub(super) fn prompts() -> [Part; 2] {
    let body = vec![b'x'; LONG];
    let blocks = Prompt::new(1, std::iter::once(&body[..])).blocks;
    let table = PrefixTable::new(4_000);
    [
        Part::new("hash 32k tokens", 1, LONG, move || {
            black_box(Prompt::new(1, std::iter::once(black_box(&body[..]))));
        }),
        Part::new("remember 32k tokens", 1, LONG, move || {
            table.touch(black_box(&blocks));
        }),
    ]
}

fn ask() -> Ask {
    Ask { sequence: 5, seed: 7, session: None }
}

/// A prompt of this many bytes, whose first half is the same for all seeds.
fn prompt(bytes: usize, seed: u8) -> Prompt {
    let (head, tail) = (vec![b'h'; bytes / 2], vec![seed; bytes / 2]);
    Prompt::new(1, [&head[..], &tail[..]].into_iter())
}

/// The prompts that a replica was sent.
fn sent(replica: usize) -> impl Iterator<Item = Prompt> {
    (0..4).map(move |seed| prompt(32_768, (replica * 4 + seed) as u8))
}

impl Fleet {
    fn new(replicas: usize) -> Self {
        let now = clock::now();
        let shortlist = Shortlist::new(now, replicas);
        let ledgers: Vec<Ledger> = (0..replicas).map(|replica| ledger(replica, now)).collect();
        for (replica, ledger) in ledgers.iter().enumerate() {
            sent(replica).for_each(|prompt| shortlist.sent(&prompt, replica));
            let candidate = || Some(ledger.candidate(&Prompt::default(), now));
            shortlist.show(replica, now, candidate);
        }
        Self {
            ledgers,
            all: (0..replicas).collect(),
            shortlist,
            policy: Policy { kind: PolicyKind::KvAware, ..Policy::default() },
            now,
        }
    }

    fn candidates(&self, prompt: &Prompt, ask: &Ask) -> Vec<Candidate> {
        let short = self.shortlist.of(self.policy.kind, &self.all, prompt, ask);
        let positions = short.as_deref().unwrap_or(&self.all);
        let candidate = |place: &usize| Candidate {
            place: *place,
            ..self.ledgers[*place].candidate(prompt, self.now)
        };
        positions.iter().map(candidate).collect()
    }
}

fn ledger(replica: usize, now: Instant) -> Ledger {
    let ledger = Ledger::new(now, Duration::from_secs(5));
    let report = Report {
        kv_usage: Some((replica % 100) as f64 / 100.0),
        waiting: (replica % 3) as f64,
        running: (replica % 40) as f64,
        capacity: Some(400_000),
        tokens: Some(f64::from(u32::MAX)),
    };
    ledger.on_report(&report, &ledger.own(), now);
    for prompt in sent(replica) {
        ledger.promise(&ledger.candidate(&prompt, now), &prompt, true, now);
    }
    ledger
}
