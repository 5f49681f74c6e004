//! Generated streams of chat and text completions. Each step of a plan becomes one chunk in the dialect of
//! the front end. Then follow usage and `[DONE]`.

use super::expected_stream::{Meaning, Output};
use super::framing::Framing;
use super::plan::{Field, FrontEnd, Plan, Step, StepKind, UsageAsked};
use super::stream_errors;
use super::texts;
use std::fmt::Write;
use tokenweir_protocol::openai::{Api, Usage};

/// Writes the chunks of one response.
pub(crate) struct Chunks<'a> {
    pub plan: &'a Plan,
    pub framing: &'a mut Framing,
    id: String,
    /// For each choice, two numbers of tokens: those that were generated, and those that an event has
    /// reported.
    made: Vec<u64>,
    reported: Vec<u64>,
    /// Number of bytes by which the next text is made longer.
    padding: usize,
}

const MODEL: &str = "org/model-7b";

impl<'a> Chunks<'a> {
    /// Creates a writer that has written nothing.
    pub(crate) fn new(plan: &'a Plan, framing: &'a mut Framing) -> Self {
        let id = format!("gen-{:x}", framing.random.u32(..));
        framing.stream.names = Some((id.clone(), MODEL.into()));
        let (made, reported) = (vec![0; plan.choices], vec![0; plan.choices]);
        Self {
            made,
            reported,
            padding: plan.padding,
            plan,
            framing,
            id,
        }
    }

    /// Writes the whole stream. If `is_damaged`, it contains a malformed event or malformed usage.
    pub(crate) fn write(mut self, is_damaged: bool, ends: Ends) {
        let steps = &self.plan.steps;
        let failing = match ends {
            Ends::Error => self.framing.random.usize(..=steps.len()),
            _ => steps.len(),
        };
        let damaged = if is_damaged {
            self.framing.random.usize(..=failing)
        } else {
            usize::MAX
        };
        for (number, step) in steps[..failing].iter().enumerate() {
            self.step(step);
            if number == damaged {
                let whole = self.envelope("{\"index\":0,\"finish_reason\":\"length\"}", "");
                stream_errors::event(self.framing, &whole, true);
            }
            if self.framing.chance(1) {
                self.decoy();
            }
        }
        match ends {
            Ends::Error => stream_errors::failure(self.framing, self.plan.front_end),
            Ends::Usual | Ends::WithoutDone if self.plan.usage != UsageAsked::Nowhere => {
                self.usage_event(is_damaged && damaged == failing);
            }
            Ends::Usual | Ends::WithoutDone => {}
        }
        if ends != Ends::WithoutDone {
            self.framing.done();
        }
    }

    fn step(&mut self, step: &Step) {
        self.made[step.choice] += step.tokens;
        let mut text = texts::draw(&mut self.framing.random);
        if self.padding > 0 && matches!(step.what, StepKind::Text(..)) {
            text = "x".repeat(std::mem::take(&mut self.padding)).into();
            self.framing.stream.kinds.push("a large line");
        }
        let tokens = self.reported_tokens(step);
        let choice = match self.plan.api {
            Api::Chat => self.chat_choice(step, &text),
            _ => self.completion_choice(step, &text),
        };
        let is_continuous = self.plan.usage == UsageAsked::Continuous;
        let usage = if is_continuous {
            self.counts(self.made[step.choice])
        } else {
            String::new()
        };
        let json = self.envelope(&choice, &usage);
        let output = |is_answer| Some(Output { is_answer, tokens });
        let meaning = Meaning {
            output: match step.what {
                StepKind::Text(Field::Reasoning) | StepKind::HeldBack => output(false),
                StepKind::Text(_) | StepKind::Finish(_, _, true) => output(true),
                StepKind::Finish(..) if self.reports_in_lists(step) => output(false),
                StepKind::Role | StepKind::Silence | StepKind::Finish(..) => None,
            },
            choices: step.choice + 1,
            finish: match step.what {
                StepKind::Finish(_, name, _) => Some((step.choice, name)),
                _ => None,
            },
            usage: is_continuous.then(|| Usage {
                output: Some(self.made.iter().sum()),
                ..self.input()
            }),
            has_names: true,
            is_marked: step.what == StepKind::Role,
            ..Meaning::default()
        };
        self.framing.event("", &json, meaning);
    }

    /// Returns the number of tokens that the event of a step reports. `None`: the event reports no number.
    fn reported_tokens(&mut self, step: &Step) -> Option<u64> {
        let increase = self.made[step.choice] - self.reported[step.choice];
        if self.plan.usage == UsageAsked::Continuous {
            self.reported[step.choice] = self.made[step.choice];
            return Some(if self.reports_in_lists(step) {
                step.tokens
            } else {
                increase
            });
        }
        self.reports_in_lists(step).then_some(step.tokens)
    }

