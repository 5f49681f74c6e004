//! Parsing of the `usage` member of an event as vLLM writes it: `,"usage":{…}` after `choices`, in
//! the JSON of one `data` line.

use crate::json::find_string_end;
use crate::openai::Usage;
use memchr::memmem::Finder;
use std::ops::Range;
use std::sync::LazyLock;

/// Splits the data of an event into its usage and its other data. Most events of a stream differ
/// only in text and usage, so a reader that gets the events without usage need not parse them in
/// full.
#[derive(Debug, Default)]
pub(in crate::observe) struct UsageSplitter {
    /// The data of the event without its `usage` member.
    data_without_usage: Vec<u8>,
}

/// The start of the `usage` member, up to and including the brace that opens its object. In JSON
/// these bytes cannot occur inside a string, because quotes are escaped there.
const USAGE_MEMBER_START: &[u8] = br#","usage":{"#;
const CHOICE_START: &[u8] = br#"{"index":"#;
static USAGE_MEMBER_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(USAGE_MEMBER_START));
static CHOICE_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CHOICE_START));

impl UsageSplitter {
    /// Splits the data of an event. Returns the data without the `usage` member, and the usage.
    /// `None`: the event must be parsed as it is, because the data is incomplete, or has not
    /// exactly one choice, or lacks the count of input or output tokens.
    pub(in crate::observe) fn split(&mut self, data: &[u8]) -> Option<(&[u8], Usage)> {
        let (member, usage) = parse_usage_member(data)?;
        let is_single = CHOICE_FINDER.find_iter(data).take(2).count() == 1;
        if !is_single || usage.input.is_none() || usage.output.is_none() {
            return None;
        }
        self.data_without_usage.clear();
        self.data_without_usage.extend_from_slice(&data[..member.start]);
        self.data_without_usage.extend_from_slice(&data[member.end..]);
        Some((&self.data_without_usage, usage))
    }
}

/// The byte range of the `usage` member in an event or in its block, including the comma before the
/// member. `None`: the outermost object of the one `data` line has no such member after another
/// member.
pub(super) fn find(block: &[u8]) -> Option<Range<usize>> {
    parse_usage_member(block).map(|(member, _)| member)
}

/// The byte range of the `usage` member, and its counts.
fn parse_usage_member(block: &[u8]) -> Option<(Range<usize>, Usage)> {
    USAGE_MEMBER_FINDER.find_iter(block).find_map(|start| {
        let mut usage = Usage::default();
        let value = start + USAGE_MEMBER_START.len();
        let end =
            value + read_object(&block[value..], |key, count| store_count(&mut usage, key, count))?;
        let object_end = end + read_object(&block[end..], |_, _| ())?;
        let is_outermost = block[object_end..].iter().all(|byte| matches!(byte, b'\n' | b'\r'));
        is_outermost.then_some((start..end, usage))
    })
}

/// Scans an object and its nested objects. `bytes` starts after the opening brace of the object.
/// Returns the offset after its closing brace. `None`: the object is incomplete. `on_count` gets
/// each key whose value starts with a digit, and the bytes from that digit on.
fn read_object(bytes: &[u8], mut on_count: impl FnMut(&[u8], &[u8])) -> Option<usize> {
    let (mut at, mut depth) = (0, 1_u32);
    loop {
        match *bytes.get(at)? {
            b'"' => {
                let text = &bytes[at + 1..];
                let end = find_string_end(text)?;
                if let [b':', digits @ ..] = &text[end + 1..]
                    && digits.first().is_some_and(u8::is_ascii_digit)
                {
                    on_count(&text[..end], digits);
                }
                at += end + 1;
            }
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Stores the count that `digits` begins with in the field of `key`. A value that is not a count is
/// stored as `None`.
fn store_count(usage: &mut Usage, key: &[u8], digits: &[u8]) {
    let field = match key {
        b"prompt_tokens" => &mut usage.input,
        b"completion_tokens" => &mut usage.output,
        b"cached_tokens" => &mut usage.cached,
        b"created_cache_tokens" => &mut usage.cache_created,
        b"reasoning_tokens" => &mut usage.reasoning,
        _ => return,
    };
    let mut count = Some(0_u64);
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                let tens = count.and_then(|count| count.checked_mul(10));
                count = tens.and_then(|tens| tens.checked_add(u64::from(byte - b'0')));
            }
            b',' | b'}' => break,
            _ => count = None,
        }
    }
    *field = count;
}
