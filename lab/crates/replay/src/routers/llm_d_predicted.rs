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
use std::collections::HashMap;
use tokenweir_routing::Candidate;

/// The predicted-latency endpoint picker of llm-d, reimplemented for simulations.
#[derive(Debug)]
pub struct PredictedLatencyRouter {
    /// The objectives of TTFT and TPOT in seconds. Infinity: there is no objective.
    objectives: [f64; 2],
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
    /// Predicted TTFT and predicted TPOT in seconds.
    seconds: [f64; 2],
    /// Objective minus prediction in seconds, for TTFT and for TPOT.
    headroom: [f64; 2],
    requests: u32,
}

/// Minimum share of a prompt that a backend must have got before, so that the router prefers it for this
/// prompt (the backend is sticky). The first value applies before the choice of the tier, the second value
/// after it.
const AFFINITY_SHARES: [f64; 2] = [0.99, 0.80];
/// Greatest difference in seconds by which the predicted TTFT of the sticky backends may exceed that of the
/// others.
const MAX_TTFT_PENALTY: f64 = 18.0;
/// Share of the decisions that use backends that miss an objective, although other backends meet it.
const EXPLORATION_SHARE: f64 = 0.01;
/// Weights of the headroom of TTFT and of TPOT.
const HEADROOM_WEIGHTS: [f64; 2] = [0.8, 0.2];
/// Scores are rounded to a multiple of 1 ÷ this number.
const SCORE_STEPS: f64 = 100.0;

impl PredictedLatencyRouter {
    /// Creates an endpoint picker whose models are not trained. `objectives`: TTFT and TPOT in seconds,
    /// infinity for no objective.
    pub(crate) fn new(backends: usize, objectives: [f64; 2]) -> Self {
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
        let predictions: Vec<Prediction> =
            shares.map(|(index, share)| self.predict(view, index, share)).collect();
        let all: Vec<usize> = (0..predictions.len()).collect();
        let sticky = sticky(&predictions, all, AFFINITY_SHARES[0]);
        let tier = tier(&predictions, sticky, random.f64() < EXPLORATION_SHARE);
        let kept = self::sticky(&predictions, tier, AFFINITY_SHARES[1]);
        let has_model = self.ttft_model.is_trained();
        let scores =
            if has_model { scores(&predictions, kept) } else { fallback(view, &predictions) };
        // The backend with the greatest U^(1 / score) wins, where U is a random number from 0 to 1.
        let keys =
            scores.into_iter().map(|(index, score)| (index, random.f64().powf(score.recip())));
        let index = keys.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index);
        let position = view.candidates[index].position;
        let share = predictions[index].share;
        let (ttft_features, tpot_features) = self.features(view, index, share);
        let prefill_tokens = (1.0 - share) * f64::from(view.job.prompt_tokens);
        self.backlogs[position] += prefill_tokens;
        self.sent.send(&view.job.prompt.blocks, position, view.cache_blocks(position));
        let request = ActiveRequest { position, prefill_tokens, ttft_features, tpot_features };
        self.active.insert(view.number, request);
        index
    }

    fn predict(&self, view: &RoutingInput<'_>, index: usize, share: f64) -> Prediction {
        let (ttft_features, tpot_features) = self.features(view, index, share);
        let seconds =
            [self.ttft_model.predict(&ttft_features), self.tpot_model.predict(&tpot_features)];
        let headroom = [0, 1].map(|measure| {
            let objective = self.objectives[measure];
            if objective.is_finite() { objective - seconds[measure] } else { -seconds[measure] }
        });
        let requests = view.candidates[index].in_flight;
        Prediction { share, seconds, headroom, requests }
    }

    /// The input features of the TTFT model and of the TPOT model, scaled to values of about 1.
    fn features(&self, view: &RoutingInput<'_>, index: usize, share: f64) -> (Vec<f64>, Vec<f64>) {
        let Candidate { position, in_flight: requests, .. } = view.candidates[index];
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
        let Some(active) = self.active.remove(&number) else { return };
        self.backlogs[active.position] -= active.prefill_tokens;
        if let Some(tpot) = tpot {
            self.tpot_model.train(&active.tpot_features, tpot);
        }
    }
}

const TTFT_FEATURES: usize = 10;
const TPOT_FEATURES: usize = 6;

/// `prefix-cache-affinity-filter`: keeps only the backends that have at least this share of the prompt,
/// unless their predicted TTFT is too long.
fn sticky(predictions: &[Prediction], kept: Vec<usize>, share: f64) -> Vec<usize> {
    let is_sticky = |index: &&usize| predictions[**index].share >= share;
    let least = |is_wanted: bool| {
        let indexes = kept.iter().filter(|index| is_sticky(index) == is_wanted);
        indexes.map(|index| predictions[*index].seconds[0]).fold(f64::INFINITY, f64::min)
    };
    let is_open = !least(true).is_finite() || least(true) - least(false) > MAX_TTFT_PENALTY;
    if is_open { kept } else { kept.iter().filter(is_sticky).copied().collect() }
}