    /// Whether the event reports its tokens in a list with one element per token: token ids or logprobs.
    fn reports_in_lists(&self, step: &Step) -> bool {
        let has_own_finish = self.plan.front_end != FrontEnd::VllmPython;
        match step.what {
            StepKind::Finish(..) if has_own_finish => false,
            _ => self.plan.reports_tokens() && step.tokens > 0,
        }
    }

    fn chat_choice(&mut self, step: &Step, text: &str) -> String {
        let front_end = self.plan.front_end;
        let delta = match step.what {
            StepKind::Role => match front_end {
                FrontEnd::VllmPython => r#""role":"assistant","content":"""#.into(),
                FrontEnd::VllmRust => r#""role":"assistant""#.into(),
                FrontEnd::Sglang => {
                    r#""role":"assistant","content":"","reasoning_content":null,"tool_calls":null"#
                        .into()
                }
                FrontEnd::LlamaCpp => r#""role":"assistant","content":null"#.into(),
            },
            StepKind::Text(field) => self.chat_text(field, text),
            StepKind::HeldBack => r#""content":"""#.into(),
            StepKind::Finish(_, _, true) => format!(r#""content":"{text}""#),
            StepKind::Finish(..) if front_end == FrontEnd::VllmPython => r#""content":"""#.into(),
            StepKind::Finish(..) if front_end == FrontEnd::Sglang => {
                r#""role":null,"content":null,"reasoning_content":null,"tool_calls":null"#.into()
            }
            StepKind::Finish(..) | StepKind::Silence => String::new(),
        };
        let logprobs = self.logprobs(step, |tokens| {
            let one = r#"{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}"#;
            format!("{{\"content\":[{}]}}", list(one, tokens))
        });
        let has_nulls = matches!(front_end, FrontEnd::VllmPython | FrontEnd::Sglang);
        let logprobs = member("logprobs", &logprobs, has_nulls);
        let reason = reason(step.what);
        let finish = member("finish_reason", &reason, has_nulls);
        let ids = member("token_ids", &self.ids(step), has_nulls);
        let index = step.choice;
        match front_end {
            FrontEnd::VllmPython | FrontEnd::VllmRust => {
                format!(r#"{{"index":{index},"delta":{{{delta}}}{logprobs}{finish}{ids}}}"#)
            }
            FrontEnd::Sglang => format!(
                r#"{{"index":{index},"delta":{{{delta}}}{logprobs}{finish},"matched_stop":null}}"#
            ),
            FrontEnd::LlamaCpp => {
                let reason = if reason.is_empty() { "null" } else { &reason };
                format!(
                    r#"{{"finish_reason":{reason},"index":{index},"delta":{{{delta}}}{logprobs}}}"#
                )
            }
        }
    }

    fn chat_text(&self, field: Field, json: &str) -> String {
        let is_old = matches!(self.plan.front_end, FrontEnd::Sglang | FrontEnd::LlamaCpp);
        match field {
            Field::Content if self.plan.front_end == FrontEnd::Sglang => {
                format!(
                    r#""role":null,"content":"{json}","reasoning_content":null,"tool_calls":null"#
                )
            }
            Field::Content => format!(r#""content":"{json}""#),
            Field::Reasoning if is_old => format!(r#""reasoning_content":"{json}""#),
            Field::Reasoning => format!(r#""reasoning":"{json}""#),
            Field::Refusal => format!(r#""refusal":"{json}""#),
            Field::FunctionCall => {
                format!(r#""function_call":{{"name":"f","arguments":"{json}"}}"#)
            }
            Field::ToolCalls => format!(
                r#""tool_calls":[{{"id":"call-1","type":"function","index":0,"function":{{"name":"f","arguments":"{json}"}}}}]"#
            ),
        }
    }

    fn completion_choice(&mut self, step: &Step, text: &str) -> String {
        let is_textless = matches!(
            step.what,
            StepKind::HeldBack | StepKind::Silence | StepKind::Finish(_, _, false)
        );
        let text = if is_textless { "" } else { text };
        let logprobs = self.logprobs(step, |tokens| {
            let (names, numbers) = (list(r#""a""#, tokens), list("-0.5", tokens));
            format!(r#"{{"text_offset":[0],"token_logprobs":[{numbers}],"tokens":[{names}],"top_logprobs":[]}}"#)
        });
        let has_nulls = self.plan.front_end == FrontEnd::VllmPython;
        let logprobs = member("logprobs", &logprobs, has_nulls);
        let finish = member("finish_reason", &reason(step.what), has_nulls);
        let ids = member("token_ids", &self.ids(step), has_nulls);
        let stop = member("stop_reason", "", has_nulls);
        let (index, text) = (
            format!("\"index\":{}", step.choice),
            format!("\"text\":\"{text}\""),
        );
        let (first, second) = if has_nulls {
            (index, text)
        } else {
            (text, index)
        };
        format!("{{{first},{second}{logprobs}{finish}{stop}{ids}}}")
    }

    fn logprobs(&self, step: &Step, write: impl Fn(u64) -> String) -> String {
        let has = self.plan.has_logprobs && self.reports_in_lists(step);
        if has {
            write(step.tokens)
        } else {
            String::new()
        }
    }

    fn ids(&self, step: &Step) -> String {
        let has = self.plan.has_ids && self.reports_in_lists(step);
        if has {
            format!("[{}]", list("15339", step.tokens))
        } else {
            String::new()
        }
    }

    /// Builds the JSON of a chunk with these choices and this `usage` member, which may be empty.
    pub(crate) fn envelope(&self, choices: &str, usage: &str) -> String {
        let (id, plan) = (&self.id, self.plan);
        let object = if plan.api == Api::Chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let usage = member("usage", usage, plan.front_end == FrontEnd::Sglang);
        if plan.front_end == FrontEnd::LlamaCpp {
            return format!(
                r#"{{"choices":[{choices}],"created":1795000000,"id":"{id}","model":"{MODEL}","system_fingerprint":"b1","object":"{object}"{usage},"timings":{{"prompt_n":1,"predicted_n":2}}}}"#
            );
        }
        format!(
            r#"{{"id":"{id}","object":"{object}","created":1795000000,"model":"{MODEL}","choices":[{choices}]{usage}}}"#
        )
    }

    /// Writes an event with members that look like usage, an error or an end of the stream, but have no
    /// meaning at their place.
    fn decoy(&mut self) {
        let nested = r#"{"index":0,"delta":{},"x":{"finish_reason":"abort","usage":{"completion_tokens":9}}}"#;
        let json = match self.framing.random.u8(..3) {
            0 => self.envelope("", ""),
            1 => self.envelope(nested, ""),
            _ => format!(
                r#"{{"id":"{}","model":"{MODEL}","choices":[],"usage":null,"error":null}}"#,
                self.id
            ),
        };
        let choices = usize::from(json.contains("\"index\""));
        self.framing.stream.kinds.push("decoys");
        let mut meaning = Meaning {
            choices,
            has_names: true,
            ..Meaning::default()
        };
        if choices > 0 {
            meaning.add_unknown(false);
        }
        self.framing.event("", &json, meaning);
    }

    fn usage_event(&mut self, is_damaged: bool) {
        let output: u64 = self.made.iter().sum();
        let mut counts = Usage {
            output: Some(output),
            ..self.input()
        };
        let mut usage = self.counts(output);
        if is_damaged {
            (usage, counts) = stream_errors::usage(self.framing, self.plan.prompt_tokens, output);
        } else if self.plan.has_reasoning_count {
            let reasoning = output / 2;
            counts.reasoning = Some(reasoning);
            usage.pop();
            let end = match self.plan.front_end {
                FrontEnd::Sglang => write!(usage, r#","reasoning_tokens":{reasoning}}}"#),
                _ => write!(
                    usage,
                    r#","completion_tokens_details":{{"reasoning_tokens":{reasoning}}}}}"#
                ),
            };
            end.unwrap();
        }
        let json = self.envelope("", &usage);
        let meaning = Meaning {
            usage: usage.starts_with('{').then_some(counts),
            is_usage_event: usage.starts_with('{'),
            is_malformed: is_damaged,
            has_names: true,
            ..Meaning::default()
        };
        self.framing.event("", &json, meaning);
    }

    fn input(&self) -> Usage {
        let Plan {
            prompt_tokens,
            cached,
            ..
        } = *self.plan;
        Usage {
            input: Some(prompt_tokens),
            cached,
            ..Usage::default()
        }
    }

    /// Builds the JSON of a `usage` object with this number of output tokens.
    fn counts(&self, output: u64) -> String {
        let input = self.plan.prompt_tokens;
        let details = match (self.plan.cached, self.plan.front_end) {
            (Some(cached), _) => {
                format!(r#","prompt_tokens_details":{{"cached_tokens":{cached}}}"#)
            }
            (None, FrontEnd::VllmRust) => r#","prompt_tokens_details":null"#.into(),
            (None, _) => String::new(),
        };
        let total = input + output;
        format!(
            r#"{{"prompt_tokens":{input},"total_tokens":{total},"completion_tokens":{output}{details}}}"#
        )
    }
}

/// How a generated stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Usual,
    /// The event that should end the stream is missing.
    WithoutDone,
    /// The server reports an error at the end of the stream.
    Error,
}

fn reason(what: StepKind) -> String {
    match what {
        StepKind::Finish(raw, ..) => format!("\"{raw}\""),
        _ => String::new(),
    }
}

fn list(one: &str, times: u64) -> String {
    vec![one; times as usize].join(",")
}

/// Builds a further member of a JSON object. An empty value gives null or no member.
fn member(name: &str, value: &str, is_null_written: bool) -> String {
    match value {
        "" if is_null_written => format!(",\"{name}\":null"),
        "" => String::new(),
        _ => format!(",\"{name}\":{value}"),
    }
}
