//! Faults inside a generated stream: errors that the server reports, and malformed events. A malformed event
//! has no meaning, so the observer must not derive a value from it.

use super::expected_stream::Meaning;
use super::framing::Framing;
use super::plan::FrontEnd;
use tokenweir_protocol::openai::Usage;

/// Writes a malformed event, or a valid event that looks malformed. `whole` is a valid event of the stream.
/// `is_chunk`: whether the events of the API have choices.
pub(crate) fn event(framing: &mut Framing, whole: &str, is_chunk: bool) {
    let deep = "[".repeat(5_000);
    let (kind, data): (&str, Vec<u8>) = match framing.random.u8(..7) {
        0..2 => {
            let cut = framing.random.usize(1..whole.len());
            ("malformed: JSON cut off", whole.as_bytes()[..cut].to_vec())
        }
        2 => {
            let texts = [
                "",
                "hello",
                "<html>",
                "[DONE",
                "[DONE]]",
                "nul",
                "{\"a\" 1}",
                "{'a':1}",
            ];
            (
                "malformed: not JSON",
                texts[framing.random.usize(..texts.len())].into(),
            )
        }
        3 => (
            "malformed: more after the JSON",
            format!("{whole}}}").into(),
        ),
        4 => (
            "malformed: brackets",
            format!("{}]", &whole[..whole.len() - 1]).into(),
        ),
        5 => (
            "malformed: too deep and unclosed",
            format!("{{\"x\":{deep}").into(),
        ),
        _ => {
            let texts = ["5", "\"x\"", "[1,2]", "true", "null"];
            (
                "malformed: not an object",
                texts[framing.random.usize(..texts.len())].into(),
            )
        }
    };
    let harmless = framing.random.u8(..8);
    let (kind, data, meaning) = match harmless {
        0 => {
            let closed = format!("{{\"x\":{deep}{}}}", "]".repeat(5_000));
            ("deep nesting", closed.into(), Meaning::with_output(false))
        }
        // These bytes are no valid UTF-8, but a text decoder replaces them and continues.
        1 => {
            let mut data =
                br#"{"choices":[{"index":0,"text":"a","delta":{"content":"a"}}],"x":""#.to_vec();
            data.extend_from_slice(b"\xFF\xC3(\xF0\x9F\"}");
            let choices = usize::from(is_chunk);
            (
                "invalid UTF-8",
                data,
                Meaning {
                    choices,
                    ..Meaning::with_output(is_chunk)
                },
            )
        }
        _ if data.is_empty() => ("malformed: not JSON", data, Meaning::default()),
        _ => (
            kind,
            data,
            Meaning {
                is_malformed: true,
                ..Meaning::with_output(false)
            },
        ),
    };
    let mut meaning = meaning;
    meaning.is_text = meaning.is_malformed && !data.starts_with(b"{") && data != b"[1,2]";
    // The first text is probably an error. A second one shows that texts are the format of the stream.
    if meaning.is_text
        && !framing
            .stream
            .events
            .iter()
            .any(|event| event.meaning.is_text)
    {
        meaning.output = None;
    }
    framing.stream.kinds.push(kind);
    framing.raw(&data, meaning);
}

/// Builds the JSON of a `usage` object that has a malformed count. Also returns its valid counts.
pub(crate) fn usage(framing: &mut Framing, input: u64, output: u64) -> (String, Usage) {
    const NO_COUNTS: [&str; 10] = [
        "-1",
        "1.5",
        "1e-1",
        "9223372036854775808",
        "99999999999999999999999",
        "\"12\"",
        "true",
        "[1]",
        "{\"a\":1}",
        "{}",
    ];
    const NO_USAGES: [&str; 4] = ["5", "\"none\"", "[12]", "true"];
    framing.stream.kinds.push("malformed: usage");
    let bad = NO_COUNTS[framing.random.usize(..NO_COUNTS.len())];
    let total = input + output;
    match framing.random.u8(..4) {
        0 => (
            format!(
                r#"{{"prompt_tokens":{bad},"total_tokens":{total},"completion_tokens":{output}}}"#
            ),
            Usage {
                output: Some(output),
                ..Usage::default()
            },
        ),
        1 => (
            format!(
                r#"{{"prompt_tokens":{input},"total_tokens":{total},"completion_tokens":{bad}}}"#
            ),
            Usage {
                input: Some(input),
                ..Usage::default()
            },
        ),
        2 => (
            format!(
                r#"{{"prompt_tokens":{bad},"total_tokens":{total},"completion_tokens":{bad}}}"#
            ),
            Usage::default(),
        ),
        _ => (
            NO_USAGES[framing.random.usize(..NO_USAGES.len())].into(),
            Usage::default(),
        ),
    }
}

/// Writes an error event in one of the formats of this front end and of other servers.
pub(crate) fn failure(framing: &mut Framing, front_end: FrontEnd) {
    let named = Some((Some("500"), Some("InternalServerError")));
    let (kind, json, error) = match framing.random.u8(..5) {
        0..2 => (
            "error event, compact",
            r#"{"error":{"message":"a \"b\" {","type":"InternalServerError","param":null,"code":500}}"#,
            named,
        ),
        2..4 => (
            "error event, spaced",
            r#"{"error": {"message": "caf\u00e9", "type": "InternalServerError", "param": null, "code": 500}}"#,
            named,
        ),
        _ => (
            "error event, a text",
            r#"{"error":"the engine is dead"}"#,
            Some((None, None)),
        ),
    };
    if front_end == FrontEnd::LlamaCpp && framing.random.bool() {
        framing.stream.kinds.push("error field");
        framing.error_field(r#"{"code":500,"message":"x","type":"server_error"}"#);
        return;
    }
    framing.stream.kinds.push(kind);
    framing.event(
        "",
        json,
        Meaning {
            error,
            ..Meaning::default()
        },
    );
}
