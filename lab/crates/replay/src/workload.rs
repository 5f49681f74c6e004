//! Generates traffic with known properties: lengths of prompts and outputs, shared prefixes, arrivals
//! and closed-loop sessions. Equal seeds give equal traffic.
//!
//! The parameters are those of published traces where such a trace exists; see
//! `docs/benchmarks/routing.md`.

mod drawn;
mod shapes;

use super::trace::TraceRequest;
use serde::{Serialize, Serializer};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokenweir_routing::PromptFingerprint;
use tokenweir_sim::engine::cost_model::standard_normal;
use tokenweir_sim::text::mix;

named_enum! {
    /// A kind of traffic: what the requests contain, and how sessions send them.
    pub enum TrafficShape {
        /// Independent questions with answers of medium length.
        Chat = "chat",
        /// Short prompts and long answers, as with reasoning models.
        Reasoning = "reasoning",
        /// Long prompts, very short answers, nothing shared: code completion.
        Completion = "completion",
        /// A system prompt before each question, one of some dozens.
        SystemPrompts = "system_prompts",
        /// Conversations: each turn repeats the history. The user pauses between turns.
        Conversation = "conversation",
        /// Coding agents: long tool descriptions, many turns, short pauses for tools.
        Agents = "agents",
        /// A few documents before each question, from a large set in which some documents are popular.
        Retrieval = "retrieval",
        /// Half of the sessions are agents, the others are independent questions.
        Mixed = "mixed",
        /// The first documents of a ranking before each question. Each topic has its own ranking.
        RankedDocuments = "ranked_documents",
        /// A prompt with examples, one of 900, before a short question: the prompts of many tenants.
        Tenants = "tenants",
        /// One of twenty questions is about a document of 40,000 to 110,000 tokens that no other session
        /// uses.
        LongDocuments = "long_documents",
        /// Independent questions, and sometimes sixty requests at once that share one prompt.
        Batches = "batches",
        /// Coding agents whose tools take less than a second.
        FastTools = "fast_tools",
        /// Agents that start three sub-agents at once with their history, and replace a long history by a
        /// summary.
        SubAgents = "sub_agents",
    }
}

/// The kind of a generated traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// A kind that resembles the traffic of a known application.
    Named(TrafficShape),
    /// A kind whose parameters are drawn at random with this seed. No setting of a policy was chosen on such
    /// traffic.
    Drawn(u32),
}

impl Display for Traffic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(shape) => f.write_str(shape.as_str()),
            Self::Drawn(number) => write!(f, "drawn_{number}"),
        }
    }
}

impl From<TrafficShape> for Traffic {
    fn from(shape: TrafficShape) -> Self {
        Self::Named(shape)
    }
}

impl Serialize for Traffic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for TrafficShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = Self::ALL.into_iter().find(|shape| shape.as_str() == text);
        let names = || Self::NAMES.join(", ");
        shape.ok_or_else(|| format!("unknown traffic `{text}`; there is {}", names()))
    }
}

/// Size of a prompt block in bytes, as in the gateway.
const BLOCK_BYTES: u32 = 512;
/// Median number of bytes per token, which is that of English text.
const BYTES_PER_TOKEN: f64 = 4.2;
/// Spread of the bytes per token among prompts, as the standard deviation of the logarithm. It is that of
/// English texts with some code. Prompts with the same first text, such as a system prompt, have the same
/// value: they are in one language.
const BYTES_SIGMA: f64 = 0.15;
const PROMPT_TOKENS_MAX: f64 = 60_000.0;
/// Number of tenants that send the sessions.
const TENANTS: u32 = 20;

/// A part of a prompt. Two parts with the same identity and the same length have the same text.
#[derive(Debug, Clone, Copy)]
struct Segment {
    id: u64,
    tokens: f64,
}

#[derive(Debug, Clone, Copy)]
struct Lognormal {
    median: f64,
    sigma: f64,
}

/// The distributions of a turn of a session.
#[derive(Debug, Clone, Copy)]
struct TurnLengths {
    /// New prompt tokens.
    input: Lognormal,
    output: Lognormal,
    /// Seconds before the turn.
    pause: Lognormal,
}

struct Generator {
    random: fastrand::Rng,
    requests: Vec<TraceRequest>,
    next_id: u64,
    /// The tenant that sends the current session.
    tenant: u64,
    /// The LoRA adapter of the current session. `None`: the base model.
    adapter: Option<u32>,
}

