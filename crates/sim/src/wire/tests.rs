//! Every shape against what vLLM sent, to the byte. Only the words are exchanged for ours.

use super::recorded::*;
use super::*;

struct Done(u32);

impl Progress for Done {
    fn produced(&self, _choice: usize) -> u32 {
        self.0
    }
    fn cached_tokens(&self) -> u32 {
        0
    }
}

fn reply(api: Api, id: &str, created: u64, prompt_tokens: u32, answer: Answer) -> Reply {
    Reply {
        api,
        id: id.to_owned(),
        item_id: "msg_95cce4cf0c3ee985".to_owned(),
        created,
        model: "tiny".to_owned(),
        prompt_tokens,
        answers: vec![answer],
        include_usage: false,
        continuous_usage: false,
        temperature: 0.0,
        top_p: 1.0,
        max_output_tokens: answer.tokens,
    }
}

fn answer(tokens: u32, finish: Finish) -> Answer {
    Answer { seed: 5, tokens, finish }
}

/// The whole stream, one token at a time.
fn stream(reply: Reply) -> String {
    let tokens = reply.answers[0].tokens;
    let (mut events, mut out) = (Events::new(reply), BytesMut::new());
    for produced in 0..=tokens {
        while events.next(&Done(produced), &mut out) == Next::Event {}
    }
    assert_eq!(events.next(&Done(tokens), &mut out), Next::End);
    String::from_utf8(out.to_vec()).expect("text")
}

/// A recording with its words exchanged for those of our answer.
fn with_our_words(recorded: &str, words: &[&str], answer: Answer) -> String {
    let whole = quoted(&words.concat());
    let mut text = recorded.replace(&whole, &quoted(&answer.text()));
    for (nth, theirs) in (0..).zip(words).filter(|_| words.len() > 1) {
        let mut ours = String::new();
        answer.write(nth..nth + 1, &mut ours);
        text = text.replacen(&quoted(theirs), &quoted(&ours), 1);
    }
    text
}

#[test]
fn a_chat_stream_is_as_recorded() {
    let answer = answer(5, Finish::Length);
    let mut reply = reply(Api::Chat, "chatcmpl-a9d5374d321e2fb1", 1_795_191_578, 12, answer);
    reply.include_usage = true;
    let words = ["one", " two", " three", " four", " five"];
    assert_eq!(stream(reply), with_our_words(CHAT_STREAM, &words, answer));
}

#[test]
fn usage_in_every_chunk_is_as_recorded() {
    let answer = answer(24, Finish::Stop);
    let mut reply = reply(Api::Chat, "chatcmpl-b1e0a9ca914d8d13", 1_795_191_576, 13, answer);
    (reply.include_usage, reply.continuous_usage) = (true, true);
    let stream = stream(reply);
    let events: Vec<&str> = stream.split("\n\n").collect();
    let [role, token, end] = CHAT_CONTINUOUS;
    assert_eq!(events[0], role);
    assert_eq!(events[1], with_our_words(token, &["H", "…"], answer));
    assert_eq!(events[24], end);
}

#[test]
fn the_end_of_a_chat_that_stopped_is_as_recorded() {
    let answer = answer(3, Finish::Stop);
    let stream = stream(reply(Api::Chat, "chatcmpl-8c28b332885f353f", 1_795_191_576, 13, answer));
    assert_eq!(stream.split("\n\n").nth(3), Some(CHAT_STOP));
}

#[test]
fn a_completion_stream_is_as_recorded() {
    let answer = answer(8, Finish::Length);
    let reply = reply(Api::Completions, "cmpl-92117cfcbb24dab7", 1_795_191_581, 2, answer);
    let words = [" closes", " a", " slow", " answer", " in", " a", " loop", "."];
    assert_eq!(stream(reply), with_our_words(COMPLETION_STREAM, &words, answer));
}

