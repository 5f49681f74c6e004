//! Pieces of generated text in the form of JSON string contents.

use fastrand::Rng;
use std::borrow::Cow;

/// Ordinary words, every kind of character, and texts that resemble the stream format.
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

/// Number of ordinary texts, from the first.
const ORDINARY: usize = 5;

/// A random text, mostly an ordinary one.
pub(crate) fn draw(random: &mut Rng) -> Cow<'static, str> {
    let range = if random.u8(..4) > 0 { ORDINARY } else { TEXTS.len() };
    TEXTS[random.usize(..range)].into()
}
