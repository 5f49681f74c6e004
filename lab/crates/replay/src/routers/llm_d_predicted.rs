//! The predicted-latency scheduling of llm-d. It has models of the time to first token (TTFT) and of the time
//! per output token (TPOT), which are trained on the responses. A scorer rates the headroom: how far the
//! predictions are below the objectives.
//!
//! Source: llm-d-router at ebab6879, `config/charts/routerlib/templates/_config.yaml` (the order of the
//! plugins and their parameters), `scheduling/scorer/latency`,
//! `scheduling/filter/{prefixcacheaffinity,sloheadroomtier}`, `scheduling/picker/weightedrandom` and
//! `requestcontrol/dataproducer/predictedlatency`; the features are those of
//! `docs/architecture/advanced/latency-predictor.md` of llm-d.
//!
//! Simplifications:
//! - Ridge regression with exponential forgetting over the same features and some products of them, instead
//!   of `XGBoost` over stratified samples. It is trained after each response, the original in batches.
//! - The mode `streamingMode: true`, which the objectives need. All responses are streams.
//! - TPOT is trained with the mean of a response and with the features at its start.
//! - The objectives are those of the whole gateway instead of a header of each request. Without an
//!   objective, the headroom is the negative prediction, as in the original.
//! - The model is common to all backends, as in the original, which assumes equal backends.

use super::online_regression::OnlineRegression;
use super::prefix_index::PrefixIndex;
use super::routing_input::RoutingInput;
use crate::results::LatencyObjectives;
use std::collections::HashMap;
use tokenweir_routing::Candidate;

/// The predicted-latency endpoint picker of llm-d, reimplemented for simulations.
#[derive(Debug)]
pub struct PredictedLatencyRouter {
    /// Infinity: there is no objective.
    objectives: LatencyObjectives,
    /// Prompt tokens of the requests without output at each backend, by position.
    backlogs: Vec<f64>,
    sent: PrefixIndex,
    ttft_model: OnlineRegression,
    tpot_model: OnlineRegression,
    /// The active requests, by their number in the trace.
    active: HashMap<usize, ActiveRequest>,
}

#[derive(Debug)]
struct ActiveRequest {
    position: usize,
    prefill_tokens: f64,
    ttft_features: Vec<f64>,
    tpot_features: Vec<f64>,
}

/// The values that the scorer uses about a backend.
#[derive(Debug, Clone, Copy)]
struct Prediction {
    /// Share of the prompt that was sent to the backend before.
    share: f64,
    /// Predicted TTFT in seconds.
    ttft: f64,
    headroom: Headroom,
    requests: u32,
}

/// Objective minus prediction in seconds.
#[derive(Debug, Clone, Copy)]
struct Headroom {
    ttft: f64,
    tpot: f64,
}

/// Minimum share of a prompt that a backend must have got before, so that the router prefers it for this
/// prompt (the backend is sticky), before the choice of the tier.
const FIRST_AFFINITY_SHARE: f64 = 0.99;
/// The minimum share after the choice of the tier.
const SECOND_AFFINITY_SHARE: f64 = 0.80;
/// Maximum difference in seconds by which the predicted TTFT of the sticky backends may exceed that of the
/// others.
const MAX_TTFT_PENALTY: f64 = 18.0;
/// Share of the decisions that use backends that miss an objective, although other backends meet it.
const EXPLORATION_SHARE: f64 = 0.01;
const TTFT_WEIGHT: f64 = 0.8;
const TPOT_WEIGHT: f64 = 0.2;
/// Scores are rounded to a multiple of 1 ÷ this number.
const SCORE_STEPS: f64 = 100.0;

impl PredictedLatencyRouter {
    /// Creates an endpoint picker whose models are not trained. `objectives`: infinity for no objective.
    pub(crate) fn new(backends: usize, objectives: LatencyObjectives) -> Self {
        Self {
            objectives,
            backlogs: vec![0.0; backends],
            sent: PrefixIndex::new(backends),
            ttft_model: OnlineRegression::new(TTFT_FEATURES),
            tpot_model: OnlineRegression::new(TPOT_FEATURES),
            active: HashMap::new(),
        }
    }

