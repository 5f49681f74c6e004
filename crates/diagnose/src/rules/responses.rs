//! The rule about responses that end without an error but are useless to clients: they are empty or damaged,
//! end at their maximum number of tokens, or lack what the request asked for. They are compared with earlier
//! responses of the same backend, or else with those of its peers.

use super::texts::judge_texts;
use crate::rule::prelude::*;
use std::time::Duration;
use tokenweir_request::significance::is_share_above;

/// Minimum number of responses in a window for a comparison.
const MIN_RESPONSES: f64 = 20.0;
const MIN_TEXTS: f64 = 12.0;
const MIN_UNUSUAL: f64 = 5.0;
/// A share is unusual if it is significantly above the usual share multiplied by this factor, plus a margin.
const FACTOR: f64 = 2.0;

pub(super) const UNUSUAL_RESPONSES: DiagnosisRule = DiagnosisRule {
    name: "unusual_responses",
    meaning: "Many responses of the backend are empty or damaged, lack the JSON or the tool calls that requests ask for, \
              end at the limit of their tokens, repeat themselves or differ from those of its peers, which is unusual.",
    evidence: "Of the responses of the last minute (of five minutes, if fewer than 20 ended in it), \
               five or more, and significantly more than twice the usual share plus 5 points, have no \
               answer or end with their first token. Or the same with 20 points for the finish \
               reason length, or 10 points for texts with at most 8 different pieces among the first 32, or for text instead of requested \
               JSON; or 5 points for replacement or control characters (2 % of the text), reasoning alone, or token \
               counts that contradict the answer. Or requests with tools had 20 % tool calls or more and have less \
               than a tenth of that, after a restart or while their texts begin like tool calls. Or the \
               mean number of different pieces, the mean length of a piece, the mean length of answers or the share \
               of other scripts than ASCII differs from that of the peers by eight standard errors, and from it and \
               from usual by 15, 25, 40 and 50 %, while prompts are as long as usual. Before the first minute without a verdict, the share of empty responses \
               of the peers counts as usual. A restart does not change what is usual.",
    remedy: "Send a request directly to the backend. Compare its model files, chat template, --dtype, \
             --quantization, --tokenizer, --reasoning-parser, --tool-call-parser and versions with those of its peers, and set its weight to 0 until it \
             answers. If all backends changed at once, look for a change of max_tokens, stop or \
             prompts at the clients.",
    disproof: "The access log shows that the responses with this finish reason are of a new client that \
               wants them so, for example with max_tokens 1.",
    pages: true,
    needs: &[StepSignal::Responses],
    load: LoadDependence::Requests(Ratio::of(
        StepSignal::EmptyResponses,
        StepSignal::Responses,
        5.0,
    )),
    harm: Ratio::of(StepSignal::UselessResponses, StepSignal::Responses, 0.0),
    becomes_usual: true,
    judge: |evaluation| Ok(judge_unusual_responses(evaluation)),
    ..DiagnosisRule::ENGINE
};

/// A kind of response that is useless to clients.
struct ResponseFault {
    measure: WindowMeasure,
    /// Minimum number of responses in a window for a comparison.
    min_total: f64,
    /// The share that is added to the usual share.
    margin: f64,
    /// Whether the first half minute with requests also counts as usual. True for responses that no client
    /// wants.
    is_known_early: bool,
    /// Whether the share of the peers counts as usual while the usual share of the backend is unknown. False
    /// for responses that end at a token limit, because clients choose the limit, and routing can send all
    /// requests of a client to one backend.
    has_peers: bool,
    /// The usual share if no earlier responses are known. `None`: the share of the peers.
    natural: Option<f64>,
    /// The cause if the peers have about the same share.
    cause_everywhere: &'static str,
    /// The cause if the share of the peers is lower.
    cause_here_only: &'static str,
    cause_without_peers: &'static str,
}

/// Ratio to the usual mean length from which answers count as longer or shorter.
const LONGER: f64 = 1.5;

/// Default values of a [`ResponseFault`].
const FAULT: ResponseFault = ResponseFault {
    measure: WindowMeasure::EmptyShare,
    min_total: MIN_RESPONSES,
    margin: 0.05,
    is_known_early: false,
    has_peers: true,
    natural: None,
    cause_everywhere: "",
    cause_here_only: "",
    cause_without_peers: "",
};