/// Generates this number of requests. At speed 1, about one request arrives per second: the mean time between
/// the starts of two sessions is one second for each request that a session has on average.
pub fn generate(traffic: impl Into<Traffic>, count: usize, seed: u64) -> Vec<TraceRequest> {
    let traffic = traffic.into();
    let mut generator = Generator {
        random: fastrand::Rng::with_seed(seed),
        requests: Vec::with_capacity(count),
        next_id: mix(seed, 1) | 1 << 63,
        tenant: 0,
        adapter: None,
    };
    let mut at = 0.0;
    while generator.requests.len() < count {
        let before = generator.requests.len();
        generator.tenant = popular(&mut fastrand::Rng::with_seed(generator.next_id), TENANTS);
        generator.session(traffic, Duration::from_secs_f64(at));
        let added = (generator.requests.len() - before) as f64;
        at += generator.gap() * added;
    }
    generator.requests.truncate(count);
    generator.requests
}

impl Generator {
    /// Draws a random time in seconds, exponentially distributed with a mean of 1. The next session starts
    /// after this time multiplied by the number of requests of the current session.
    fn gap(&mut self) -> f64 {
        -(1.0 - self.random.f64()).ln()
    }

    fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        (median * (sigma * standard_normal(&mut self.random)).exp()).clamp(1.0, PROMPT_TOKENS_MAX)
    }

    /// Draws a random index below `count`. Low indexes are more frequent, see [`popular`].
    fn popular(&mut self, count: u32) -> u64 {
        popular(&mut self.random, count)
    }

    fn new_segment(&mut self, tokens: f64) -> Segment {
        self.next_id = mix(self.next_id, 3);
        Segment {
            id: self.next_id,
            tokens,
        }
    }

    /// Returns a text that several sessions share. `kind` and `index` identify the text and determine its
    /// length.
    fn shared_segment(kind: u64, index: u64, median: f64, sigma: f64) -> Segment {
        let id = mix(kind, index);
        let mut random = fastrand::Rng::with_seed(id);
        Segment {
            id,
            tokens: (median * (sigma * standard_normal(&mut random)).exp()).round(),
        }
    }

    /// Draws a random number of turns from 1 to `max`, from a geometric distribution with about this mean.
    fn turns(&mut self, mean: f64, max: usize) -> usize {
        let continues = 1.0 - mean.recip();
        (1..max)
            .take_while(|_| self.random.f64() < continues)
            .count()
            + 1
    }

    /// Returns a text that no other prompt has. Its length is from the lognormal distribution with this
    /// median and sigma.
    fn random_segment(&mut self, median: f64, sigma: f64) -> Segment {
        let tokens = self.lognormal(median, sigma);
        self.new_segment(tokens)
    }

    /// Adds a request whose prompt consists of the texts `shared` and a text of its own.
    fn single(&mut self, at: Duration, shared: &[Segment], question: Lognormal, output: Lognormal) {
        let question = self.random_segment(question.median, question.sigma);
        let output = self.lognormal(output.median, output.sigma);
        self.push(&[shared, &[question]].concat(), output, at, None);
    }

    /// Adds a session in which each turn repeats the history. A turn is sent some time after the end of the
    /// previous turn.
    fn turn_taking(&mut self, at: Duration, shared: Vec<Segment>, turns: usize, turn: TurnLengths) {
        let TurnLengths {
            input,
            output,
            pause,
        } = turn;
        let mut history = shared;
        let mut previous = None;
        for turn in 0..turns {
            history.push(self.random_segment(input.median, input.sigma));
            if history.iter().map(|segment| segment.tokens).sum::<f64>() > PROMPT_TOKENS_MAX {
                return;
            }
            let output = self.lognormal(output.median, output.sigma).round();
            let pause = pause.median * (pause.sigma * standard_normal(&mut self.random)).exp();
            let sent = if turn == 0 {
                at
            } else {
                Duration::from_secs_f64(pause)
            };
            let answer = self.push(&history, output, sent, previous);
            history.push(answer);
            previous = Some(self.requests.len() - 1);
        }
    }

    /// Adds a request. Returns the segment of its output, for later prompts.
    fn push(
        &mut self,
        prompt: &[Segment],
        output_tokens: f64,
        at: Duration,
        after: Option<usize>,
    ) -> Segment {
        let bytes_per_token = bytes_per_token(prompt);
        let answer = self.new_segment(output_tokens.round());
        let prompt_tokens: f64 = prompt.iter().map(|segment| segment.tokens.round()).sum();
        let bytes = (prompt_tokens * bytes_per_token) as u64;
        let mut segments = prompt.to_vec();
        segments.push(answer);
        let blocks = block_hashes(&segments, bytes_per_token);
        let prompt_blocks = (bytes / u64::from(BLOCK_BYTES)) as usize;
        let (prompt_blocks, output_blocks) = blocks.split_at(prompt_blocks.min(blocks.len()));
        self.requests.push(TraceRequest {
            at,
            prompt_tokens: prompt_tokens.max(1.0) as u32,
            output_tokens: output_tokens.round().max(1.0) as u32,
            prompt: Arc::new(PromptFingerprint {
                bytes,
                blocks: prompt_blocks.into(),
                block_bytes: BLOCK_BYTES,
                ..PromptFingerprint::default()
            }),
            output_blocks: output_blocks.into(),
            after,
            tenant: self.tenant,
            adapter: self.adapter,
            ..TraceRequest::default()
        });
        answer
    }
}

