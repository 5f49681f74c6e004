//! The part of the rule `unusual_responses` about the generated text. An engine with damaged weights, or with
//! another dtype or kernel than its peers, generates different texts for the same traffic.
//!
//! A mean is compared with that of the peers and with the past of the backend itself. Routing can send the
//! requests of one application to one backend, so neither of the two alone shows a fault.

use crate::rule::prelude::*;

/// Minimum number of texts of the backend, and also of all its peers together.
const MIN_TEXTS: f64 = 12.0;
const MIN_TEXTS_OF_PEERS: f64 = 60.0;
/// Minimum difference of the means in standard errors. A difference this large occurs by chance less than once
/// in 10¹⁴ comparisons.
const MIN_ERRORS: f64 = 8.0;
/// Maximum relative difference of the mean prompt length from usual. Above it, the traffic has changed, and
/// texts are not compared.
const MAX_PROMPT_CHANGE: f64 = 0.25;

/// A property of texts whose mean is compared.
struct TextProperty {
    measure: WindowMeasure,
    squares: StepSignal,
    /// Minimum relative difference of the mean, both from the mean of the peers and from the usual mean.
    difference: f64,
    /// Minimum absolute difference of the means.
    least: f64,
    cause: &'static str,
}

const PROPERTIES: [TextProperty; 4] = [
    TextProperty {
        measure: WindowMeasure::DistinctPieces,
        squares: StepSignal::DistinctSquares,
        difference: 0.15,
        least: 0.0,
        cause: "its answers repeat themselves more or less than those of its peers and its own before: its \
                engine or its model files",
    },
    TextProperty {
        measure: WindowMeasure::PieceBytes,
        squares: StepSignal::PieceBytesSquares,
        difference: 0.25,
        least: 0.0,
        cause: "its tokens are longer or shorter than those of its peers and its own before: its engine or its \
                model files",
    },
    TextProperty {
        measure: WindowMeasure::NonAsciiShare,
        squares: StepSignal::NonAsciiSquares,
        difference: 0.5,
        least: 0.2,
        cause: "its answers are in another script than those of its peers and its own before: its tokenizer, its \
                engine or its model files",
    },
    // Square roots make the lengths of answers vary less.
    TextProperty {
        measure: WindowMeasure::AnswerLength,
        squares: StepSignal::ServedTokens,
        difference: 0.4,
        least: 0.0,
        cause: "its answers are far longer or shorter than those of its peers and its own before: its engine or \
                its model files",
    },
];

/// The number of texts, and the mean and variance of a property.
struct Moments {
    count: f64,
    mean: f64,
    variance: f64,
}

/// The match for the first property that shows a fault. `None`: no property shows one.
pub(super) fn judge_texts(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let prompts = evaluation.minute.get(WindowMeasure::PromptTokens);
    let usual = evaluation.history.past(WindowMeasure::PromptTokens);
    let has_usual_prompts = match (prompts, usual) {
        (Some(prompts), Some(usual)) => (prompts - usual).abs() <= MAX_PROMPT_CHANGE * usual,
        _ => true,
    };
    if !has_usual_prompts {
        return None;
    }
    PROPERTIES
        .iter()
        .find_map(|property| property.judge(evaluation))
}

impl TextProperty {
    fn judge(&self, evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
        let total = self.measure.ratio()?.total;
        let has_enough = evaluation.minute.total(total) >= MIN_TEXTS;
        let span = if has_enough { FAST } else { LONG_WINDOW };
        let window = evaluation.history.window(span);
        let own = self.moments(&[window], MIN_TEXTS)?;
        let peers = windows(evaluation.peers(), span);
        let peers = self.moments(&peers, MIN_TEXTS_OF_PEERS)?;
        // Applications differ in the lengths of their answers, so the first half minute does not show what is
        // usual.
        let usual = if self.measure == WindowMeasure::AnswerLength {
            evaluation.history.usual(self.measure)?
        } else {
            evaluation.history.past(self.measure)?
        };
        let recent = evaluation.recent.get(self.measure);
        let error = (own.variance / own.count + peers.variance / peers.count).sqrt();
        let difference = own.mean - peers.mean;
        let is_significant = difference.abs() >= MIN_ERRORS * error;
        let departs = |value: f64| {
            let from_peers = value - peers.mean;
            let from_usual = value - usual;
            from_peers.abs() >= self.least.max(self.difference * peers.mean)
                && from_usual.abs() >= self.least.max(self.difference * usual)
                && (from_peers > 0.0) == (from_usual > 0.0)
        };
        if !is_significant || !departs(own.mean) || recent.is_some_and(|recent| !departs(recent)) {
            return None;
        }
        let seconds = window.seconds();
        let evidence = vec![
            Evidence::of(self.measure, own.mean, Some(usual), seconds),
            Evidence::new("of_others", peers.mean, self.measure.unit(), seconds),
        ];
        Some(RuleMatch::new(2, evidence).because(self.cause))
    }

