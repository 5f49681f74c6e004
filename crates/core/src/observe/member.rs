//! The `usage` member of an event as vLLM writes it: `,"usage":{…}` behind `choices`, in the JSON of
//! one `data` line.

use crate::openai::Usage;
use memchr::memchr2;
use memchr::memmem::Finder;
use std::ops::Range;
use std::sync::LazyLock;

/// The event that is being read, with its usage apart. Most events of a stream are the same but for
/// their text and their usage, so that without the usage the reader need not parse them.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// The data without the member.
    rest: Vec<u8>,
}

/// The member, up to and with the brace that opens its object. In JSON these bytes cannot stand
/// inside a text: there the quotes are escaped.
const MEMBER: &[u8] = br#","usage":{"#;
const CHOICE: &[u8] = br#"{"index":"#;
static MEMBER_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MEMBER));
static CHOICE_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CHOICE));

impl Apart {
    /// Takes the usage out of the data of an event. Returns the rest of the data and the usage, or
    /// `None` if the event must be read as it is: it is not whole, or has several choices or other
    /// counts.
    pub(super) fn take(&mut self, data: &[u8]) -> Option<(&[u8], Usage)> {
        let (member, usage) = read(data)?;
        let is_single = CHOICE_FINDER.find_iter(data).take(2).count() == 1;
        if !is_single || usage.input.is_none() || usage.output.is_none() {
            return None;
        }
        self.rest.clear();
        self.rest.extend_from_slice(&data[..member.start]);
        self.rest.extend_from_slice(&data[member.end..]);
        Some((&self.rest, usage))
    }
}

/// Where the member stands in an event or in its block, with the comma before it. `None`: there is
/// none in the outermost object of one `data` line, or not behind another member.
pub(super) fn find(block: &[u8]) -> Option<Range<usize>> {
    read(block).map(|(member, _)| member)
}

fn read(block: &[u8]) -> Option<(Range<usize>, Usage)> {
    MEMBER_FINDER.find_iter(block).find_map(|start| {
        let mut usage = Usage::default();
        let value = start + MEMBER.len();
        let end = value + read_object(&block[value..], |key, count| keep(&mut usage, key, count))?;
        let rest = end + read_object(&block[end..], |_, _| ())?;
        let is_outermost = block[rest..].iter().all(|byte| matches!(byte, b'\n' | b'\r'));
        is_outermost.then_some((start..end, usage))
    })
}

/// Reads an object from behind its opening brace on, with the objects in it. Returns where it ends,
/// behind its closing brace. `found` gets each key that has a digit behind it, and what follows.
fn read_object(bytes: &[u8], mut found: impl FnMut(&[u8], &[u8])) -> Option<usize> {
    let (mut at, mut depth) = (0, 1_u32);
    loop {
        match *bytes.get(at)? {
            b'"' => {
                let text = &bytes[at + 1..];
                let end = text_end(text)?;
                if let [b':', digits @ ..] = &text[end + 1..]
                    && digits.first().is_some_and(u8::is_ascii_digit)
                {
                    found(&text[..end], digits);
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

/// Where the closing quote of a text stands.
fn text_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

fn keep(usage: &mut Usage, key: &[u8], digits: &[u8]) {
    let place = match key {
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
    *place = count;
}
