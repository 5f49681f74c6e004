//! Finds the URLs in a JSON body to which the engine would connect: media, and servers of tools.

use crate::json::{JsonText, find_string_end};
use memchr::memchr_iter;

/// Names of members whose value is a URL that engines fetch. The value is a string, or an object whose member
/// `url` is the URL.
const URL_NAMES: [&str; 5] = [
    "image_url",
    "audio_url",
    "video_url",
    "file_url",
    "server_url",
];
/// Names of top-level members whose strings are URLs that engines fetch, in requests to `/v1/decisions` and in
/// Cohere's embedding requests. Deeper in a body, these names mean something else.
const LIST_NAMES: [&str; 3] = ["images", "audio", "videos"];
/// Name of members whose value is an object with the URL in its member `url`.
const SOURCE_NAME: &str = "source";
const URL_NAME: &str = "url";

/// Maximum nesting depth: the recursion limit of Python, with which engines parse. Without a limit, a body of
/// brackets only would take twice its length in memory.
const MAX_DEPTH: usize = 1_000;

/// Number of bytes of a body that [`has_url_member`] searches.
const MAX_SEARCHED_BYTES: usize = 64 << 10;
/// The common end of the names in `URL_NAMES`, after the underscore.
const URL_NAME_END: &[u8] = b"url\"";

/// Whether the beginning of a body probably has a member of `URL_NAMES`. The search is fast and inexact,
/// because only statistics use the result.
pub fn has_url_member(body: &[u8]) -> bool {
    let searched = &body[..body.len().min(MAX_SEARCHED_BYTES)];
    let is_end = |at: usize| searched[at + 1..].starts_with(URL_NAME_END);
    memchr_iter(b'_', searched).any(is_end)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A value without a URL.
    Other,
    /// A string is a URL, and so is the member `url` of an object.
    Url,
    /// The member `url` of an object is a URL.
    Source,
}

/// An open object or array, and the place of its values.
#[derive(Debug, Clone, Copy)]
struct Container {
    place: Place,
    is_array: bool,
}

/// Calls `visit` with each URL of a complete JSON document, at any depth and even if the name of its member has
/// escapes. Returns whether the whole document was searched: the search stops at a depth of `MAX_DEPTH`.
#[must_use]
pub fn visit_media_urls<'a>(body: &'a [u8], mut visit: impl FnMut(JsonText<'a>)) -> bool {
    let mut open: Vec<Container> = Vec::new();
    // Where the next value is, which decides whether it is a URL.
    let mut next = Place::Other;
    let mut at = 0;
    while let Some(byte) = body.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                let is_array = *byte == b'[';
                if open.len() == MAX_DEPTH {
                    return false;
                }
                open.push(Container {
                    place: next,
                    is_array,
                });
                if !is_array {
                    next = Place::Other;
                }
            }
            b'}' | b']' => {
                open.pop();
                next = next_in(open.last());
            }
            b'"' => {
                let length = find_string_end(&body[at..]).unwrap_or(body.len() - at);
                let text = JsonText::new(&body[at..at + length], length);
                at += length + 1;
                if is_name(&body[at.min(body.len())..]) {
                    next = place_of(text, &open);
                } else {
                    if next == Place::Url {
                        visit(text);
                    }
                    next = next_in(open.last());
                }
            }
            _ => {}
        }
    }
    true
}

/// The place of the value after an element or a member. In an object, the next member name sets the place.
fn next_in(open: Option<&Container>) -> Place {
    match open {
        Some(container) if container.is_array => container.place,
        _ => Place::Other,
    }
}

/// Whether a string is the name of a member. `after`: the bytes that follow the string.
fn is_name(after: &[u8]) -> bool {
    after.trim_ascii_start().first() == Some(&b':')
}

