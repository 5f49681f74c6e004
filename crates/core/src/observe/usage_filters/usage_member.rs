//! Positions of the members that the usage filter removes or inserts, in events as vLLM writes
//! them: `,"usage":{…}` and `,"system_fingerprint":"…"` after `choices`, in the JSON of one `data`
//! line.

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
    /// The end of the data of the last event, after the count of output tokens. Empty: no event has
    /// been split. Most events of a stream have the same end.
    tail: Vec<u8>,
    /// The usage of the last event.
    tail_usage: Usage,
    /// Number of bytes of the tail after the `usage` member.
    after_member: usize,
}

/// The parts of the data of an event.
pub(in crate::observe) struct SplitEvent<'a> {
    /// The data without the `usage` member.
    pub(in crate::observe) other_data: &'a [u8],
    /// The counts of the `usage` member.
    pub(in crate::observe) usage: Usage,
    /// Byte range of the `usage` member in the data, including the comma before the member.
    pub(in crate::observe) member: Range<usize>,
}

/// The start of the `usage` member, up to and including the brace that opens its object. In JSON
/// these bytes cannot occur inside a string, because quotes are escaped there.
const USAGE_MEMBER_START: &[u8] = br#","usage":{"#;
const FINGERPRINT_MEMBER_START: &[u8] = br#","system_fingerprint":""#;
const CHOICE_START: &[u8] = br#"{"index":"#;
static USAGE_MEMBER_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(USAGE_MEMBER_START));
static FINGERPRINT_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(FINGERPRINT_MEMBER_START));
static CHOICE_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CHOICE_START));

/// Most digits of a count. Numbers with as many digits fit into a `u64`.
const MAX_DIGITS: usize = 18;
/// Longest `system_fingerprint` member that is inserted, in bytes.
const MAX_FINGERPRINT_BYTES: usize = 256;

impl UsageSplitter {
    /// Splits the data of an event. `None`: the event must be parsed as it is, because the data is
    /// incomplete, or has not exactly one choice, or lacks the count of input or output tokens.
    pub(in crate::observe) fn split(&mut self, data: &[u8]) -> Option<SplitEvent<'_>> {
        let (member, usage) =
            self.parse_like_last(data).or_else(|| self.parse_and_keep_tail(data))?;
        let is_single = CHOICE_FINDER.find_iter(&data[..member.start]).take(2).count() == 1;
        if !is_single || usage.input.is_none() || usage.output.is_none() {
            return None;
        }
        self.data_without_usage.clear();
        self.data_without_usage.extend_from_slice(&data[..member.start]);
        self.data_without_usage.extend_from_slice(&data[member.end..]);
        Some(SplitEvent { other_data: &self.data_without_usage, usage, member })
    }
}

impl UsageSplitter {
    /// Parses the `usage` member of an event that differs from the last one only in its counts of
    /// prompt, total and output tokens, which vLLM writes first.
    fn parse_like_last(&self, data: &[u8]) -> Option<(Range<usize>, Usage)> {
        let start = USAGE_MEMBER_FINDER.find(data)?;
        let (input, output, tail) = read_first_counts(&data[start + USAGE_MEMBER_START.len()..])?;
        if self.tail.is_empty() || tail != self.tail {
            return None;
        }
        let usage = Usage { input: Some(input), output: Some(output), ..self.tail_usage };
        Some((start..data.len() - self.after_member, usage))
    }

    fn parse_and_keep_tail(&mut self, data: &[u8]) -> Option<(Range<usize>, Usage)> {
        let (member, usage) = parse_usage_member(data)?;
        self.tail.clear();
        let counts = &data[member.start + USAGE_MEMBER_START.len()..];
        if let Some((input, output, tail)) = read_first_counts(counts)
            && (usage.input, usage.output) == (Some(input), Some(output))
            && tail.len() > data.len() - member.end
        {
            self.tail.extend_from_slice(tail);
            (self.tail_usage, self.after_member) = (usage, data.len() - member.end);
        }
        Some((member, usage))
    }
}

