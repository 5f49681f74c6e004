//! Writes the name that the client requested into the field `model` of a response.

use bytes::{Bytes, BytesMut};
use memchr::{memmem, memrchr2};
use std::mem::take;
use std::sync::LazyLock;
use tokenweir_protocol::json::{JsonScanner, JsonValue, PathTable};
use tokenweir_protocol::openai::Splice;

/// Renames the model of one response, in each event of a stream or in a JSON document. All other bytes are
/// forwarded unchanged.
#[derive(Debug)]
pub(super) struct ModelRename {
    name: String,
    is_stream: bool,
    /// The bytes of an incomplete line of a stream, or of an incomplete document.
    held: BytesMut,
    /// Whether the line or document exceeds [`MAX_HELD_BYTES`]. Its bytes are then forwarded as they arrive.
    is_long: bool,
}

/// Maximum length of a line or document in which the model is renamed, in bytes.
const MAX_HELD_BYTES: usize = 1 << 20;
/// The beginning of a line with a document.
const DATA: &[u8] = b"data:";

/// The fields with the name of the model, in all APIs.
static MODEL_PATHS: LazyLock<PathTable<()>> = LazyLock::new(|| {
    let paths = [("model", ()), ("message.model", ()), ("response.model", ())];
    PathTable::new(&[("", &paths)])
});

impl ModelRename {
    pub(super) fn new(name: &str, is_stream: bool) -> Self {
        Self {
            name: serde_json::Value::from(name).to_string(),
            is_stream,
            held: BytesMut::new(),
            is_long: false,
        }
    }

    /// The bytes to forward after this chunk. They can be empty.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Bytes {
        let mut complete = 0;
        if self.is_stream
            && let Some(last) = memrchr2(b'\n', b'\r', chunk)
        {
            complete = self.held.len() + last + 1;
        }
        self.held.extend_from_slice(chunk);
        let lines = self.held.split_to(complete);
        let mut out = BytesMut::with_capacity(lines.len() + self.name.len());
        for line in lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let is_rest = take(&mut self.is_long);
            self.write_line(line, is_rest, &mut out);
        }
        self.is_long |= self.held.len() > MAX_HELD_BYTES;
        if self.is_long {
            out.extend_from_slice(&self.held.split());
        }
        out.freeze()
    }

    /// The last bytes to forward. Called when the body has ended.
    pub(super) fn finish(&mut self) -> Bytes {
        let held = self.held.split();
        if !self.is_stream {
            return self.renamed(&held);
        }
        let mut out = BytesMut::new();
        self.write_line(&held, self.is_long, &mut out);
        out.freeze()
    }

    /// Writes a line with the new name. `is_rest`: whether the beginning of the line was forwarded before.
    fn write_line(&self, line: &[u8], is_rest: bool, out: &mut BytesMut) {
        match line.strip_prefix(DATA) {
            Some(document) if !is_rest => {
                out.extend_from_slice(DATA);
                out.extend_from_slice(&self.renamed(document));
            }
            _ => out.extend_from_slice(line),
        }
    }

    fn renamed(&self, document: &[u8]) -> Bytes {
        let mut edits = Vec::new();
        if memmem::find(document, b"\"model\"").is_some() {
            JsonScanner::default().scan(&MODEL_PATHS, document, |(), value, end| {
                if let JsonValue::Text(text) = value {
                    let start = end.saturating_sub(text.len() + 2);
                    edits.push(Splice::replace(start..end, self.name.clone()));
                }
            });
        }
        Splice::apply(&edits, document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(body: &str, is_stream: bool, size: usize) -> String {
        let mut rename = ModelRename::new("the \"chat\"", is_stream);
        let mut out = Vec::new();
        for chunk in body.as_bytes().chunks(size) {
            out.extend_from_slice(&rename.push(chunk));
        }
        out.extend_from_slice(&rename.finish());
        String::from_utf8(out).unwrap()
    }

    /// Documents with the model fields of each API, and fields that only look like one.
    const DOCUMENTS: [&str; 6] = [
        r#"{"id":"a","model": «"org/m"» , "choices":[{"delta":{"content":"\"model\":\"org/m\"","model":"x"}}]}"#,
        r#"{"type":"message_start","message":{"role":"assistant","model":«"m"»,"content":[]}}"#,
        r#"{"type":"response.created","response":{"model":«"m\"\\"»,"output":[]},"n":1.50}"#,
        r#"{"content":[{"input":{"model":"m"}}],"model":«"m"»}"#,
        r#"{"model":null,"usage":{}}"#,
        "[DONE]",
    ];

    fn sent(marked: &str) -> String {
        marked.replace(['«', '»'], "")
    }

    fn expected(marked: &str) -> String {
        match marked.split_once('«') {
            Some((before, rest)) => {
                let (_, after) = rest.split_once('»').unwrap();
                format!(r#"{before}"the \"chat\""{after}"#)
            }
            None => marked.to_owned(),
        }
    }

    #[test]
    fn only_the_model_of_a_document_changes() {
        for document in DOCUMENTS {
            for size in [1, 7, 1_000] {
                assert_eq!(renamed(&sent(document), false, size), expected(document));
            }
        }
    }

    #[test]
    fn only_the_models_of_a_stream_change() {
        for line_end in ["\n", "\r\n", "\r"] {
            let stream = |documents: Vec<String>| {
                let events = documents.iter().map(|document| {
                    format!("event: a{line_end}data: {document}{line_end}{line_end}: c{line_end}")
                });
                events.collect::<String>()
            };
            let body = stream(DOCUMENTS.map(sent).to_vec());
            let wanted = stream(DOCUMENTS.map(expected).to_vec());
            for size in [1, 7, body.len()] {
                assert_eq!(renamed(&body, true, size), wanted);
                let cut = body.trim_end_matches([':', 'c', '\r', '\n']);
                assert!(wanted.starts_with(&renamed(cut, true, size)));
            }
        }
    }

    #[test]
    fn long_lines_and_documents_pass() {
        let content = "b".repeat(MAX_HELD_BYTES + 2_000);
        let long = format!(r#"{{"a":"{content}","model":"m"}}"#);
        assert_eq!(renamed(&long, false, 1_000), long);
        let body = format!("data: {long}\n\ndata: {{\"model\":\"m\"}}\n\n");
        let wanted = format!("data: {long}\n\ndata: {{\"model\":\"the \\\"chat\\\"\"}}\n\n");
        assert_eq!(renamed(&body, true, 1_000), wanted);
    }
}