#[test]
fn a_responses_stream_is_as_recorded() {
    let answer = answer(5, Finish::Length);
    let reply = reply(Api::Responses, "resp_8e0cbd9e8c9b59fc", 1_795_191_581, 12, answer);
    let words = ["one", " two", " three", " four", " five"];
    assert_eq!(stream(reply), with_our_words(RESPONSES_STREAM, &words, answer));
}

#[test]
fn a_messages_stream_is_as_recorded() {
    let answer = answer(5, Finish::Length);
    let reply = reply(Api::Messages, "chatcmpl-a6db9eb8594535e2", 1_795_191_581, 13, answer);
    let words = ["H", "el", "lo", "!", " I"];
    assert_eq!(stream(reply), with_our_words(MESSAGES_STREAM, &words, answer));
}

#[test]
fn documents_are_as_recorded() {
    let hello = "Hello! I am a tiny model. How can I help you today?";
    let whole = |reply: Reply| String::from_utf8(reply.whole(0).to_vec()).expect("text");
    let stopped = answer(24, Finish::Stop);

    let chat = reply(Api::Chat, "chatcmpl-93a105e493a501f9", 1_795_191_576, 13, stopped);
    assert_eq!(whole(chat), with_our_words(CHAT, &[hello], stopped));

    let cut = answer(8, Finish::Length);
    let completion = reply(Api::Completions, "cmpl-b489d2c5e7ce9726", 1_795_191_581, 2, cut);
    let words = [" closes a slow answer in a loop."];
    assert_eq!(whole(completion), with_our_words(COMPLETION, &words, cut));

    let mut responses = reply(Api::Responses, "resp_b50e59b35486d2a3", 1_795_191_581, 13, stopped);
    responses.item_id = "msg_98e03c950a8bf46a".to_owned();
    responses.max_output_tokens = 2035;
    assert_eq!(whole(responses), with_our_words(RESPONSES, &[hello], stopped));

    let messages = reply(Api::Messages, "chatcmpl-98b7f95d4adeb499", 0, 13, stopped);
    assert_eq!(whole(messages), with_our_words(MESSAGES, &[hello], stopped));
}

#[test]
fn several_choices_take_turns_and_each_has_a_role_and_an_end() {
    let mut reply = reply(Api::Chat, "chatcmpl-1", 1, 4, answer(2, Finish::Length));
    reply.answers.push(Answer { seed: 6, tokens: 2, finish: Finish::Length });
    let stream = stream(reply);
    let indices: Vec<&str> =
        stream.split(r#""index":"#).skip(1).filter_map(|event| event.get(..1)).collect();
    assert_eq!(indices, ["0", "1", "0", "1", "0", "1"]);
    assert_eq!(stream.matches(r#""finish_reason":"length""#).count(), 2);
}

#[test]
fn a_reader_that_falls_behind_gets_several_tokens_in_one_event() {
    let answer = answer(9, Finish::Length);
    let mut events = Events::new(reply(Api::Completions, "cmpl-1", 1, 4, answer));
    let mut out = BytesMut::new();
    assert_eq!(events.next(&Done(3), &mut out), Next::Event);
    assert_eq!(events.next(&Done(3), &mut out), Next::Wait);
    let mut text = String::new();
    answer.write(0..3, &mut text);
    assert!(String::from_utf8_lossy(&out).contains(&format!(r#""text":"{text}""#)));
}

#[test]
fn text_from_outside_cannot_break_the_json() {
    let mut reply = reply(Api::Chat, "chatcmpl-a\"b$c", 1, 4, answer(1, Finish::Length));
    reply.model = "my \\ \"model\"".to_owned();
    let stream = stream(reply);
    let event = stream.split("\n\n").next().and_then(|event| event.strip_prefix("data: "));
    let event: Value = serde_json::from_str(event.expect("an event")).expect("JSON");
    assert_eq!(
        (&event["id"], &event["model"]),
        (&Value::from("chatcmpl-a\"b$c"), &Value::from("my \\ \"model\""))
    );
}
