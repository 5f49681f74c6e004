//! The members of the JSON object in the data of an event, in any order and with any white space.

use std::borrow::Cow;
use std::ops::Range;
use tokenweir_protocol::json::JsonText;
use tokenweir_protocol::json::members::{Member, is_set, visit_members};

/// The members of the outermost object of the data of one event.
pub(super) struct EventMembers<'a> {
    /// The data. Further `data` lines are appended to the first.
    data: Cow<'a, [u8]>,
    /// Offset of the data in the event. `None`: the data has several lines, so offsets in the data are
    /// not offsets in the event.
    offset: Option<usize>,
    members: Vec<Member>,
}

/// Members with which the filter can remove a usage event: every event of the stream has them, or they describe
/// the request as usage does. So the client loses no content.
const REMOVABLE_MEMBERS: [&[u8]; 10] = [
    b"id",
    b"object",
    b"created",
    b"model",
    b"choices",
    b"usage",
    b"service_tier",
    b"metrics",
    b"timings",
    FINGERPRINT,
];
const FINGERPRINT: &[u8] = b"system_fingerprint";
/// Maximum length of an inserted `system_fingerprint`, in bytes.
const MAX_FINGERPRINT_BYTES: usize = 256;

impl<'a> EventMembers<'a> {
    /// The members of an event. The event may have lines other than `data`. `None`: the data is no JSON object.
    pub(super) fn read(event: &'a [u8]) -> Option<Self> {
        let (data, offset) = data_of(event)?;
        let mut members = Vec::new();
        visit_members(&data, |member| members.push(member))?;
        Some(Self {
            data,
            offset,
            members,
        })
    }

    /// The byte ranges to cut from the event, so that it has no `usage` object. Each range includes one comma
    /// if other members remain. Empty: the event has no such member, or none that can be cut.
    pub(super) fn usage_cuts(&self) -> Vec<Range<usize>> {
        let Some(offset) = self.offset else {
            return Vec::new();
        };
        let is_cut = |member: &Member| {
            self.is_named(member, b"usage") && self.data[member.value.start] == b'{'
        };
        let leading = self
            .members
            .iter()
            .take_while(|member| is_cut(member))
            .count();
        let mut cuts = Vec::new();
        if let (Some(first), Some(last)) = (self.members.first(), self.members[..leading].last()) {
            let next = self.members.get(leading);
            let end = next.map_or(last.value.end, |member| member.name.start - 1);
            cuts.push(first.name.start - 1..end);
        }
        for (before, member) in self
            .members
            .iter()
            .zip(self.members.iter().skip(1))
            .skip(leading)
        {
            if is_cut(member) {
                cuts.push(before.value.end..member.value.end);
            }
        }
        cuts.into_iter()
            .map(|cut| cut.start + offset..cut.end + offset)
            .collect()
    }

    /// The offset in the event at which vLLM writes `system_fingerprint`: after `choices`. `None`:
    /// nothing can be inserted there.
    pub(super) fn end_of_choices(&self) -> Option<usize> {
        Some(self.find(b"choices")?.value.end + self.offset?)
    }

    /// The value of `system_fingerprint`, with its quotes. `None`: missing, `null` or empty.
    pub(super) fn fingerprint(&self) -> Option<&[u8]> {
        let member = self.find(FINGERPRINT)?;
        Some(&self.data[member.value.clone()]).filter(|value| is_set(value))
    }

    pub(super) fn has_fingerprint_member(&self) -> bool {
        self.find(FINGERPRINT).is_some()
    }

    /// Whether removing the usage event would withhold content from the client.
    pub(super) fn has_unknown_content(&self) -> bool {
        let is_unknown = |member: &Member| {
            let is_removable = REMOVABLE_MEMBERS
                .iter()
                .any(|name| self.is_named(member, name));
            !is_removable && is_set(&self.data[member.value.clone()])
        };
        let is_long = |value: &[u8]| value.len() > MAX_FINGERPRINT_BYTES;
        self.members.iter().any(is_unknown) || self.fingerprint().is_some_and(is_long)
    }

    fn find(&self, name: &[u8]) -> Option<&Member> {
        self.members
            .iter()
            .find(|member| self.is_named(member, name))
    }

    fn is_named(&self, member: &Member, name: &[u8]) -> bool {
        let raw = &self.data[member.name.clone()];
        if raw == name {
            return true;
        }
        let decoded = JsonText::new(raw, raw.len()).decode_if_escaped();
        decoded.is_some_and(|text| text.as_bytes() == name)
    }
}

/// The data of an event, and its offset if the data has one line. `None`: the event has no data.
fn data_of(event: &[u8]) -> Option<(Cow<'_, [u8]>, Option<usize>)> {
    let mut lines = data_lines(event);
    let first = lines.next()?;
    let Some(second) = lines.next() else {
        return Some((Cow::Borrowed(&event[first.clone()]), Some(first.start)));
    };
    let parts: Vec<&[u8]> = [first, second]
        .into_iter()
        .chain(lines)
        .map(|at| &event[at])
        .collect();
    Some((Cow::Owned(parts.join(&b'\n')), None))
}

/// The byte ranges of the data in the `data` lines of an event.
fn data_lines(event: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.filter_map(move |line| {
        let line_start = start;
        start += line.len() + 1;
        let byte_order_mark: &[u8] = if line_start == 0 {
            b"\xEF\xBB\xBF"
        } else {
            b""
        };
        let unmarked = line.strip_prefix(byte_order_mark).unwrap_or(line);
        let data = unmarked.strip_prefix(b"data:")?;
        let data = data.strip_prefix(b" ").unwrap_or(data);
        let end = line_start + line.len();
        Some(end - data.len()..end)
    })
}
