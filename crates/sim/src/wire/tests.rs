//! Compares every response format byte for byte with the recordings of vLLM. Only the generated words differ.

use super::recorded::*;
use super::template::quoted;
use super::*;
use crate::generation_progress::GenerationProgress;
use crate::text::{SimulatedFinishReason, SimulatedOutput};
use bytes::BytesMut;
use serde_json::Value;

fn reply(
    api: GenerationApi,
    id: &str,
    created: u64,
    prompt_tokens: u32,
    output: SimulatedOutput,
) -> SimulatedResponse {
    SimulatedResponse {
        api,
        id: id.to_owned(),
        item_id: "msg_95cce4cf0c3ee985".to_owned(),
        created,
        model: "tiny".to_owned(),
        prompt_tokens,
        outputs: vec![output],
        include_usage: false,
        continuous_usage: false,
        temperature: 0.0,
        top_p: 1.0,
        max_output_tokens: output.tokens,
    }
}

fn output(tokens: u32, finish: SimulatedFinishReason) -> SimulatedOutput {
    SimulatedOutput {
        seed: 5,
        tokens,
        finish,
    }
}

/// Writes a complete stream while the engine produces one token at a time.
fn stream(reply: SimulatedResponse) -> String {
    let tokens = reply.outputs[0].tokens;
    let choices = reply.outputs.len();
    let mut events = EventWriter::new(reply);
    let mut written = BytesMut::new();
    let progress = GenerationProgress::new(choices);
    for produced in 0..=tokens {
        (0..choices).for_each(|choice| progress.advance(choice, produced, 0));
        while events.next(&progress, &mut written) == NextEvent::Event {}
    }
    assert_eq!(events.next(&progress, &mut written), NextEvent::End);
    String::from_utf8(written.to_vec()).expect("text")
}

fn with_simulated_words(recorded: &str, words: &[&str], output: SimulatedOutput) -> String {
    let recorded_text = quoted(&words.concat());
    let mut text = recorded.replace(&recorded_text, &quoted(&output.text()));
    for (nth, recorded_word) in (0..).zip(words).filter(|_| words.len() > 1) {
        let mut word = String::new();
        output.write(nth..nth + 1, &mut word);
        text = text.replacen(&quoted(recorded_word), &quoted(&word), 1);
    }
    text
}

#[test]
fn each_apis_stream_equals_the_recording() {
    let numbers = ["one", " two", " three", " four", " five"];
    let loop_words = [
        " closes", " a", " slow", " answer", " in", " a", " loop", ".",
    ];
    let hello = ["H", "el", "lo", "!", " I"];
    for (api, id, created, prompt_tokens, words, recorded) in [
        (
            GenerationApi::Chat,
            "chatcmpl-a9d5374d321e2fb1",
            1_795_191_578,
            12,
            &numbers[..],
            CHAT_STREAM,
        ),
        (
            GenerationApi::Completions,
            "cmpl-92117cfcbb24dab7",
            1_795_191_581,
            2,
            &loop_words,
            COMPLETION_STREAM,
        ),
        (
            GenerationApi::Responses,
            "resp_8e0cbd9e8c9b59fc",
            1_795_191_581,
            12,
            &numbers,
            RESPONSES_STREAM,
        ),
        (
            GenerationApi::Messages,
            "chatcmpl-a6db9eb8594535e2",
            1_795_191_581,
            13,
            &hello,
            MESSAGES_STREAM,
        ),
    ] {
        let output = output(words.len() as u32, SimulatedFinishReason::Length);
        let mut reply = reply(api, id, created, prompt_tokens, output);
        reply.include_usage = api == GenerationApi::Chat;
        assert_eq!(
            stream(reply),
            with_simulated_words(recorded, words, output),
            "{id}"
        );
    }
}

#[test]
fn continuous_usage_equals_the_recording() {
    let output = output(24, SimulatedFinishReason::Stop);
    let mut reply = reply(
        GenerationApi::Chat,
        "chatcmpl-b1e0a9ca914d8d13",
        1_795_191_576,
        13,
        output,
    );
    (reply.include_usage, reply.continuous_usage) = (true, true);
    let stream = stream(reply);
    let events: Vec<&str> = stream.split("\n\n").collect();
    let [role, token, end] = CHAT_CONTINUOUS;
    assert_eq!(events[0], role);
    assert_eq!(events[1], with_simulated_words(token, &["H", "…"], output));
    assert_eq!(events[24], end);
}

