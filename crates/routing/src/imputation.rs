//! Replaces estimates of candidates with few observations by those of the other candidates.

use super::{Candidate, PrefillCost};

/// Moves uncertain estimates towards the estimates of the other candidates.
///
/// - A prefill cost above the mean of all candidates, weighted by freshness, moves to that mean while no output
///   confirms it. Without this, a backend that was slow once, because its engine compiled something or because
///   requests waited, would get no request that shows its present speed.
/// - A candidate without any observation gets the prefill cost of the fastest candidate. With the default cost,
///   a new backend could get no request, or all requests until its first output.
/// - Token counts without an observation become the mean of the token counts of the other candidates.
pub fn impute_missing_estimates(candidates: &mut [Candidate]) {
    impute_prefill_costs(candidates);
    impute_token_counts(candidates);
}

fn impute_prefill_costs(candidates: &mut [Candidate]) {
    let mut weight = 0.0;
    let mut sum = 0.0;
    let mut fastest = f64::INFINITY;
    for candidate in &*candidates {
        let own = candidate.prefill_freshness;
        if own > 0.0 {
            let ratio = candidate.prefill.ratio();
            weight += own;
            sum += own * ratio;
            fastest = fastest.min(ratio);
        }
    }
    if weight <= 0.0 {
        return;
    }
    let fleet = sum / weight;
    for candidate in candidates {
        let own = candidate.prefill_freshness;
        let excess = candidate.prefill.ratio() - fleet;
        if own <= 0.0 {
            candidate.prefill = PrefillCost::at_ratio(fastest);
        } else if excess > 0.0 {
            candidate.prefill = PrefillCost::at_ratio(fleet + own * excess);
        }
    }
}

/// Gives candidates without reported usage the mean token counts of the candidates with reported usage, and
/// scales `cached`. All candidates serve the same model, so a prompt has about as many tokens at each of them.
fn impute_token_counts(candidates: &mut [Candidate]) {
    let mut count = 0.0;
    let mut prompt = 0.0;
    let mut output = 0.0;
    for candidate in candidates.iter().filter(|candidate| candidate.has_usage) {
        count += 1.0;
        prompt += candidate.prompt;
        output += candidate.output;
    }
    if prompt <= 0.0 {
        return;
    }
    prompt /= count;
    output /= count;
    for candidate in candidates {
        if !candidate.has_usage {
            candidate.cached *= prompt / candidate.prompt;
            candidate.prompt = prompt;
            candidate.output = output;
        }
    }
}