const FAULTS: [ResponseFault; 7] = [
    ResponseFault {
        min_total: MIN_TEXTS,
        measure: WindowMeasure::DamagedShare,
        natural: Some(0.0),
        cause_everywhere: "answers have replacement or control characters (U+FFFD) instead of text, at its peers too: \
                           the tokenizer, the model files or the detokenizer of the engines",
        cause_here_only: "answers have replacement or control characters (U+FFFD) instead of text at this backend \
                          only: its tokenizer, its model files or its detokenizer",
        cause_without_peers: "answers have replacement or control characters (U+FFFD) instead of text: its \
                              tokenizer, its model files or its detokenizer",
        ..FAULT
    },
    ResponseFault {
        measure: WindowMeasure::ReasoningAloneShare,
        is_known_early: true,
        cause_everywhere: "responses have reasoning only and no content, at its peers too: --reasoning-parser, the \
                           chat template or the model has changed",
        cause_here_only: "responses have reasoning only and no content at this backend only: its --reasoning-parser \
                          or its chat template",
        cause_without_peers: "responses have reasoning only and no content: --reasoning-parser or the chat template",
        ..FAULT
    },
    ResponseFault {
        min_total: MIN_TEXTS,
        measure: WindowMeasure::MissingJsonShare,
        margin: 0.1,
        is_known_early: true,
        cause_everywhere: "requests for JSON (response_format) get other text, at its peers too: structured outputs of \
                           the engines do not work",
        cause_here_only: "requests for JSON (response_format) get other text at this backend only: structured outputs \
                          of its engine do not work",
        cause_without_peers: "requests for JSON (response_format) get other text: structured outputs of the engine do \
                              not work",
        ..FAULT
    },
    ResponseFault {
        measure: WindowMeasure::EmptyShare,
        cause_everywhere: "responses without an answer, at its peers too: the requests, the model or \
                           its chat template have changed",
        cause_here_only: "responses without an answer at this backend only: its engine or its model \
                          files",
        cause_without_peers: "responses without an answer",
        ..FAULT
    },
    ResponseFault {
        measure: WindowMeasure::CutShare,
        margin: 0.2,
        has_peers: false,
        cause_everywhere: "responses end at the limit of their tokens (finish reason length), at its \
                           peers too: clients have lowered max_tokens, or the model does not stop",
        cause_here_only: "responses end at the limit of their tokens (finish reason length) at this \
                          backend only: its engine does not stop",
        cause_without_peers: "responses end at the limit of their tokens (finish reason length)",
        ..FAULT
    },
    ResponseFault {
        min_total: MIN_TEXTS,
        measure: WindowMeasure::RepetitiveShare,
        margin: 0.1,
        cause_everywhere: "answers repeat a few tokens, at its peers too: the requests, the model or its \
                           sampling parameters have changed",
        cause_here_only: "answers repeat a few tokens at this backend only: its engine or its model files",
        cause_without_peers: "answers repeat a few tokens",
        ..FAULT
    },
    ResponseFault {
        measure: WindowMeasure::WrongUsageShare,
        is_known_early: true,
        cause_everywhere: "the answers are whole, but the token counts in usage contradict them, at its peers too: \
                           accounts and limits of tokens are wrong",
        cause_here_only: "the answers are whole, but the token counts in its usage contradict them at this backend \
                          only: accounts and limits of tokens are wrong",
        cause_without_peers: "the answers are whole, but the token counts in usage contradict them: accounts and limits \
                              of tokens are wrong",
        ..FAULT
    },
];

/// Minimum usual share of tool calls, and then the minimum expected number of calls, for lost tool calls.
const MIN_TOOL_CALLS: f64 = 0.2;
const MIN_EXPECTED_CALLS: f64 = 8.0;
/// Maximum ratio of the share of tool calls to the usual share, for lost tool calls.
const LOST_PART: f64 = 0.1;
/// Share of texts that begin like a tool call from which the engine probably does not parse tool calls.
const LIKE_CALLS_SHARE: f64 = 0.5;
/// Time after a restart in which a change of the answers is attributed to the restart.
const RESTART_SPAN: Duration = Duration::from_mins(15);

fn judge_unusual_responses(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let fault = FAULTS.iter().find_map(|fault| fault.judge(evaluation));
    fault
        .or_else(|| judge_tool_calls(evaluation))
        .or_else(|| judge_texts(evaluation))
}