/// The place of the value of the member `name` in the innermost open object.
fn place_of(name: JsonText<'_>, open: &[Container]) -> Place {
    let Some(name) = name.decode() else {
        return Place::Other;
    };
    let is_media = open
        .last()
        .is_some_and(|container| container.place != Place::Other);
    if open.len() == 1 && LIST_NAMES.contains(&&*name) {
        return Place::Url;
    }
    if URL_NAMES.contains(&&*name) || (is_media && name == URL_NAME) {
        Place::Url
    } else if name == SOURCE_NAME {
        Place::Source
    } else {
        Place::Other
    }
}

#[cfg(test)]
mod tests {
    use super::{has_url_member, visit_media_urls};

    #[test]
    fn members_with_urls_are_found_fast() {
        assert!(has_url_member(br#"{"type":"image_url","image_url":"u"}"#));
        assert!(!has_url_member(br#"{"text":"an image_urls b_"}"#));
        assert!(!has_url_member(b""));
    }

    fn urls(body: &str) -> Vec<String> {
        let mut found = Vec::new();
        let is_whole = visit_media_urls(body.as_bytes(), |text| {
            found.push(text.decode().unwrap().into_owned());
        });
        assert!(is_whole);
        found
    }

    #[test]
    fn urls_are_found_at_any_depth() {
        for body in [
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#,
            r#"{"messages":[{"content":[{"image_url":"u"}]}]}"#,
            r#"{"input":[{"content":[{"type":"input_image","image_url":"u","detail":"low"}]}]}"#,
            r#"{"input":[{"content":[{"type":"input_file","file_url":"u"}]}]}"#,
            r#"{"messages":[{"content":[{"source":{"type":"url","url":"u"}}]}]}"#,
            r#"{"messages":[{"content":[{"content":[{"source":{"url":"u","type":"url"}}]}]}]}"#,
            r#"{"a":[[[{"video_url" : { "x":{}, "url" : "u" , "y":"n"}}]]]}"#,
            r#"{"audio_url":["u"]}"#,
            r#"{"audio_url":[{"url":"u"}]}"#,
            r#"{"tools":[{"type":"mcp","server_url":"u"}]}"#,
            r#"{"\u0069mage_url":{"\u0075rl":"\u0075"}}"#,
            r#"{"image_url":{"detail":"low","url":"u"}}"#,
            r#"{"model":"m","images":["u"]}"#,
            r#"{"state":{"images":["n"]},"videos":["u"]}"#,
            r#"{"audio":["u"],"messages":[{"audio":"n"}]}"#,
        ] {
            assert_eq!(urls(body), ["u"], "{body}");
        }
        let twice = r#"{"image_url":{"url":"u"},"image_url":{"url":"v","url":"w"}}"#;
        assert_eq!(urls(twice), ["u", "v", "w"]);
    }

    #[test]
    fn the_search_ends_at_a_great_depth() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(visit_media_urls(nested(1_000).as_bytes(), |_| {}));
        assert!(!visit_media_urls(nested(1_001).as_bytes(), |_| {}));
    }

    #[test]
    fn other_strings_are_no_urls() {
        for body in [
            r#"{"messages":[{"content":"image_url"}]}"#,
            r#"{"messages":[{"content":"\"image_url\":\"u\""}],"url":"u"}"#,
            r#"{"tools":[{"function":{"parameters":{"properties":{"url":{"type":"string"}}}}}]}"#,
            r#"{"source":"u","metadata":{"url":"u"}}"#,
            r#"{"image_url":null,"a":"u"}"#,
            r#"{"audio":{"voice":"alloy","format":"mp3"},"modalities":["audio"]}"#,
            r#"{"image_url":1,"a":"u","b":["u"]}"#,
            r#"{"image_url":{"detail":"u"},"a":["u"]}"#,
            r#"{"source":{"data":"u","media_type":"u"},"url":"u"}"#,
        ] {
            assert_eq!(urls(body), Vec::<String>::new(), "{body}");
        }
    }

    #[test]
    fn a_long_body_takes_linear_time() {
        let long = format!("{{\"a\":[{}1]}}", "\"image_url\",".repeat(1 << 17));
        assert!(urls(&long).is_empty());
    }
}