    pub(crate) fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        let mut random = fastrand::Rng::with_seed(view.routing_request.seed);
        let shares = self.sent.shares(view).into_iter().enumerate();
        let predictions: Vec<Prediction> = shares
            .map(|(index, share)| self.predict(view, index, share))
            .collect();
        let all: Vec<usize> = (0..predictions.len()).collect();
        let sticky = sticky(&predictions, all, FIRST_AFFINITY_SHARE);
        let tier = tier(&predictions, sticky, random.f64() < EXPLORATION_SHARE);
        let kept = self::sticky(&predictions, tier, SECOND_AFFINITY_SHARE);
        let has_model = self.ttft_model.is_trained();
        let scores = if has_model {
            scores(&predictions, kept)
        } else {
            fallback(view, &predictions)
        };
        // The backend with the greatest U^(1 / score) wins, where U is a random number from 0 to 1.
        let keys = scores
            .into_iter()
            .map(|(index, score)| (index, random.f64().powf(score.recip())));
        let index = keys
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |(index, _)| index);
        let position = view.candidates[index].position;
        let share = predictions[index].share;
        let (ttft_features, tpot_features) = self.features(view, index, share);
        let prefill_tokens = (1.0 - share) * f64::from(view.job.prompt_tokens);
        self.backlogs[position] += prefill_tokens;
        self.sent.send(
            &view.job.prompt.blocks,
            position,
            view.cache_blocks(position),
        );
        let request = ActiveRequest {
            position,
            prefill_tokens,
            ttft_features,
            tpot_features,
        };
        self.active.insert(view.number, request);
        index
    }

    fn predict(&self, view: &RoutingInput<'_>, index: usize, share: f64) -> Prediction {
        let (ttft_features, tpot_features) = self.features(view, index, share);
        let ttft = self.ttft_model.predict(&ttft_features);
        let tpot = self.tpot_model.predict(&tpot_features);
        let headroom = Headroom {
            ttft: headroom(self.objectives.ttft, ttft),
            tpot: headroom(self.objectives.tpot, tpot),
        };
        let requests = view.candidates[index].in_flight;
        Prediction {
            share,
            ttft,
            headroom,
            requests,
        }
    }

    /// The input features of the TTFT model and of the TPOT model, scaled to values of about 1.
    fn features(&self, view: &RoutingInput<'_>, index: usize, share: f64) -> (Vec<f64>, Vec<f64>) {
        let Candidate {
            position,
            in_flight: requests,
            ..
        } = view.candidates[index];
        let report = &view.reports[position];
        let prompt = f64::from(view.job.prompt_tokens) / 1e4;
        let uncached = prompt * (1.0 - share);
        let usage = report.kv_usage.unwrap_or(0.0);
        let waiting = report.waiting / 10.0;
        let running = f64::from(requests) / 100.0;
        let in_flight = self.backlogs[position] / 1e4;
        let ttft = vec![
            1.0,
            usage,
            prompt,
            waiting,
            running,
            share,
            in_flight,
            uncached,
            uncached * running,
            waiting * prompt,
        ];
        (ttft, vec![1.0, usage, prompt, waiting, running, in_flight])
    }

    /// Records the first output of a request. `ttft`: the time to first token in seconds.
    pub(crate) fn on_first_output(&mut self, number: usize, ttft: f64) {
        if let Some(active) = self.active.get_mut(&number) {
            self.ttft_model.train(&active.ttft_features, ttft);
            let tokens = std::mem::take(&mut active.prefill_tokens);
            self.backlogs[active.position] -= tokens;
        }
    }

    /// Records the end of a request. `tpot`: its mean time per output token in seconds. `None`: the
    /// response has fewer than two tokens.
    pub(crate) fn on_end(&mut self, number: usize, tpot: Option<f64>) {
        let Some(active) = self.active.remove(&number) else {
            return;
        };
        self.backlogs[active.position] -= active.prefill_tokens;
        if let Some(tpot) = tpot {
            self.tpot_model.train(&active.tpot_features, tpot);
        }
    }
}

fn headroom(objective: f64, predicted: f64) -> f64 {
    if objective.is_finite() {
        objective - predicted
    } else {
        -predicted
    }
}

const TTFT_FEATURES: usize = 10;
const TPOT_FEATURES: usize = 6;

/// The `prefix-cache-affinity-filter` of llm-d: keeps only the backends whose caches contain at least `share`
/// of the prompt. Keeps all backends if no cache contains as much, or if the least predicted TTFT of those
/// backends exceeds that of the others by more than `MAX_TTFT_PENALTY`.
fn sticky(predictions: &[Prediction], kept: Vec<usize>, share: f64) -> Vec<usize> {
    let is_sticky = |index: &&usize| predictions[**index].share >= share;
    let least = |is_wanted: bool| {
        let indexes = kept.iter().filter(|index| is_sticky(index) == is_wanted);
        indexes
            .map(|index| predictions[*index].ttft)
            .fold(f64::INFINITY, f64::min)
    };
    let is_open = !least(true).is_finite() || least(true) - least(false) > MAX_TTFT_PENALTY;
    if is_open {
        kept
    } else {
        kept.iter().filter(is_sticky).copied().collect()
    }
}

/// `slo-headroom-tier-filter`: keeps only the backends that meet the objectives, if there are any.
/// `explores`: keeps the others instead.
fn tier(predictions: &[Prediction], kept: Vec<usize>, explores: bool) -> Vec<usize> {
    let meets = |index: &usize| {
        let Headroom { ttft, tpot } = predictions[*index].headroom;
        ttft >= 0.0 && tpot >= 0.0
    };
    let (met, missed): (Vec<usize>, Vec<usize>) = kept.into_iter().partition(meets);
    if missed.is_empty() || !met.is_empty() && !explores {
        met
    } else {
        missed
    }
}

