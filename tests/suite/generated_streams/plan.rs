//! A random plan of a response that consists of chunks. It states the contents of each event, not its bytes.

use super::chance;
use fastrand::Rng;
use tokenweir_protocol::openai::Api;

/// The contents of a response that consists of chunks. The chunk writer makes the bytes from it.
pub(crate) struct Plan {
    pub api: Api,
    pub front_end: FrontEnd,
    pub usage: UsageAsked,
    /// Whether events with tokens have the ids of the tokens.
    pub has_ids: bool,
    /// Whether events with tokens have the logprobs of the tokens.
    pub has_logprobs: bool,
    pub prompt_tokens: u64,
    pub cached: Option<u64>,
    pub has_reasoning_count: bool,
    /// The steps in the order of the stream.
    pub steps: Vec<Step>,
    pub choices: usize,
    /// Number of bytes by which one line of the stream is longer.
    pub padding: usize,
}

/// The front end in whose format the chunks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrontEnd {
    VllmPython,
    VllmRust,
    Sglang,
    LlamaCpp,
}

/// Which events report usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageAsked {
    Nowhere,
    AtTheEnd,
    /// Every event and the end of the stream report usage.
    Continuous,
}

/// One event of one choice, before it is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub choice: usize,
    pub what: StepKind,
    /// Number of tokens that the engine generated for the event.
    pub tokens: u64,
}

/// The content of an event of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepKind {
    Role,
    /// A text in this member of the delta.
    Text(Field),
    /// A token whose text the engine sends only with a later token.
    HeldBack,
    /// An event without content, because a parser in the server consumed the text of the token.
    Silence,
    /// The end of the choice: the finish reason as the server sends it, its name in records, and whether the
    /// event also has text.
    Finish(&'static str, &'static str, bool),
}

/// In chat, the member of a delta that has the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Field {
    Content,
    Reasoning,
    ToolCalls,
    FunctionCall,
    Refusal,
}

/// Finish reasons: as a server sends them, and as records have them.
const REASONS: [(&str, &str); 9] = [
    ("stop", "stop"),
    ("stop", "stop"),
    ("length", "length"),
    ("tool_calls", "tool_calls"),
    ("function_call", "tool_calls"),
    ("content_filter", "content_filter"),
    ("repetition", "repetition"),
    ("abort", "abort"),
    ("model_is_tired", "other"),
];

impl Plan {
    /// Draws a random response of the chat or completions API.
    pub(crate) fn draw(api: Api, random: &mut Rng) -> Self {
        let front_end = match random.u8(..10) {
            0..5 => FrontEnd::VllmPython,
            5..7 => FrontEnd::VllmRust,
            7..9 => FrontEnd::Sglang,
            _ => FrontEnd::LlamaCpp,
        };
        let is_vllm = matches!(front_end, FrontEnd::VllmPython | FrontEnd::VllmRust);
        let has_choices =
            matches!(front_end, FrontEnd::VllmPython | FrontEnd::Sglang) && chance(random, 25);
        let choices = if has_choices { random.usize(2..=4) } else { 1 };
        let reporting = random.u8(..20);
        let usage = match random.u8(..10) {
            0..4 => UsageAsked::Nowhere,
            9 if front_end != FrontEnd::LlamaCpp => UsageAsked::Continuous,
            _ => UsageAsked::AtTheEnd,
        };
        let mut plan = Self {
            api,
            front_end,
            usage,
            has_ids: is_vllm && reporting < 3,
            has_logprobs: (is_vllm && reporting == 2) || (3..5).contains(&reporting),
            prompt_tokens: random.u64(1..200_000),
            cached: chance(random, 30).then(|| random.u64(0..5_000)),
            has_reasoning_count: chance(random, 20),
            steps: Vec::new(),
            choices,
            padding: if random.u16(..1000) < 3 {
                random.usize(2_000..150_000)
            } else {
                0
            },
        };
        plan.draw_steps(random);
        plan
    }

    /// Whether events report their number of tokens by token ids or logprobs.
    pub(crate) fn reports_tokens(&self) -> bool {
        self.has_ids || self.has_logprobs
    }

    fn draw_steps(&mut self, random: &mut Rng) {
        // Rarely, the server omits the finish reason of all choices.
        let is_finished = !chance(random, 2);
        let mut lanes: Vec<Vec<Step>> = (0..self.choices)
            .map(|choice| self.draw_choice(choice, is_finished, random))
            .collect();
        if self.api == Api::Chat {
            let role = |choice| Step {
                choice,
                what: StepKind::Role,
                tokens: 0,
            };
            self.steps.extend((0..self.choices).map(role));
        }
        // The events of the choices are interleaved at random.
        for lane in &mut lanes {
            lane.reverse();
        }
        while !lanes.is_empty() {
            let lane = random.usize(..lanes.len());
            match lanes[lane].pop() {
                Some(step) => self.steps.push(step),
                None => drop(lanes.swap_remove(lane)),
            }
        }
    }

    fn draw_choice(&self, choice: usize, is_finished: bool, random: &mut Rng) -> Vec<Step> {
        let is_chat = self.api == Api::Chat;
        let is_speculative = chance(random, 15);
        let thinks = if is_chat && chance(random, 30) {
            random.u8(..6)
        } else {
            0
        };
        let field = match random.u8(..20) {
            0..3 if is_chat => Field::ToolCalls,
            3 if is_chat => Field::FunctionCall,
            4 if is_chat => Field::Refusal,
            _ => Field::Content,
        };
        let mut steps = Vec::new();
        for event in 0..thinks + random.u8(..12) {
            let what = match random.u8(..40) {
                0 => StepKind::HeldBack,
                1 if is_chat && !self.reports_tokens() => StepKind::Silence,
                _ if event < thinks => StepKind::Text(Field::Reasoning),
                _ => StepKind::Text(field),
            };
            let tokens = match what {
                StepKind::Text(..) if is_speculative => random.u64(1..=6),
                _ => 1,
            };
            steps.push(Step {
                choice,
                what,
                tokens,
            });
        }
        if is_finished {
            let (raw, name) = REASONS[random.usize(..REASONS.len())];
            let has_text = self.front_end == FrontEnd::VllmPython && name == "length";
            let tokens = u64::from(has_text || matches!(name, "stop" | "tool_calls"));
            steps.push(Step {
                choice,
                what: StepKind::Finish(raw, name, has_text),
                tokens,
            });
        }
        steps
    }
}
