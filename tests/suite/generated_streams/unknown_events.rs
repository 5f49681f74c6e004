//! Generated streams of API paths whose format the gateway does not know. Each event counts as output, and
//! the regular end of the body is the end of the stream.

use super::chunks::Ends;
use super::expected_stream::Meaning;
use super::framing::Framing;
use super::plan::FrontEnd;
use super::{stream_errors, texts};

/// Writes one stream whose events have no known format.
pub(crate) fn stream(framing: &mut Framing, ends: Ends) {
    framing.stream.kinds.push("unknown events");
    for _ in 0..framing.random.u8(..10) {
        let text = texts::draw(&mut framing.random);
        let json = match framing.random.u8(..7) {
            0 => format!(r#"{{"type":"speech.audio.delta","audio":"{text}"}}"#),
            1 => format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#),
            2 => format!(r#"["{text}",1]"#),
            3 => format!("\"{text}\""),
            4 => "7".into(),
            5 => format!("plain: {text}"),
            _ => "{}".into(),
        };
        let kind = if framing.random.bool() { "audio" } else { "" };
        let start = framing.random.u8(..8);
        match (json.starts_with("{\""), start) {
            (true, 1..) => framing.event(kind, &json, Meaning::with_output(false)),
            _ => framing.raw(json.as_bytes(), Meaning::with_output(false)),
        }
        // If the text of an event is not JSON, only the end of the event shows where the text ends.
        if let Some(event) = framing
            .stream
            .events
            .last_mut()
            .filter(|_| json.starts_with("plain"))
        {
            event.data_ends_at = event.complete_at;
        }
    }
    match ends {
        Ends::Error => stream_errors::failure(framing, FrontEnd::VllmPython),
        Ends::Usual if framing.random.bool() => framing.done(),
        Ends::Usual | Ends::WithoutDone => {}
    }
}
