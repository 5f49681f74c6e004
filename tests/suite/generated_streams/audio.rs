//! Generated transcriptions. vLLM sends chunks, with a finish reason for each segment of a long recording.
//! `OpenAI` sends typed events.

use super::chunks::Ends;
use super::expected_stream::Meaning;
use super::framing::Framing;
use super::plan::FrontEnd;
use super::stream_errors;
use super::texts;
use tokenweir_protocol::openai::Usage;

/// Writes one transcription in the format of vLLM or of `OpenAI`.
pub(crate) fn transcription(framing: &mut Framing, is_damaged: bool, ends: Ends) {
    if framing.chance(75) {
        chunks(framing, is_damaged, ends);
    } else {
        events(framing, ends);
    }
}

fn chunks(framing: &mut Framing, is_damaged: bool, ends: Ends) {
    framing.stream.kinds.push("audio chunks");
    let id = format!("trsc-{:x}", framing.random.u32(..));
    framing.stream.names = Some((id.clone(), "whisper".into()));
    let envelope = |rest: &str| {
        format!(
            r#"{{"id":"{id}","object":"transcription.chunk","created":1795000000,"model":"whisper",{rest}}}"#
        )
    };
    let named = Meaning {
        choices: 1,
        has_names: true,
        ..Meaning::default()
    };
    let mut pieces = 0;
    for _ in 0..framing.random.u8(1..=3) {
        for _ in 0..framing.random.u8(..8) {
            pieces += 1;
            let piece = texts::draw(&mut framing.random);
            let json = envelope(&format!(
                r#""choices":[{{"delta":{{"content":"{piece}"}}}}]"#
            ));
            framing.event(
                "",
                &json,
                Meaning {
                    choices: 1,
                    has_names: true,
                    ..Meaning::with_output(true)
                },
            );
        }
        if is_damaged && framing.chance(60) {
            let whole = envelope(r#""choices":[{"delta":{"content":"a"}}]"#);
            stream_errors::event(framing, &whole, true);
        }
        if ends == Ends::Usual {
            let json = envelope(
                r#""choices":[{"delta":{"content":""},"finish_reason":"stop","stop_reason":null}]"#,
            );
            framing.event(
                "",
                &json,
                Meaning {
                    finish: Some((0, "stop")),
                    ..named.clone()
                },
            );
        }
    }
    match ends {
        Ends::Error => stream_errors::failure(framing, FrontEnd::VllmPython),
        Ends::Usual if framing.random.bool() => {
            let usage = r#"{"prompt_tokens":9,"total_tokens":"#;
            let json = envelope(&format!(
                r#""choices":[],"usage":{usage}{},"completion_tokens":{pieces}}}"#,
                pieces + 9
            ));
            let counts = Usage {
                input: Some(9),
                output: Some(pieces),
                ..Usage::default()
            };
            let meaning = Meaning {
                usage: Some(counts),
                is_usage_event: true,
                has_names: true,
                ..Meaning::default()
            };
            framing.event("", &json, meaning);
        }
        Ends::Usual | Ends::WithoutDone => {}
    }
    if ends != Ends::WithoutDone {
        framing.done();
    }
}

fn events(framing: &mut Framing, ends: Ends) {
    framing.stream.kinds.push("audio events");
    let pieces = framing.random.u64(..10);
    for _ in 0..pieces {
        let piece = texts::draw(&mut framing.random);
        let json = format!(r#"{{"type":"transcript.text.delta","delta":"{piece}"}}"#);
        framing.event("", &json, Meaning::with_output(true));
    }
    match ends {
        Ends::Error => stream_errors::failure(framing, FrontEnd::VllmPython),
        Ends::WithoutDone => {}
        // If earlier events have output, this event only repeats it, so neither its text nor its unknown
        // fields are output.
        Ends::Usual => {
            let json = format!(
                r#"{{"type":"transcript.text.done","text":"all of it","usage":{{"type":"tokens","input_tokens":14,"output_tokens":{pieces},"total_tokens":{}}}}}"#,
                pieces + 14
            );
            let usage = Some(Usage {
                input: Some(14),
                output: Some(pieces),
                ..Usage::default()
            });
            let output = Meaning::with_output(true).output.filter(|_| pieces == 0);
            framing.event(
                "",
                &json,
                Meaning {
                    output,
                    usage,
                    is_last: true,
                    is_repetition: true,
                    ..Meaning::default()
                },
            );
        }
    }
}
