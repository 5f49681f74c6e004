//! Fuzz target of the decoder of server-sent events. For any split of an event stream into pieces, the
//! decoder gives the events that the rules of WHATWG define. The target computes those line by line from the
//! whole stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_fuzz::cut;
use tokenweir_protocol::sse::{SseDecoder, SsePiece};

/// What the decoder reports of a stream.
#[derive(Debug, PartialEq)]
enum StreamItem {
    Comment,
    Blank,
    Event { kind: Vec<u8>, data: Vec<u8> },
}

/// Maximum length in bytes of an event type that the decoder stores.
const MAX_TYPE: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some((stream, pieces)) = cut(input) else {
        return;
    };
    assert_eq!(decode(pieces), read(stream));
});

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<StreamItem> {
    let mut decoder = SseDecoder::new();
    let mut items = Vec::new();
    let mut data = Vec::new();
    for mut piece in pieces {
        while let Some(next) = decoder.next(&mut piece) {
            items.push(match next {
                SsePiece::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    data.extend_from_slice(bytes);
                    continue;
                }
                SsePiece::Comment => StreamItem::Comment,
                SsePiece::UnknownLine => continue,
                SsePiece::Blank => StreamItem::Blank,
                SsePiece::Dispatch => StreamItem::Event {
                    kind: decoder.event_type().into(),
                    data: std::mem::take(&mut data),
                },
            });
        }
        assert!(piece.is_empty());
    }
    items
}

/// The events and comments of a stream by the rules of
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>.
fn read(stream: &[u8]) -> Vec<StreamItem> {
    let mut items = Vec::new();
    let (mut kind, mut data) = (Vec::new(), Vec::new());
    let mut rest = stream.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(stream);
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        match line {
            [b':', ..] => items.push(StreamItem::Comment),
            // A line without a line ending is incomplete and ignored. Only a comment counts already, because
            // the decoder reports it early.
            _ if after.is_none() => {}
            [] => {
                let (kind, data) = (std::mem::take(&mut kind), std::mem::take(&mut data));
                items.push(match data.strip_suffix(b"\n") {
                    Some(data) => StreamItem::Event {
                        kind: stored_type(kind),
                        data: data.to_vec(),
                    },
                    None => StreamItem::Blank,
                });
            }
            line => match split_field(line) {
                (b"event", value) => kind = value.to_vec(),
                (name @ (b"data" | b"error"), value) => {
                    // The field `error` is the only one that is not standard: it has the data of an event of
                    // the type `error`.
                    if name == b"error" {
                        kind = name.to_vec();
                    }
                    data.extend_from_slice(value);
                    data.push(b'\n');
                }
                _ => {}
            },
        }
        rest = after.unwrap_or_default();
    }
    items
}

/// Splits a text after its first line. Returns the line without its ending, and the text after it, which is
/// `None` if the line has no ending.
fn split_line(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(end) = text.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return (text, None);
    };
    let after = text[end..]
        .strip_prefix(b"\r\n")
        .unwrap_or(&text[end + 1..]);
    (&text[..end], Some(after))
}

fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return (line, b"");
    };
    let value = &line[colon + 1..];
    (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
}

/// The event type that the decoder stores. It is empty if the type is too long or not valid UTF-8.
fn stored_type(kind: Vec<u8>) -> Vec<u8> {
    let is_stored = kind.len() <= MAX_TYPE && std::str::from_utf8(&kind).is_ok();
    if is_stored { kind } else { Vec::new() }
}
