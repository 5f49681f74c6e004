//! Varies an event without changing the meaning of its known fields: changes the order of its members, and
//! adds members that no API defines.

use super::chance;
use super::expected_stream::Meaning;
use fastrand::Rng;

/// Values of unknown members. Those in `CONTENTS` count as content of the event, those in `NOTHINGS` do not.
const CONTENTS: [&str; 5] = [
    "7",
    "true",
    "\"a,}\\\"\"",
    "[{\"usage\":{\"completion_tokens\":9}}]",
    "{\"data\":\"UklGRg==\"}",
];
const NOTHINGS: [&str; 5] = ["null", "false", "\"\"", "[]", "{ }"];

/// Returns the JSON of the event with its members in another order, and sometimes with unknown members. Adds the
/// content of unknown members to `meaning`.
pub(crate) fn vary(random: &mut Rng, json: &str, meaning: &mut Meaning) -> String {
    let mut json = json.to_owned();
    if chance(random, 30)
        && let Some(delta) = json.find("\"delta\":{")
    {
        let at = delta + "\"delta\":{".len();
        let comma = if json[at..].starts_with('}') { "" } else { "," };
        let value = draw(random, !meaning.is_usage_event);
        json.insert_str(at, &format!("\"audio\":{value}{comma}"));
        if CONTENTS.contains(&value) {
            meaning.add_unknown(true);
        }
    }
    let mut members: Vec<String> = split(&json).into_iter().map(str::to_owned).collect();
    if chance(random, 30) {
        // No member with content is added to a usage event: the gateway removes this event, and the client
        // would lose the content.
        let value = draw(random, !meaning.is_usage_event);
        members.push(format!("\"x_unknown\":{value}"));
        if CONTENTS.contains(&value) {
            meaning.add_unknown(false);
        }
    }
    random.shuffle(&mut members);
    let comma = [",", ", ", " ,"][random.usize(..3)];
    format!("{{{}}}", members.join(comma))
}

fn draw(random: &mut Rng, may_have_content: bool) -> &'static str {
    let values = if may_have_content && random.bool() {
        CONTENTS
    } else {
        NOTHINGS
    };
    values[random.usize(..values.len())]
}

/// Splits a JSON object into the texts of its members.
fn split(object: &str) -> Vec<&str> {
    let inner = &object[1..object.len() - 1];
    let (mut members, mut start, mut depth) = (Vec::new(), 0, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                members.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    members.push(&inner[start..]);
    members.retain(|member| !member.is_empty());
    members
}