#[test]
fn the_finish_chunk_equals_the_recording() {
    let output = output(3, SimulatedFinishReason::Stop);
    let stream = stream(reply(
        GenerationApi::Chat,
        "chatcmpl-8c28b332885f353f",
        1_795_191_576,
        13,
        output,
    ));
    assert_eq!(stream.split("\n\n").nth(3), Some(CHAT_STOP));
}

#[test]
fn bodies_equal_the_recordings() {
    let hello = "Hello! I am a tiny model. How can I help you today?";
    let render_body =
        |reply: SimulatedResponse| String::from_utf8(reply.render_body(0).to_vec()).expect("text");
    let stopped = output(24, SimulatedFinishReason::Stop);

    let chat = reply(
        GenerationApi::Chat,
        "chatcmpl-93a105e493a501f9",
        1_795_191_576,
        13,
        stopped,
    );
    assert_eq!(
        render_body(chat),
        with_simulated_words(CHAT, &[hello], stopped)
    );

    let cut = output(8, SimulatedFinishReason::Length);
    let completion = reply(
        GenerationApi::Completions,
        "cmpl-b489d2c5e7ce9726",
        1_795_191_581,
        2,
        cut,
    );
    let words = [" closes a slow answer in a loop."];
    assert_eq!(
        render_body(completion),
        with_simulated_words(COMPLETION, &words, cut)
    );

    let mut responses = reply(
        GenerationApi::Responses,
        "resp_b50e59b35486d2a3",
        1_795_191_581,
        13,
        stopped,
    );
    responses.item_id = "msg_98e03c950a8bf46a".to_owned();
    responses.max_output_tokens = 2035;
    assert_eq!(
        render_body(responses),
        with_simulated_words(RESPONSES, &[hello], stopped)
    );

    let messages = reply(
        GenerationApi::Messages,
        "chatcmpl-98b7f95d4adeb499",
        0,
        13,
        stopped,
    );
    assert_eq!(
        render_body(messages),
        with_simulated_words(MESSAGES, &[hello], stopped)
    );
}

#[test]
fn interleaved_choices_have_role_and_finish_chunks() {
    let mut reply = reply(
        GenerationApi::Chat,
        "chatcmpl-1",
        1,
        4,
        output(2, SimulatedFinishReason::Length),
    );
    reply.outputs.push(SimulatedOutput {
        seed: 6,
        tokens: 2,
        finish: SimulatedFinishReason::Length,
    });
    let stream = stream(reply);
    let indices: Vec<&str> = stream
        .split(r#""index":"#)
        .skip(1)
        .filter_map(|event| event.get(..1))
        .collect();
    assert_eq!(indices, ["0", "1", "0", "1", "0", "1"]);
    assert_eq!(stream.matches(r#""finish_reason":"length""#).count(), 2);
}

#[test]
fn a_slow_client_gets_several_tokens_at_once() {
    let output = output(9, SimulatedFinishReason::Length);
    let mut events = EventWriter::new(reply(GenerationApi::Completions, "cmpl-1", 1, 4, output));
    let mut written = BytesMut::new();
    let progress = GenerationProgress::new(1);
    progress.advance(0, 3, 0);
    assert_eq!(events.next(&progress, &mut written), NextEvent::Event);
    assert_eq!(events.next(&progress, &mut written), NextEvent::Wait);
    let mut text = String::new();
    output.write(0..3, &mut text);
    assert!(String::from_utf8_lossy(&written).contains(&format!(r#""text":"{text}""#)));
}

#[test]
fn ids_and_model_names_are_escaped() {
    let mut reply = reply(
        GenerationApi::Chat,
        "chatcmpl-a\"b$c",
        1,
        4,
        output(1, SimulatedFinishReason::Length),
    );
    reply.model = "my \\ \"model\"".to_owned();
    let stream = stream(reply);
    let event = stream
        .split("\n\n")
        .next()
        .and_then(|event| event.strip_prefix("data: "));
    let event: Value = serde_json::from_str(event.expect("an event")).expect("JSON");
    assert_eq!(
        (&event["id"], &event["model"]),
        (
            &Value::from("chatcmpl-a\"b$c"),
            &Value::from("my \\ \"model\"")
        )
    );
}
