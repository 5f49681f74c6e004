//! The numbers in a JSON body that determine how much an engine computes.

use std::borrow::Cow;
use std::ops::Range;
use tokenweir_protocol::json::JsonText;
use tokenweir_protocol::json::members::{self, Member, visit_elements, visit_members};
use tokenweir_protocol::openai::Splice;

/// Names of the limits of output tokens: of OpenAI and Anthropic, and of SGLang and llama.cpp.
const LIMIT_NAMES: [&str; 5] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
];
/// Names of the number of choices. `best_of`: the number of choices that old engines compute to return the
/// best.
const CHOICE_NAMES: [&str; 2] = ["n", "best_of"];
/// Fields that the gateway sets, and a further name of one of them. Values of `null` and 0 count as absent.
const SET_NAMES: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "priority",
];
/// The object that contains these fields in requests to `/inference/v1/generate` and SGLang's `/generate`.
const PARAMETERS_NAME: &str = "sampling_params";
/// Fields with one prompt or a list of prompts. A list of lists of messages is a batch of chats.
const PROMPT_NAMES: [&str; 2] = ["prompt", "messages"];

/// The numbers in a body. `null` counts as absent.
#[derive(Debug, Default)]
pub(super) struct StatedSizes {
    /// The maximum limits of output tokens, by field.
    pub max_tokens: Vec<StatedSize>,
    /// The maximum numbers of choices, by field.
    pub choices: Vec<StatedSize>,
    /// Number of prompts in a list of prompts. 1 for a single prompt.
    pub prompts: u64,
    /// The positions of the fields that the gateway sets.
    places: Vec<FieldPlace>,
    /// The position of [`PARAMETERS_NAME`] in the body.
    parameters: Option<Range<usize>>,
}

/// The JSON object that contains a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Body,
    /// The object [`PARAMETERS_NAME`]. Chat completions and other APIs ignore it.
    Parameters,
}

#[derive(Debug)]
pub(super) struct StatedSize {
    pub field: &'static str,
    /// The number. `None`: the value is no non-negative integer. Engines convert some texts to numbers.
    pub count: Option<u64>,
}

#[derive(Debug)]
struct FieldPlace {
    field: &'static str,
    holder: Holder,
    /// The position of the value in the body.
    value: Range<usize>,
}

impl StatedSizes {
    /// Reads the numbers of a body, which is a complete JSON object.
    pub(super) fn read(body: &[u8]) -> Self {
        let mut sizes = Self {
            prompts: 1,
            ..Self::default()
        };
        visit_members(body, |member| {
            let value = &body[member.value.clone()];
            let Some(name) = decode_name(body, &member) else {
                return;
            };
            if name == PARAMETERS_NAME {
                let start = member.value.start;
                // Of several objects of this name, engines read the last.
                sizes.places.retain(|place| place.holder == Holder::Body);
                sizes.read_parameters(value, start);
                visit_elements(value, |element| {
                    sizes.read_parameters(&value[element.clone()], start + element.start);
                });
                sizes.parameters = Some(member.value);
            } else if PROMPT_NAMES.contains(&&*name) {
                sizes.prompts = sizes.prompts.max(count_prompts(value));
            } else {
                sizes.read_number(&name, value);
                sizes.add_place(&name, Holder::Body, member.value);
            }
        });
        sizes
    }

    /// Reads the numbers in the object [`PARAMETERS_NAME`]. `start`: its position in the body.
    fn read_parameters(&mut self, object: &[u8], start: usize) {
        visit_members(object, |member| {
            if let Some(name) = decode_name(object, &member) {
                let value = start + member.value.start..start + member.value.end;
                self.read_number(&name, &object[member.value]);
                self.add_place(&name, Holder::Parameters, value);
            }
        });
    }

    fn add_place(&mut self, name: &str, holder: Holder, value: Range<usize>) {
        let Some(field) = SET_NAMES.into_iter().find(|field| *field == name) else {
            return;
        };
        // This bounds the memory, because a body can repeat a field millions of times.
        self.places
            .retain(|place| place.field != field || place.holder != holder);
        self.places.push(FieldPlace {
            field,
            holder,
            value,
        });
    }

    fn read_number(&mut self, name: &str, value: &[u8]) {
        if value == b"null" {
            return;
        }
        let count = members::count(value);
        if let Some(field) = LIMIT_NAMES.into_iter().find(|field| *field == name) {
            keep_worst(&mut self.max_tokens, StatedSize { field, count });
        }
        if let Some(field) = CHOICE_NAMES.into_iter().find(|field| *field == name) {
            keep_worst(&mut self.choices, StatedSize { field, count });
        }
    }

    /// The value of a field of the body. If the field occurs several times, the last value counts, as in
    /// engines. `None`: the body lacks the field.
    pub(super) fn value<'a>(
        &self,
        body: &'a [u8],
        holder: Holder,
        field: &str,
    ) -> Option<&'a [u8]> {
        let place = self.place(holder, field)?;
        body.get(place.value.clone())
    }

    fn place(&self, holder: Holder, field: &str) -> Option<&FieldPlace> {
        let mut places = self.places.iter();
        places.find(|place| place.field == field && place.holder == holder)
    }

    /// The edit that gives a field of the body this value. `None`: the holder has no such field, or the body
    /// lacks the holder, so that no engine accepts the body.
    pub(super) fn set(
        &self,
        body: &[u8],
        holder: Holder,
        field: &str,
        value: &str,
    ) -> Option<Splice> {
        if let Some(place) = self.place(holder, field) {
            return Some(Splice::replace(place.value.clone(), value.to_owned()));
        }
        let start = match holder {
            Holder::Body => 0,
            Holder::Parameters => self.parameters.as_ref()?.start,
        };
        let object = body.get(start..)?;
        let members = object
            .trim_ascii_start()
            .strip_prefix(b"{")?
            .trim_ascii_start();
        let is_empty = members.starts_with(b"}");
        if is_empty && holder == Holder::Body {
            return None;
        }
        let at = body.len() - members.len();
        let comma = if is_empty { "" } else { "," };
        Some(Splice::replace(
            at..at,
            format!("\"{field}\":{value}{comma}"),
        ))
    }
}

/// Adds a size. Replaces the size of the same field only by a worse one: a greater number, or a value that is
/// no number.
fn keep_worst(sizes: &mut Vec<StatedSize>, size: StatedSize) {
    let Some(known) = sizes.iter_mut().find(|known| known.field == size.field) else {
        return sizes.push(size);
    };
    let is_greater = size.count.is_none() || size.count > known.count;
    if known.count.is_some() && is_greater {
        *known = size;
    }
}

/// The name of a member without escapes. `None`: the name is not valid Unicode.
fn decode_name<'a>(object: &'a [u8], member: &Member) -> Option<Cow<'a, str>> {
    let raw = &object[member.name.clone()];
    JsonText::new(raw, raw.len()).decode()
}

/// Number of prompts in a list of prompts. A list of token ids, or of messages, is one prompt.
fn count_prompts(value: &[u8]) -> u64 {
    let mut prompts = 0;
    visit_elements(value, |element| {
        prompts += u64::from(matches!(value[element.start], b'"' | b'['));
    });
    prompts.max(1)
}

/// Number of token ids, if a part of the prompt consists of them. `None`: the part is text.
pub(super) fn count_token_ids(part: &[u8]) -> Option<u64> {
    let is_of_numbers = part.starts_with(b"[")
        && part
            .iter()
            .all(|byte| byte.is_ascii_digit() || b"[], \t\r\n".contains(byte));
    is_of_numbers.then(|| memchr::memchr_iter(b',', part).count() as u64 + 1)
}
