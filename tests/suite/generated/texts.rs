//! Pieces of generated text, as they stand between the quotes of a JSON string.

use fastrand::Rng;
use std::borrow::Cow;

/// Ordinary words, every kind of character, and what looks like the wire itself.
const TEXTS: [&str; 20] = [
    "The",
    " scheduler",
    " closes",
    " a",
    ".",
    "\\n",
    "é",
    "世界",
    "🙂",
    "\\u00e9",
    "\\ud83d\\ude42",
    "\\\\",
    "\\\"quoted\\\"",
    "data: [DONE]",
    "\\r\\n\\r\\n",
    "{\\\"choices\\\":[]}",
    "\\\"finish_reason\\\":\\\"abort\\\"",
    "]}",
    ": keep-alive",
    "\u{2028}",
];

/// How many of them, from the first, are ordinary.
const ORDINARY: usize = 5;

/// One of them.
pub(crate) fn draw(random: &mut Rng) -> Cow<'static, str> {
    let range = if random.u8(..4) > 0 { ORDINARY } else { TEXTS.len() };
    TEXTS[random.usize(..range)].into()
}
