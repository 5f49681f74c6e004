//! Pieces of generated text, written as the contents of JSON strings.

use fastrand::Rng;
use std::borrow::Cow;

/// Ordinary words, characters of every kind, and texts that look like parts of the stream format.
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

/// Number of ordinary texts, which come first in the list.
const ORDINARY: usize = 5;

/// Draws a random text, mostly an ordinary one.
pub(crate) fn draw(random: &mut Rng) -> Cow<'static, str> {
    let range = if random.u8(..4) > 0 {
        ORDINARY
    } else {
        TEXTS.len()
    };
    TEXTS[random.usize(..range)].into()
}
