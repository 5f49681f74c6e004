//! However an event stream is cut, the decoder says of it what the rules of WHATWG say, read here
//! line by line from the whole of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_core::sse::{Decoder, Piece};
use tokenweir_fuzz::cut;

/// What a stream says.
#[derive(Debug, PartialEq)]
enum Said {
    Comment,
    Blank,
    Event { kind: Vec<u8>, data: Vec<u8> },
}

/// Longest event type that the decoder keeps, in bytes.
const MAX_TYPE: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some((stream, pieces)) = cut(input) else { return };
    assert_eq!(decode(pieces), read(stream));
});

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Said> {
    let mut decoder = Decoder::new();
    let mut said = Vec::new();
    let mut data = Vec::new();
    for mut piece in pieces {
        while let Some(next) = decoder.next(&mut piece) {
            said.push(match next {
                Piece::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    data.extend_from_slice(bytes);
                    continue;
                }
                Piece::Comment => Said::Comment,
                Piece::Blank => Said::Blank,
                Piece::Dispatch => Said::Event {
                    kind: decoder.event_type().into(),
                    data: std::mem::take(&mut data),
                },
            });
        }
        assert!(piece.is_empty());
    }
    said
}

/// <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>
fn read(stream: &[u8]) -> Vec<Said> {
    let mut said = Vec::new();
    let (mut kind, mut data) = (Vec::new(), Vec::new());
    let mut rest = stream.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(stream);
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        match line {
            [b':', ..] => said.push(Said::Comment),
            // A line without its end is no line, but the decoder need not wait to see a comment.
            _ if after.is_none() => {}
            [] => {
                let (kind, data) = (std::mem::take(&mut kind), std::mem::take(&mut data));
                said.push(match data.strip_suffix(b"\n") {
                    Some(data) => Said::Event { kind: kept(kind), data: data.to_vec() },
                    None => Said::Blank,
                });
            }
            line => match split_field(line) {
                (b"event", value) => kind = value.to_vec(),
                (name @ (b"data" | b"error"), value) => {
                    // The one field that is not of the standard: data of an event of that type.
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
    said
}

/// The first line without its end, and what follows; `None` if the line has no end.
fn split_line(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(end) = text.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return (text, None);
    };
    let after = text[end..].strip_prefix(b"\r\n").unwrap_or(&text[end + 1..]);
    (&text[..end], Some(after))
}

fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return (line, b"") };
    let value = &line[colon + 1..];
    (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
}

/// The decoder keeps only types that are short and text: no server sends others.
fn kept(kind: Vec<u8>) -> Vec<u8> {
    let is_kept = kind.len() <= MAX_TYPE && std::str::from_utf8(&kind).is_ok();
    if is_kept { kind } else { Vec::new() }
}