/// `slo-headroom-tier-filter`: keeps only the backends that meet the objectives, if there are any.
/// `explores`: keeps the others instead.
fn tier(predictions: &[Prediction], kept: Vec<usize>, explores: bool) -> Vec<usize> {
    let (met, missed): (Vec<usize>, Vec<usize>) = kept
        .into_iter()
        .partition(|index| predictions[*index].headroom.iter().all(|headroom| *headroom >= 0.0));
    if missed.is_empty() || !met.is_empty() && !explores { met } else { missed }
}

/// `latency-scorer` with the strategy `least`: the backends whose predictions are closest to the objective
/// score highest.
fn scores(predictions: &[Prediction], kept: Vec<usize>) -> Vec<(usize, f64)> {
    let bucket = |index: &usize| {
        let Prediction { headroom: [ttft, tpot], requests, .. } = predictions[*index];
        match (ttft < 0.0, tpot < 0.0) {
            (false, false) => 0,
            _ if requests == 0 => 1,
            (false, true) => 2,
            (true, false) => 3,
            (true, true) => 4,
        }
    };
    let best = kept.iter().map(bucket).min().unwrap_or(0);
    let kept: Vec<usize> = kept.into_iter().filter(|index| bucket(index) == best).collect();
    let headroom = |index: usize, measure: usize| predictions[index].headroom[measure].abs();
    let ranges = [0, 1].map(|measure| {
        let values = || kept.iter().map(|index| headroom(*index, measure));
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    });
    let has_range = ranges.map(|(least, most)| most - least > 1e-9);
    let weights = match has_range {
        [true, false] => [1.0, 0.0],
        [false, true] => [0.0, 1.0],
        _ => HEADROOM_WEIGHTS,
    };
    let score = |index: usize| {
        let part = |measure: usize| {
            let (least, most) = ranges[measure];
            let normal = (headroom(index, measure) - least) / (most - least);
            weights[measure] * if has_range[measure] { normal } else { 0.5 }
        };
        (((1.0 - part(0) - part(1)) * SCORE_STEPS).floor() + 1.0) / SCORE_STEPS
    };
    kept.iter().map(|index| (*index, score(*index))).collect()
}

/// The score while the models are not trained: the mean of the free share of the KV cache, of the shortness
/// of the queue, and of the cached share of the prompt.
fn fallback(view: &RoutingInput<'_>, predictions: &[Prediction]) -> Vec<(usize, f64)> {
    let report = |index: usize| &view.reports[view.candidates[index].position];
    let longest = (0..predictions.len()).map(|index| report(index).waiting).fold(0.0, f64::max);
    let score = |index: usize| {
        let queue = if longest > 0.0 { 1.0 - report(index).waiting / longest } else { 1.0 };
        let free = 1.0 - report(index).kv_usage.unwrap_or(0.0);
        ((free + queue + predictions[index].share) / 3.0).max(0.01)
    };
    (0..predictions.len()).map(|index| (index, score(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(share: f64, ttft: f64, headroom: [f64; 2], requests: u32) -> Prediction {
        Prediction { share, seconds: [ttft, 0.01], headroom, requests }
    }

    #[test]
    fn the_prefix_wins_until_it_takes_too_long() {
        let at = |ttft| [prediction(0.9, ttft, [0.0; 2], 1), prediction(0.0, 1.0, [0.0; 2], 1)];
        assert_eq!(sticky(&at(18.0), vec![0, 1], 0.8), [0]);
        assert_eq!(sticky(&at(20.0), vec![0, 1], 0.8), [0, 1]);
        assert_eq!(sticky(&at(1.0), vec![0, 1], 0.99), [0, 1]);
    }

    #[test]
    fn the_narrowest_met_objective_wins() {
        let predictions = [
            prediction(0.0, 1.0, [-0.1, 0.01], 2),
            prediction(0.0, 1.0, [0.4, 0.01], 2),
            prediction(0.0, 1.0, [0.1, 0.01], 2),
        ];
        let met = tier(&predictions, vec![0, 1, 2], false);
        assert_eq!(met, [1, 2]);
        assert_eq!(scores(&predictions, met), [(1, 0.01), (2, 1.01)]);
        assert_eq!(tier(&predictions, vec![0, 1, 2], true), [0]);
    }

    #[test]
    fn idle_backends_win_if_all_miss() {
        let predictions =
            [prediction(0.0, 1.0, [-0.1, -0.1], 2), prediction(0.0, 1.0, [-0.4, -0.1], 0)];
        assert_eq!(scores(&predictions, vec![0, 1])[0].0, 1);
    }
}
