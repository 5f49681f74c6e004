//! The recorded responses of `tests/wire`, parsed from their raw bytes.

use super::chunked_body::chunks;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A recorded exchange with a vLLM server, and the values that its record must have.
pub(crate) struct Recording {
    /// Folder and name, such as `python/chat-stream`.
    pub name: String,
    pub path: String,
    /// The body of the request. `None`: the request has none.
    pub request: Option<String>,
    /// The status line and headers of the response, unchanged.
    pub head: String,
    /// The bytes after the headers, with chunked framing if the response has it.
    pub framed: Vec<u8>,
    /// The body without chunked framing, split into the chunks that the server wrote.
    pub pieces: Vec<Vec<u8>>,
    /// The values that an independent parser (`tests/wire/oracle.py`) found in the response.
    pub expected: Value,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire")
}

/// The folders with recorded exchanges: one for each front end and version of vLLM.
const SERVERS: [&str; 4] = ["python", "rust", "python-0.33", "rust-0.33"];

/// Reads all recorded exchanges that have a response.
pub(crate) fn all() -> Vec<Recording> {
    let mut all = Vec::new();
    for front_end in SERVERS {
        let index = fs::read_to_string(folder().join(front_end).join("index.jsonl")).unwrap();
        for line in index.lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            let name = entry["name"].as_str().unwrap();
            let file = |ending| folder().join(front_end).join(format!("{name}.{ending}"));
            let raw = fs::read(file("http")).unwrap();
            let expected = fs::read_to_string(file("expected.json")).unwrap();
            let Some((head, framed)) = split_head(&raw) else {
                continue;
            };
            all.push(Recording {
                name: format!("{front_end}/{name}"),
                path: entry["path"].as_str().unwrap().into(),
                request: entry["body"].as_str().map(Into::into),
                pieces: unframe(&head, framed),
                framed: framed.to_vec(),
                head,
                expected: serde_json::from_str(&expected).unwrap(),
            });
        }
    }
    assert!(all.len() > 200, "the recordings are complete");
    all
}

impl Recording {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// The whole body of the response, without chunked framing.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        known.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// Splits a raw response into the headers of the final response and the bytes after them. Skips informational
/// responses. Returns `None` if the headers are not complete.
fn split_head(raw: &[u8]) -> Option<(String, &[u8])> {
    let end = raw.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(raw[..end].to_vec()).unwrap();
    if head.starts_with("HTTP/1.1 1") {
        return split_head(&raw[end..]);
    }
    Some((head, &raw[end..]))
}

fn unframe(head: &str, framed: &[u8]) -> Vec<Vec<u8>> {
    if header(head, "transfer-encoding") != Some("chunked") {
        return if framed.is_empty() {
            vec![]
        } else {
            vec![framed.to_vec()]
        };
    }
    chunks(framed).0.into_iter().map(<[u8]>::to_vec).collect()
}