/// `latency-scorer` with the strategy `least`: the backends whose predictions are closest to the objective
/// score highest.
fn scores(predictions: &[Prediction], kept: Vec<usize>) -> Vec<(usize, f64)> {
    let bucket = |index: &usize| {
        let Prediction {
            headroom: Headroom { ttft, tpot },
            requests,
            ..
        } = predictions[*index];
        match (ttft < 0.0, tpot < 0.0) {
            (false, false) => 0,
            _ if requests == 0 => 1,
            (false, true) => 2,
            (true, false) => 3,
            (true, true) => 4,
        }
    };
    let best = kept.iter().map(bucket).min().unwrap_or(0);
    let kept: Vec<usize> = kept
        .into_iter()
        .filter(|index| bucket(index) == best)
        .collect();
    let of_ttft = Normalized::new(&kept, |index| predictions[index].headroom.ttft.abs());
    let of_tpot = Normalized::new(&kept, |index| predictions[index].headroom.tpot.abs());
    let (ttft_weight, tpot_weight) = match (of_ttft.has_range, of_tpot.has_range) {
        (true, false) => (1.0, 0.0),
        (false, true) => (0.0, 1.0),
        _ => (TTFT_WEIGHT, TPOT_WEIGHT),
    };
    let score = |at: usize| {
        let excess = 1.0 - ttft_weight * of_ttft.values[at] - tpot_weight * of_tpot.values[at];
        ((excess * SCORE_STEPS).floor() + 1.0) / SCORE_STEPS
    };
    kept.iter()
        .enumerate()
        .map(|(at, index)| (*index, score(at)))
        .collect()
}

/// The headroom of each backend, from 0 for the least to 1 for the most.
struct Normalized {
    has_range: bool,
    /// Values from 0 to 1. All are ½ if the headrooms are equal.
    values: Vec<f64>,
}

impl Normalized {
    fn new(kept: &[usize], headroom: impl Fn(usize) -> f64) -> Self {
        let values: Vec<f64> = kept.iter().map(|index| headroom(*index)).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        let has_range = most - least > 1e-9;
        let normal = |value: f64| {
            if has_range {
                (value - least) / (most - least)
            } else {
                0.5
            }
        };
        Self {
            has_range,
            values: values.into_iter().map(normal).collect(),
        }
    }
}

/// The score while the models are not trained: the mean of the free share of the KV cache, of the shortness
/// of the queue, and of the cached share of the prompt.
fn fallback(view: &RoutingInput<'_>, predictions: &[Prediction]) -> Vec<(usize, f64)> {
    let report = |index: usize| &view.reports[view.candidates[index].position];
    let longest = (0..predictions.len())
        .map(|index| report(index).waiting)
        .fold(0.0, f64::max);
    let score = |index: usize| {
        let queue = if longest > 0.0 {
            1.0 - report(index).waiting / longest
        } else {
            1.0
        };
        let free = 1.0 - report(index).kv_usage.unwrap_or(0.0);
        ((free + queue + predictions[index].share) / 3.0).max(0.01)
    };
    (0..predictions.len())
        .map(|index| (index, score(index)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(share: f64, ttft: f64, headroom: Headroom, requests: u32) -> Prediction {
        Prediction {
            share,
            ttft,
            headroom,
            requests,
        }
    }

    const NONE: Headroom = headroom(0.0, 0.0);

    const fn headroom(ttft: f64, tpot: f64) -> Headroom {
        Headroom { ttft, tpot }
    }

    #[test]
    fn the_prefix_wins_until_it_takes_too_long() {
        let at = |ttft| {
            [
                prediction(0.9, ttft, NONE, 1),
                prediction(0.0, 1.0, NONE, 1),
            ]
        };
        assert_eq!(sticky(&at(18.0), vec![0, 1], 0.8), [0]);
        assert_eq!(sticky(&at(20.0), vec![0, 1], 0.8), [0, 1]);
        assert_eq!(sticky(&at(1.0), vec![0, 1], 0.99), [0, 1]);
    }

    #[test]
    fn the_narrowest_met_objective_wins() {
        let predictions = [
            prediction(0.0, 1.0, headroom(-0.1, 0.01), 2),
            prediction(0.0, 1.0, headroom(0.4, 0.01), 2),
            prediction(0.0, 1.0, headroom(0.1, 0.01), 2),
        ];
        let met = tier(&predictions, vec![0, 1, 2], false);
        assert_eq!(met, [1, 2]);
        assert_eq!(scores(&predictions, met), [(1, 0.01), (2, 1.01)]);
        assert_eq!(tier(&predictions, vec![0, 1, 2], true), [0]);
    }

    #[test]
    fn idle_backends_win_if_all_miss() {
        let predictions = [
            prediction(0.0, 1.0, headroom(-0.1, -0.1), 2),
            prediction(0.0, 1.0, headroom(-0.4, -0.1), 0),
        ];
        assert_eq!(scores(&predictions, vec![0, 1])[0].0, 1);
    }
}
