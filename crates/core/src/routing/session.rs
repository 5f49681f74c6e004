//! Always the same replica for a session: the highest random weight (Thaler and Ravishankar
//! 1996), so that a replica which comes or goes moves only its own sessions. One that is far
//! busier than the others is passed over for the next. Requests without a session go where the
//! fewest are.

use super::prefix_affinity::bound;
use super::{Ask, Candidate, Choice, least_requests, load, mix, unit};

pub(super) fn pick(candidates: &[Candidate], ask: &Ask) -> Choice {
    let Some(session) = ask.session else { return least_requests::pick(candidates, ask) };
    let bound = bound(candidates);
    let home = highest(candidates, session, |_| true);
    let index = highest(candidates, session, |candidate| load(candidate) <= bound).or(home);
    let reason = if index == home { "session" } else { "session_too_busy" };
    Choice { index: index.unwrap_or(0), reason }
}

/// The candidate with the highest weight for a session, of those that are `open`.
pub(super) fn highest(
    candidates: &[Candidate],
    session: u64,
    open: impl Fn(&Candidate) -> bool,
) -> Option<usize> {
    let open = candidates.iter().enumerate().filter(|(_, candidate)| open(candidate));
    let scores = open.map(|(index, candidate)| (index, score(candidate, session)));
    scores.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index)
}

/// −weight ÷ ln(u), with u drawn from the session and the replica: the highest is each as often as
/// its weight says.
fn score(candidate: &Candidate, session: u64) -> f64 {
    let drawn = unit(mix(session ^ candidate.key));
    -f64::from(candidate.weight.max(1)) / drawn.max(f64::MIN_POSITIVE).ln()
}
