//! Splits the usage from the data of an event as vLLM writes it: `,"usage":{…}` after `choices`, in the JSON of
//! one `data` line. Any other event is parsed without splitting.

use memchr::memmem::Finder;
use std::ops::Range;
use std::sync::LazyLock;
use tokenweir_protocol::json::members::length_until_closed;
use tokenweir_protocol::openai::{MAX_TOKEN_COUNT, Usage, read_usage};

/// Splits the data of an event into its usage and its other data. Most events of a stream differ only in text
/// and usage. So a reader that gets them without usage need not parse them in full.
#[derive(Debug, Default)]
pub(super) struct UsageSplitter {
    /// The data of the event without its `usage` member.
    data_without_usage: Vec<u8>,
    /// The end of the last event's data, after the count of output tokens. Most events of a stream have the
    /// same end. Empty: no event has been split.
    tail: Vec<u8>,
    /// The usage of the event from which `tail` was taken.
    tail_usage: Usage,
    /// Number of bytes of the tail after the `usage` member.
    after_member: usize,
    /// Byte range of the `usage` member of the current event in the current chunk. `None`: not known.
    pub member: Option<Range<usize>>,
}

/// The data of an event, split into its usage and its other data.
pub(super) struct SplitEvent<'a> {
    /// The data without the `usage` member.
    pub other_data: &'a [u8],
    /// The counts of the `usage` member.
    pub usage: Usage,
    /// Byte range of the `usage` member in the data, including the comma before the member.
    pub member: Range<usize>,
}

/// The start of the `usage` member, up to the brace that opens its object. In JSON these bytes cannot occur
/// inside a string, because quotes are escaped there.
const USAGE_MEMBER_START: &[u8] = br#","usage":{"#;
const CHOICE_START: &[u8] = br#"{"index":"#;
static USAGE_NAME_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""usage""#));
static CHOICE_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CHOICE_START));

/// Maximum number of digits of a count. Such numbers fit into a `u64`.
const MAX_DIGITS: usize = 18;

impl UsageSplitter {
    /// Splits the data of an event. `None`: the event must be parsed without splitting, because the data is
    /// incomplete, does not have exactly one choice, or lacks the count of input or output tokens.
    pub(super) fn split(&mut self, data: &[u8]) -> Option<SplitEvent<'_>> {
        let (member, usage) = self
            .parse_like_last(data)
            .or_else(|| self.parse_and_keep_tail(data))?;
        let is_single = CHOICE_FINDER
            .find_iter(&data[..member.start])
            .take(2)
            .count()
            == 1;
        if !is_single || usage.input.is_none() || usage.output.is_none() {
            return None;
        }
        self.data_without_usage.clear();
        self.data_without_usage
            .extend_from_slice(&data[..member.start]);
        self.data_without_usage
            .extend_from_slice(&data[member.end..]);
        Some(SplitEvent {
            other_data: &self.data_without_usage,
            usage,
            member,
        })
    }

    /// Parses the `usage` member of an event that differs from the last one only in its counts of prompt, total
    /// and output tokens. vLLM writes these counts first.
    fn parse_like_last(&self, data: &[u8]) -> Option<(Range<usize>, Usage)> {
        let start = member_start(data)?;
        let (input, output, tail) = read_first_counts(&data[start + USAGE_MEMBER_START.len()..])?;
        if self.tail.is_empty() || tail != self.tail {
            return None;
        }
        let usage = Usage {
            input: Some(input),
            output: Some(output),
            ..self.tail_usage
        };
        Some((start..data.len() - self.after_member, usage))
    }

    fn parse_and_keep_tail(&mut self, data: &[u8]) -> Option<(Range<usize>, Usage)> {
        let start = member_start(data)?;
        let value = start + USAGE_MEMBER_START.len();
        let end = value + length_until_closed(&data[value..])?;
        let rest = &data[end..];
        let is_outermost = length_until_closed(rest) == Some(rest.len());
        if !is_outermost || USAGE_NAME_FINDER.find(rest).is_some() {
            return None;
        }
        let usage = read_usage(&data[value - 1..end]);
        self.tail.clear();
        if let Some((input, output, tail)) = read_first_counts(&data[value..])
            && (usage.input, usage.output) == (Some(input), Some(output))
            && tail.len() > rest.len()
        {
            self.tail.extend_from_slice(tail);
            (self.tail_usage, self.after_member) = (usage, rest.len());
        }
        Some((start..end, usage))
    }
}

/// The offset of `,"usage":{`. `None`: the data lacks `"usage"`, or has other bytes around its first
/// occurrence.
fn member_start(data: &[u8]) -> Option<usize> {
    let start = USAGE_NAME_FINDER.find(data)?.checked_sub(1)?;
    let is_member = data[start..].starts_with(USAGE_MEMBER_START);
    let follows_value = start > 0 && !data[start - 1].is_ascii_whitespace();
    (is_member && follows_value).then_some(start)
}

/// Reads the counts of prompt and output tokens from the beginning of the value of `usage`. Returns both counts
/// and the bytes after them. `None`: members other than the total precede a count.
fn read_first_counts(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (input, bytes) = read_count(bytes.strip_prefix(br#""prompt_tokens":"#)?)?;
    let (_, bytes) = read_count(bytes.strip_prefix(br#","total_tokens":"#)?)?;
    let (output, bytes) = read_count(bytes.strip_prefix(br#","completion_tokens":"#)?)?;
    (input.max(output) <= MAX_TOKEN_COUNT).then_some((input, output, bytes))
}

/// Reads a count of up to 18 digits. Returns the bytes after it.
fn read_count(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes
        .iter()
        .take(MAX_DIGITS + 1)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let add = |count, byte: &u8| count * 10 + u64::from(byte - b'0');
    let count = bytes[..digits].iter().fold(0, add);
    (1..=MAX_DIGITS)
        .contains(&digits)
        .then(|| (count, &bytes[digits..]))
}

/// Whether a `usage` member begins at this range of an event.
pub(super) fn is_at(event: &[u8], range: &Range<usize>) -> bool {
    event
        .get(range.clone())
        .is_some_and(|member| member.starts_with(USAGE_MEMBER_START))
}
