//! Fills in the estimates of candidates with few observations from those of the other candidates.

use super::{Candidate, PrefillCost};

/// Moves estimates with little evidence to those of the other candidates.
///
/// - A prefill cost moves to the mean of all candidates, weighted by evidence. A learned difference
///   between backends needs evidence: the first output of a backend is often slow, because the
///   engine compiles or loads something.
/// - A candidate without any observation gets the prefill cost of the fastest candidate. With the
///   default cost, a new backend could get no request, or all requests until its first output.
/// - Token counts without an observation become the mean of the others.
pub fn impute_missing_estimates(candidates: &mut [Candidate]) {
    shrink_prefill_costs(candidates);
    impute_token_counts(candidates);
}

fn shrink_prefill_costs(candidates: &mut [Candidate]) {
    let evidence_of = |candidate: &Candidate| f64::from(candidate.evidence);
    let evidence: f64 = candidates.iter().map(evidence_of).sum();
    if evidence <= 0.0 {
        return;
    }
    let mean = |read: fn(&PrefillCost) -> f64| {
        let weighted = |candidate: &Candidate| evidence_of(candidate) * read(&candidate.prefill);
        candidates.iter().map(weighted).sum::<f64>() / evidence
    };
    let fleet =
        PrefillCost { base: mean(|cost| cost.base), per_token: mean(|cost| cost.per_token) };
    for candidate in candidates.iter_mut().filter(|candidate| candidate.evidence > 0.0) {
        let squared = evidence_of(candidate).powi(2);
        let own = squared / (squared + HALF_EVIDENCE * HALF_EVIDENCE);
        let blend = |own_value: f64, mean: f64| own * own_value + (1.0 - own) * mean;
        candidate.prefill = PrefillCost {
            base: blend(candidate.prefill.base, fleet.base),
            per_token: blend(candidate.prefill.per_token, fleet.per_token),
        };
    }
    let seconds = |candidate: &&Candidate| candidate.prefill.seconds(REFERENCE_PROMPT_TOKENS);
    let observed = candidates.iter().filter(|candidate| candidate.evidence > 0.0);
    let fastest = observed.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let Some(cost) = fastest.map(|candidate| candidate.prefill) else { return };
    for candidate in candidates.iter_mut().filter(|candidate| candidate.evidence <= 0.0) {
        candidate.prefill = cost;
    }
}

/// Prompt length in tokens at which the prefill costs of candidates are compared.
const REFERENCE_PROMPT_TOKENS: f64 = 1_000.0;
/// Number of observations at which the own cost and the mean of the fleet count equally.
const HALF_EVIDENCE: f64 = 4.0;

/// Gives candidates without reported usage the mean token counts of those with it: all candidates
/// serve the same model, so the same prompt has about as many tokens at each. `cached` is scaled.
fn impute_token_counts(candidates: &mut [Candidate]) {
    let with_usage = candidates.iter().filter(|candidate| candidate.has_usage);
    let sums = with_usage.fold([0.0; 3], |[count, prompt, output], candidate| {
        [count + 1.0, prompt + candidate.prompt, output + candidate.output]
    });
    let [prompt, output] = [sums[1] / sums[0], sums[2] / sums[0]];
    if prompt > 0.0 {
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.has_usage) {
            candidate.cached *= prompt / candidate.prompt;
            (candidate.prompt, candidate.output) = (prompt, output);
        }
    }
}