/// Reads the counts of prompt and output tokens from the beginning of the value of `usage`. Returns
/// the bytes after them. `None`: they are not the first members, apart from the total.
fn read_first_counts(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (input, bytes) = read_count(bytes.strip_prefix(br#""prompt_tokens":"#)?)?;
    let (_, bytes) = read_count(bytes.strip_prefix(br#","total_tokens":"#)?)?;
    let (output, bytes) = read_count(bytes.strip_prefix(br#","completion_tokens":"#)?)?;
    Some((input, output, bytes))
}

/// Reads a count of up to 18 digits. Returns the bytes after it.
fn read_count(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let digits = bytes.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
    let add = |count, byte: &u8| count * 10 + u64::from(byte - b'0');
    let count = bytes[..digits].iter().fold(0, add);
    (1..=MAX_DIGITS).contains(&digits).then(|| (count, &bytes[digits..]))
}

/// The byte range of the `usage` member in an event or in its block, including the comma before the
/// member. `None`: the outermost object of the one `data` line has no such member after another
/// member.
pub(super) fn find(block: &[u8]) -> Option<Range<usize>> {
    parse_usage_member(block).map(|(member, _)| member)
}

/// Whether a `usage` member begins at this range of an event.
pub(super) fn is_at(event: &[u8], range: &Range<usize>) -> bool {
    event.get(range.clone()).is_some_and(|member| member.starts_with(USAGE_MEMBER_START))
}

/// The `system_fingerprint` member of a usage event, including the comma before the member. Empty
/// if the event has none.
pub(super) fn find_fingerprint(block: &[u8]) -> &[u8] {
    let Some(start) = FINGERPRINT_FINDER.find(block) else { return &[] };
    let text = start + FINGERPRINT_MEMBER_START.len();
    let Some(length) = find_string_end(&block[text..]) else { return &[] };
    let member = &block[start..=text + length];
    if member.len() <= MAX_FINGERPRINT_BYTES { member } else { &[] }
}

/// The offset at which vLLM writes `system_fingerprint` into an event without `usage`: after
/// `choices`. `None`: `choices` is not the last member of the event.
pub(super) fn end_of_choices(block: &[u8]) -> Option<usize> {
    let event = block.trim_ascii_end();
    event.ends_with(b"}]}").then(|| event.len() - 1)
}

/// The byte range of the `usage` member, and its counts.
fn parse_usage_member(block: &[u8]) -> Option<(Range<usize>, Usage)> {
    USAGE_MEMBER_FINDER.find_iter(block).find_map(|start| {
        let mut usage = Usage::default();
        let value = start + USAGE_MEMBER_START.len();
        let end = value + read_object(&block[value..], &mut usage)?;
        let object_end = match block.get(end) {
            Some(b'}') => end + 1,
            _ => end + read_object(&block[end..], &mut Usage::default())?,
        };
        let is_outermost = block[object_end..].iter().all(|byte| matches!(byte, b'\n' | b'\r'));
        is_outermost.then_some((start..end, usage))
    })
}

/// Scans an object and its nested objects, and stores the counts among its members in `usage`.
/// `bytes` starts after the opening brace of the object. Returns the offset after its closing
/// brace. `None`: the object is incomplete.
fn read_object(bytes: &[u8], usage: &mut Usage) -> Option<usize> {
    let (mut at, mut depth) = (0, 1_u32);
    loop {
        match *bytes.get(at)? {
            b'"' => {
                let text = &bytes[at + 1..];
                // Keys are short and have no escapes.
                let end = match text.iter().position(|byte| matches!(byte, b'"' | b'\\'))? {
                    end if text[end] == b'"' => end,
                    _ => find_string_end(text)?,
                };
                at += end + 1;
                if let [b':', digits @ ..] = &text[end + 1..]
                    && digits.first().is_some_and(u8::is_ascii_digit)
                {
                    at += 1 + store_count(usage, &text[..end], digits);
                }
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
/// stored as `None`. Returns the length of the value.
fn store_count(usage: &mut Usage, key: &[u8], digits: &[u8]) -> usize {
    let (mut count, mut length) = (Some(0_u64), 0);
    for byte in digits {
        match byte {
            b'0'..=b'9' => {
                let tens = count.and_then(|count| count.checked_mul(10));
                count = tens.and_then(|tens| tens.checked_add(u64::from(byte - b'0')));
            }
            b',' | b'}' => break,
            _ => count = None,
        }
        length += 1;
    }
    let field = match key {
        b"prompt_tokens" => &mut usage.input,
        b"completion_tokens" => &mut usage.output,
        b"cached_tokens" => &mut usage.cached,
        b"created_cache_tokens" => &mut usage.cache_created,
        b"reasoning_tokens" => &mut usage.reasoning,
        _ => return length,
    };
    *field = count;
    length
}