/// Whether requests with tools no longer get tool calls. Clients differ in how often their models call tools,
/// so a smaller share alone shows no fault. In addition, the process must have restarted, or the texts must
/// begin like tool calls.
fn judge_tool_calls(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let history = evaluation.history;
    let usual = history.past(WindowMeasure::ToolCallShare)?;
    let has_enough = |window: &StepWindow<'_>| {
        let answers = window.total(StepSignal::ToolAnswers);
        answers * usual >= MIN_EXPECTED_CALLS
    };
    let recent = evaluation.recent;
    // For the peers, a longer window would include the time before a common fault.
    let span = if has_enough(&recent) { RECENT } else { FAST };
    let window = evaluation.history.window(span);
    let share = window.get(WindowMeasure::ToolCallShare)?;
    if usual < MIN_TOOL_CALLS || !has_enough(&window) || share > LOST_PART * usual {
        return None;
    }
    let like_calls = window.ratio(StepSignal::TextsLikeCalls, StepSignal::ToolAnswers, 1.0);
    let is_unparsed = like_calls.is_some_and(|share| share >= LIKE_CALLS_SHARE);
    let has_restarted = history.has_restarted_within(RESTART_SPAN);
    if !is_unparsed && !has_restarted {
        return None;
    }
    let calls = Ratio::of(
        StepSignal::ToolCalls,
        StepSignal::ToolAnswers,
        MIN_EXPECTED_CALLS,
    );
    let peers = calls.of_all(&windows(evaluation.peers(), span));
    let is_here_only = peers.is_some_and(|peers| peers > LOST_PART * usual);
    let cause = if is_here_only {
        "requests with tools get text instead of tool calls at this backend only: its \
         --tool-call-parser or its chat template"
    } else {
        "requests with tools get text instead of tool calls: --tool-call-parser, the chat \
         template or the model has changed"
    };
    let measure = WindowMeasure::ToolCallShare;
    let evidence = Evidence::of(measure, share, Some(usual), window.seconds());
    let signals = 1 + usize::from(is_unparsed) + usize::from(has_restarted);
    let found = RuleMatch::new(signals, vec![evidence]).because(cause);
    Some(if has_restarted {
        found.remedy(
            "It began with the restart of the process: compare its arguments with those before.",
        )
    } else {
        found
    })
}

impl ResponseFault {
    fn judge(&self, evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
        let Ratio { part, total, .. } = self.measure.ratio()?;
        let is_short = evaluation.minute.total(total) >= self.min_total;
        let span = if is_short { FAST } else { LONG_WINDOW };
        let window = evaluation.history.window(span);
        // A recent window with few responses cannot show that the condition has ended.
        let recent = evaluation.recent.ratio(part, total, 3.0);
        let of_peers = Ratio::of(part, total, self.min_total);
        let of_peers = of_peers.of_all(&windows(evaluation.peers(), span));
        let part = window.sum(part)?;
        let total = window.total(total);
        let of_past = if self.is_known_early {
            evaluation.history.past(self.measure)
        } else {
            evaluation.history.usual(self.measure)
        };
        let usual = if self.has_peers {
            of_past.or(self.natural).or(of_peers)?
        } else {
            of_past?
        };
        let limit = FACTOR * usual + self.margin;
        let is_unusual = part >= MIN_UNUSUAL && is_share_above(part as u64, total as u64, limit);
        if !is_unusual || recent.is_some_and(|share| share <= limit) {
            return None;
        }
        let share = part / total;
        let cause = match of_peers {
            Some(peers) if peers >= share / 2.0 => self.common_cause(evaluation),
            Some(_) => self.cause_here_only,
            None => self.cause_without_peers,
        };
        let own = Evidence::of(self.measure, share, of_past, window.seconds());
        let others = of_peers.map(|peers| Evidence {
            measure: format!("{}_of_others", own.measure).into(),
            value: peers,
            usual: None,
            ..own.clone()
        });
        let signals = usize::from(of_past.is_some()) + usize::from(of_peers.is_some());
        let found = RuleMatch::new(signals, vec![own]).with(others);
        Some(found.because(cause))
    }