/// Draws a random number of bytes per token for a prompt. It depends only on the first part of the prompt, so
/// all prompts with a common prefix have the same value.
fn bytes_per_token(prompt: &[Segment]) -> f64 {
    let id = prompt.first().map_or(0, |segment| segment.id);
    let deviation = standard_normal(&mut fastrand::Rng::with_seed(mix(id, 2)));
    BYTES_PER_TOKEN * (BYTES_SIGMA * deviation).exp()
}

/// Draws a random index below `count`, by Zipf's law with an exponent of about 1.
fn popular(random: &mut fastrand::Rng, count: u32) -> u64 {
    let total = f64::from(count + 1).ln();
    ((random.f64() * total).exp() - 1.0) as u64
}

/// Hashes of the full blocks of a text. Each hash covers the block and all text before it.
fn block_hashes(segments: &[Segment], bytes_per_token: f64) -> Vec<u64> {
    let mut hash = 0;
    let mut end = 0.0;
    let mut blocks = Vec::new();
    for segment in segments {
        hash = mix(hash, segment.id);
        end += segment.tokens.round() * bytes_per_token;
        while (blocks.len() + 1) as f64 * f64::from(BLOCK_BYTES) <= end {
            blocks.push(mix(hash, blocks.len() as u64));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate(shape: TrafficShape) -> Vec<TraceRequest> {
        super::generate(shape, 2_000, 1)
    }

    fn common_blocks(a: &TraceRequest, b: &TraceRequest) -> usize {
        let pairs = a.prompt.blocks.iter().zip(&b.prompt.blocks);
        pairs.take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_turn_repeats_the_turn_before() {
        let requests = generate(TrafficShape::Conversation);
        let turns = requests
            .iter()
            .filter_map(|next| Some((next, &requests[next.after?])));
        let mut count = 0;
        for (next, previous) in turns {
            let text = || previous.prompt.blocks.iter().chain(&previous.output_blocks);
            let repeated = text()
                .zip(&next.prompt.blocks)
                .take_while(|(a, b)| a == b)
                .count();
            assert_eq!(repeated, text().count());
            count += 1;
        }
        assert!(count > 1_000, "{count}");
    }

    #[test]
    fn only_shapes_with_shared_texts_share_prefixes() {
        for shape in TrafficShape::ALL {
            let requests = generate(shape);
            let shared = requests
                .windows(50)
                .filter(|window| common_blocks(&window[0], &window[49]) > 0);
            let is_shared = shared.count() > 0;
            let expected = !matches!(
                shape,
                TrafficShape::Chat
                    | TrafficShape::Reasoning
                    | TrafficShape::Completion
                    | TrafficShape::LongDocuments
            );
            assert_eq!(is_shared, expected, "{shape:?}");
        }
    }

    #[test]
    fn generated_traffic_has_about_one_request_per_second() {
        let requests = super::generate(TrafficShape::Chat, 20_000, 1);
        let last = requests.last().unwrap().at.as_secs_f64();
        assert!((16_000.0..26_000.0).contains(&last), "{last}");
    }

    #[test]
    fn bytes_per_token_vary_only_among_conversations() {
        let ratio = |request: &TraceRequest| {
            (request.prompt.bytes as f64 / f64::from(request.prompt_tokens)).ln()
        };
        let chats = generate(TrafficShape::Chat);
        let long: Vec<f64> = chats
            .iter()
            .filter(|request| request.prompt_tokens > 500)
            .map(ratio)
            .collect();
        let (_, deviation) = crate::results::spread(&long);
        assert!((0.13..0.17).contains(&deviation), "{deviation}");
        let turns = generate(TrafficShape::Conversation);
        for next in &turns {
            let Some(previous) = next.after else { continue };
            assert!((ratio(next) - ratio(&turns[previous])).abs() < 0.01);
        }
    }

    #[test]
    fn drawn_traffics_differ_in_kind() {
        let mean_prompt = |number| {
            let requests = super::generate(Traffic::Drawn(number), 1_000, 1);
            let tokens: u64 = requests.iter().map(|it| u64::from(it.prompt_tokens)).sum();
            tokens / 1_000
        };
        let means: Vec<u64> = (0..20).map(mean_prompt).collect();
        assert!(means.iter().min() < Some(&1_000), "{means:?}");
        assert!(means.iter().max() > Some(&6_000), "{means:?}");
    }

    #[test]
    fn equal_seeds_generate_equal_traffic() {
        assert_eq!(generate(TrafficShape::Mixed), generate(TrafficShape::Mixed));
    }
}