    /// The moments of the property in these windows. `None`: there are fewer than `least` texts.
    fn moments(&self, windows: &[StepWindow<'_>], least: f64) -> Option<Moments> {
        let Ratio { part, total, .. } = self.measure.ratio()?;
        let mean = Ratio::of(part, total, least).of_all(windows)?;
        let square = Ratio::of(self.squares, total, least).of_all(windows)?;
        Some(Moments {
            count: windows.iter().map(|it| it.total(total)).sum(),
            mean,
            variance: (square - mean * mean).max(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        BackendRequestCounts, Diagnoser, DiagnosisSample, EVERY, GatewayObservations, Verdict,
    };
    use std::time::Instant;
    use tokenweir_engine::address::BackendId;
    use tokenweir_engine::dialect::EngineLoad;
    use tokenweir_protocol::clock;

    const BACKENDS: usize = 12;

    /// The style of an engine: the mean and deviation of the number of different pieces among 32, and the mean
    /// length of a piece in bytes.
    #[derive(Clone, Copy)]
    struct Style {
        distinct: f64,
        spread: f64,
        bytes: f64,
    }

    const HEALTHY: Style = Style {
        distinct: 24.0,
        spread: 3.0,
        bytes: 4.2,
    };

    struct Fleet {
        diagnoser: Diagnoser,
        now: Instant,
        random: fastrand::Rng,
    }

    impl Fleet {
        fn new() -> Self {
            Self {
                diagnoser: Diagnoser::default(),
                now: clock::epoch(),
                random: fastrand::Rng::with_seed(7),
            }
        }

        /// Approximately normal noise with mean 0 and deviation 1, as a sum of uniform numbers.
        fn noise(&mut self) -> f64 {
            (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
        }

        fn counts(&mut self, style: Style, streams: u64) -> BackendRequestCounts {
            let mut counts = BackendRequestCounts {
                finished: streams,
                served: streams,
                responses: streams,
                texts: streams,
                ..BackendRequestCounts::default()
            };
            for _ in 0..streams {
                let distinct = (style.distinct + style.spread * self.noise())
                    .round()
                    .clamp(1.0, 32.0);
                let bytes = (style.bytes + 0.5 * self.noise()).max(1.0);
                let tokens = (200.0 + 60.0 * self.noise()).max(32.0);
                counts.repetitive_texts += u64::from(distinct <= 8.0);
                counts.distinct_pieces += distinct;
                counts.distinct_squares += distinct * distinct;
                counts.piece_bytes += bytes;
                counts.piece_bytes_squares += bytes * bytes;
                counts.served_tokens += tokens as u64;
                counts.served_roots += tokens.sqrt();
                counts.prompt_tokens += 500.0;
            }
            counts
        }

        /// Runs one step in which each backend ends the given number of streams in its style.
        fn step(&mut self, streams: u64, styles: &[Style]) -> Vec<Verdict> {
            self.now += EVERY;
            let mut samples = Vec::new();
            for (index, style) in styles.iter().enumerate() {
                let gateway = GatewayObservations {
                    weight: 1,
                    counts: self.counts(*style, streams),
                    ..GatewayObservations::default()
                };
                let page = EngineLoad {
                    running: Some(1.0),
                    waiting: Some(0.0),
                    ..EngineLoad::default()
                };
                samples.push((
                    BackendId::new(&format!("gpu-{index}")),
                    DiagnosisSample {
                        is_up: true,
                        page: Some(page),
                        gateway: Some(gateway),
                        ..DiagnosisSample::at(self.now)
                    },
                ));
            }
            let mut verdicts = self.diagnoser.diagnose(samples, self.now).verdicts;
            verdicts.retain(|verdict| verdict.verdict == "unusual_responses");
            verdicts
        }
    }

    fn named(verdicts: &[Verdict]) -> Vec<&str> {
        verdicts.iter().map(|it| &*it.backend).collect()
    }

    #[test]
    fn three_corrupted_of_twelve_streams_are_named_soon() {
        for corrupted in [
            Style {
                distinct: 1.0,
                spread: 0.0,
                bytes: 1.0,
            },
            Style {
                distinct: 28.5,
                spread: 1.5,
                bytes: 6.5,
            },
        ] {
            let mut fleet = Fleet::new();
            for _ in 0..60 {
                assert_eq!(fleet.step(1, &[HEALTHY; BACKENDS]), []);
            }
            let mut styles = [HEALTHY; BACKENDS];
            styles[2] = corrupted;
            styles[5] = corrupted;
            styles[9] = corrupted;
            let steps = 200 / BACKENDS;
            let found = (0..steps).map(|_| fleet.step(1, &styles));
            let last = found.last().unwrap_or_default();
            assert_eq!(named(&last), ["gpu-2", "gpu-5", "gpu-9"]);
        }
    }

    #[test]
    fn none_of_a_million_healthy_streams_is_named() {
        let mut fleet = Fleet::new();
        let per_step = 40;
        for step in 0..1_000_000 / (per_step * BACKENDS as u64) {
            let found = fleet.step(per_step, &[HEALTHY; BACKENDS]);
            assert_eq!(found, [], "{step}");
        }
    }

    #[test]
    fn other_traffic_at_one_backend_is_no_fault() {
        let mut fleet = Fleet::new();
        let mut styles = [HEALTHY; BACKENDS];
        styles[0] = Style {
            distinct: 16.0,
            spread: 4.0,
            bytes: 2.5,
        };
        for _ in 0..60 {
            assert_eq!(fleet.step(20, &styles), [], "its own past is the same");
        }
    }
}