    /// The cause if the peers have about the same share. The length of answers shows why they end at a limit.
    fn common_cause(&self, evaluation: &Evaluation<'_>) -> &'static str {
        let length = evaluation.minute.get(WindowMeasure::AnswerTokens);
        let usual = evaluation.history.usual(WindowMeasure::AnswerTokens);
        match length.zip(usual) {
            _ if self.measure != WindowMeasure::CutShare => self.cause_everywhere,
            Some((length, usual)) if length >= LONGER * usual => {
                "answers are longer than usual and end at the limit of their tokens (finish \
                 reason length), at its peers too: the model does not stop; its chat template or \
                 stop tokens have changed"
            }
            Some((length, usual)) if usual >= LONGER * length => {
                "answers are shorter than usual and end at the limit of their tokens (finish \
                 reason length), at its peers too: clients have lowered max_tokens"
            }
            _ => self.cause_everywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::UNUSUAL_RESPONSES;
    use crate::fleet::tests;
    use crate::{
        BackendRequestCounts, Diagnoser, DiagnosisSample, EVERY, FleetObservation,
        GatewayObservations, RecentReload, Verdict, VerdictSeverity,
    };
    use std::time::Instant;
    use tokenweir_engine::address::BackendId;
    use tokenweir_engine::dialect::EngineLoad;
    use tokenweir_protocol::clock;
    use tokenweir_routing::resilience::Availability;

    const MINUTE: u32 = 12;

    /// A fleet whose backends answer ten requests in each step.
    struct Fleet {
        diagnoser: Diagnoser,
        now: Instant,
        /// The start time of the process of the first backend, in seconds.
        started: f64,
        observed: FleetObservation,
    }

    impl Fleet {
        fn new() -> Self {
            Self {
                diagnoser: Diagnoser::default(),
                now: clock::epoch(),
                started: 1.0,
                observed: FleetObservation::default(),
            }
        }

        /// Runs steps in which each backend has the given numbers of empty and of cut responses. Returns the
        /// verdicts of the last step.
        fn play(&mut self, steps: u32, empty: &[u64], cut: &[u64]) -> Vec<Verdict> {
            let counts = empty
                .iter()
                .zip(cut)
                .map(|(empty, cut)| BackendRequestCounts {
                    empty_responses: *empty,
                    useless_responses: *empty,
                    cut_responses: *cut,
                    ..healthy()
                });
            self.play_counts(steps, &counts.collect::<Vec<_>>())
        }

        /// Runs steps with the given counts for each backend. Returns the verdicts of the last step.
        fn play_counts(
            &mut self,
            steps: u32,
            of_backends: &[BackendRequestCounts],
        ) -> Vec<Verdict> {
            let mut verdicts = Vec::new();
            for _ in 0..steps {
                self.now += EVERY;
                let mut samples = Vec::new();
                for (index, counts) in of_backends.iter().enumerate() {
                    let started = if index == 0 { self.started } else { 1.0 };
                    let page = EngineLoad {
                        started: Some(started),
                        running: Some(1.0),
                        waiting: Some(0.0),
                        ..EngineLoad::default()
                    };
                    let gateway = GatewayObservations {
                        weight: 1,
                        counts: *counts,
                        ..Default::default()
                    };
                    samples.push((
                        BackendId::new(&format!("gpu-{index}")),
                        DiagnosisSample {
                            at: self.now,
                            is_up: true,
                            page: Some(page),
                            gateway: Some(gateway),
                            gpus: None,
                        },
                    ));
                }
                let diagnoser = &mut self.diagnoser;
                let diagnosis = diagnoser.diagnose_gateway(samples, &self.observed, self.now);
                verdicts = diagnosis.verdicts;
                verdicts.retain(|verdict| verdict.verdict == UNUSUAL_RESPONSES.name);
            }
            verdicts
        }
    }

    /// The counts of ten whole answers: four to requests with tools, and five to requests for JSON.
    fn healthy() -> BackendRequestCounts {
        BackendRequestCounts {
            finished: 10,
            served: 10,
            served_seconds: 5.0,
            served_tokens: 400,
            served_roots: 63.0,
            responses: 10,
            sampled_texts: 6,
            tool_answers: 4,
            tool_calls: 4,
            json_answers: 5,
            ..BackendRequestCounts::default()
        }
    }

    fn cause(verdicts: &[Verdict]) -> &str {
        verdicts
            .first()
            .and_then(|verdict| verdict.cause.as_deref())
            .unwrap_or_default()
    }

    #[test]
    fn a_restarted_backend_is_named_after_20_seconds() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(2 * MINUTE, &[0, 0, 0], &[1, 1, 1]), []);
        fleet.started = 2.0;
        let verdicts = fleet.play(4, &[8, 0, 0], &[1, 1, 1]);
        assert_eq!((verdicts.len(), &*verdicts[0].backend), (1, "gpu-0"));
        assert_eq!(verdicts[0].severity, VerdictSeverity::Critical);
        assert!(
            cause(&verdicts).contains("this backend only"),
            "{verdicts:#?}"
        );
        assert_eq!(
            fleet.play(10 * MINUTE, &[8, 0, 0], &[1, 1, 1]).len(),
            1,
            "it lasts"
        );
        assert_eq!(fleet.play(MINUTE, &[0, 0, 0], &[1, 1, 1]), []);
    }

    #[test]
    fn a_reload_before_common_cuts_is_named() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(2 * MINUTE, &[0, 0], &[1, 1]), []);
        let names = ["gpu-0", "gpu-1"];
        let backends = names.map(|name| tests::backend(name, Availability::Available));
        fleet.observed.backends = backends.into();
        fleet.observed.reload = Some(RecentReload {
            age_seconds: 40.0,
            clock: "14:03:10 UTC".to_owned(),
            changed: "tenants[etl].limits.output 8, before 2000".to_owned(),
        });
        let verdicts = fleet.play(8, &[0, 0], &[9, 9]);
        let reload = "after the reload at 14:03:10 UTC: tenants[etl].limits.output 8, before 2000";
        assert!(cause(&verdicts).ends_with(reload), "{verdicts:#?}");
    }

    #[test]
    fn backends_without_history_are_compared_with_peers() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(2 * MINUTE, &[0, 4], &[0, 0]).len(), 1);
        assert_eq!(
            Fleet::new().play(2 * MINUTE, &[4, 4], &[0, 0]),
            [],
            "all alike is usual"
        );
        assert_eq!(Fleet::new().play(2 * MINUTE, &[4], &[0]), []);
    }

    #[test]
    fn a_lone_backend_is_compared_with_its_past() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(2 * MINUTE, &[1], &[1]), []);
        assert!(cause(&fleet.play(MINUTE, &[7], &[1])).starts_with("responses without an answer"));
    }

    #[test]
    fn a_common_change_is_named_and_becomes_usual() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(2 * MINUTE, &[0, 0], &[2, 2]), []);
        let verdicts = fleet.play(MINUTE, &[0, 0], &[10, 10]);
        assert_eq!(verdicts.len(), 2);
        assert!(
            cause(&verdicts).contains("at its peers too: clients"),
            "{verdicts:#?}"
        );
        assert_eq!(verdicts[0].severity, VerdictSeverity::Warning);
        assert_eq!(fleet.play(30 * MINUTE, &[0, 0], &[10, 10]), []);
    }

    #[test]
    fn a_client_with_short_limits_is_no_fault() {
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play(20 * MINUTE, &[0, 0], &[10, 1]), []);
    }

    #[test]
    fn damaged_text_needs_neither_past_nor_peers() {
        let damaged = BackendRequestCounts {
            damaged_texts: 6,
            useless_responses: 6,
            ..healthy()
        };
        let verdicts = Fleet::new().play_counts(8, &[damaged]);
        assert!(cause(&verdicts).contains("U+FFFD"), "{verdicts:#?}");
        assert_eq!(verdicts[0].severity, VerdictSeverity::Critical);
        let verdicts = Fleet::new().play_counts(8, &[healthy(), damaged, healthy()]);
        assert_eq!((verdicts.len(), &*verdicts[0].backend), (1, "gpu-1"));
        assert!(
            cause(&verdicts).contains("this backend only"),
            "{verdicts:#?}"
        );
    }

    #[test]
    fn a_change_by_a_restart_is_named() {
        let reasoning = BackendRequestCounts {
            reasoning_alone: 9,
            empty_responses: 9,
            useless_responses: 9,
            ..healthy()
        };
        let texts = BackendRequestCounts {
            tool_calls: 0,
            ..healthy()
        };
        let not_json = BackendRequestCounts {
            missing_json: 5,
            useless_responses: 5,
            ..healthy()
        };
        let no_usage = BackendRequestCounts {
            wrong_usages: 10,
            ..healthy()
        };
        for (changed, words) in [
            (reasoning, "reasoning only"),
            (texts, "text instead of tool calls"),
            (not_json, "response_format"),
            (no_usage, "token counts"),
        ] {
            let mut fleet = Fleet::new();
            // Half a minute is enough to know what is usual.
            assert_eq!(fleet.play_counts(8, &[healthy(); 1]), []);
            fleet.started = 9.0;
            let verdicts = fleet.play_counts(8, &[changed; 1]);
            assert!(cause(&verdicts).contains(words), "{words}: {verdicts:#?}");
        }
    }

    #[test]
    fn fewer_tool_calls_alone_are_no_fault() {
        let texts = BackendRequestCounts {
            tool_calls: 0,
            ..healthy()
        };
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play_counts(2 * MINUTE, &[healthy(); 2]), []);
        assert_eq!(fleet.play_counts(2 * MINUTE, &[texts; 2]), []);
        let unparsed = BackendRequestCounts {
            texts_like_calls: 4,
            ..texts
        };
        let mut fleet = Fleet::new();
        assert_eq!(fleet.play_counts(2 * MINUTE, &[healthy(); 2]), []);
        let verdicts = fleet.play_counts(MINUTE, &[healthy(), unparsed]);
        assert_eq!((verdicts.len(), &*verdicts[0].backend), (1, "gpu-1"));
    }
}
