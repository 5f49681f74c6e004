//! Responses with a success status but without an answer count as failures of their backend, in JSON and in
//! streams, for each API and each framing. An answer that only looks empty is no failure.

use crate::support::http2_client;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, json, stream_of,
};
use crate::support::test_gateway::{
    ASK, ASK_STREAM, CHAT, Running, Setup, WHOLE, body, gateway_following, start_before, status,
};
use tokenweir_request::record::{FailoverDenialReason, Outcome};

const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";
/// An event of chat and of completions with an empty text.
const EMPTY_TEXT: &str =
    r#"{"choices":[{"index":0,"text":"","delta":{"content":""},"finish_reason":null}]}"#;
const FLAT_ERROR: &str = r#"{"object":"error","message":"x","code":500}"#;
const INPUT: &str = r#"{"model":"tiny","input":"a","prompt":"a","messages":[]}"#;
const INPUT_STREAM: &str = r#"{"model":"tiny","stream":true,"prompt":"a","input":"a"}"#;

/// How a backend marks the end of a body.
#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunked,
    Close,
}

const FRAMINGS: [Framing; 3] = [Framing::Length, Framing::Chunked, Framing::Close];

/// Returns the steps of a backend that sends this body with the status 200.
fn answer(media_type: &str, text: &str, framing: Framing) -> Vec<Step> {
    let head = |line: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\n{line}\r\n");
    match framing {
        Framing::Length => {
            let head = head(&format!("content-length: {}\r\n", text.len()));
            vec![Step::Send(format!("{head}{text}").into())]
        }
        Framing::Chunked => {
            let head = head("transfer-encoding: chunked\r\n");
            let chunk = if text.is_empty() {
                String::new()
            } else {
                format!("{:x}\r\n{text}\r\n", text.len())
            };
            vec![Step::Send(format!("{head}{chunk}0\r\n\r\n").into())]
        }
        Framing::Close => {
            let head = head("connection: close\r\n");
            vec![Step::Send(format!("{head}{text}").into()), Step::Close]
        }
    }
}

/// An API in one form: the path, a request, the media type of its response, and an answer.
struct Form {
    path: &'static str,
    ask: &'static str,
    media_type: &'static str,
    answer: String,
}

impl Form {
    fn new(path: &'static str, ask: &'static str, media_type: &'static str, answer: &str) -> Self {
        Self {
            path,
            ask,
            media_type,
            answer: answer.to_owned(),
        }
    }

    /// Returns responses that are no answer, with their media types.
    fn no_answers(&self) -> Vec<(&'static str, String)> {
        let half = self.answer[..self.answer.len() / 2].to_owned();
        let stream = "text/event-stream";
        let mut none = vec![
            (self.media_type, String::new()),
            ("text/html", "<html>502</html>".to_owned()),
            ("application/json", "{}".to_owned()),
            ("application/json", "null".to_owned()),
            ("application/json", FLAT_ERROR.to_owned()),
            (stream, "data: [DONE]\n\n".to_owned()),
            (stream, format!("data: {FLAT_ERROR}\n\ndata: [DONE]\n\n")),
        ];
        if self.media_type == stream {
            none.push((
                stream,
                "data: Internal Server Error\n\ndata: [DONE]\n\n".to_owned(),
            ));
            none.push((
                stream,
                format!("data: {EMPTY_TEXT}\n\ndata: {EMPTY_TEXT}\n\ndata: [DONE]\n\n"),
            ));
        } else {
            none.push((self.media_type, half));
        }
        none
    }
}

fn forms() -> Vec<Form> {
    let document = "application/json";
    let stream = "text/event-stream";
    let events = [ROLE, WORD, FINISH, "[DONE]"]
        .map(|event| format!("data: {event}\n\n"))
        .concat();
    vec![
        Form::new(CHAT, ASK, document, WHOLE),
        Form::new(CHAT, ASK_STREAM, stream, &events),
        Form::new(
            "/v1/completions",
            INPUT,
            document,
            r#"{"choices":[{"index":0,"text":"Hi","finish_reason":"stop"}]}"#,
        ),
        Form::new(
            "/v1/completions",
            INPUT_STREAM,
            stream,
            "data: {\"choices\":[{\"index\":0,\"text\":\"Hi\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        Form::new(
            "/v1/messages",
            INPUT,
            document,
            r#"{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn"}"#,
        ),
        Form::new(
            "/v1/responses",
            INPUT_STREAM,
            stream,
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n\
             data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
        ),
        Form::new(
            EMBEDDINGS,
            INPUT,
            document,
            r#"{"object":"list","data":[{"embedding":[0.1]}]}"#,
        ),
        Form::new(
            RERANK,
            INPUT,
            document,
            r#"{"results":[{"index":0,"relevance_score":0.9}]}"#,
        ),
        Form::new(
            "/pooling",
            INPUT,
            document,
            r#"{"data":[{"index":0,"data":[0.5]}]}"#,
        ),
    ]
}

/// Starts a gateway before two backends. The first one sends `bad`, the other one `good`.
async fn beside_a_bad_one(bad: Vec<Step>, good: Vec<Step>) -> ([ScriptedBackend; 2], Running) {
    let fakes = ScriptedBackend::two(move |_, index, _| {
        if index == 0 {
            bad.clone()
        } else {
            good.clone()
        }
    })
    .await;
    let gateway = start_before(&fakes, Setup::default()).await;
    (fakes, gateway)
}

#[tokio::test]
async fn a_backend_without_answers_is_ejected_unnoticed() {
    let mut framings = FRAMINGS.iter().copied().cycle();
    for form in forms() {
        for (media_type, text) in form.no_answers() {
            let framing = framings.next().unwrap();
            let bad = answer(media_type, &text, framing);
            let good = answer(form.media_type, &form.answer, Framing::Length);
            let ([bad, good], gateway) = beside_a_bad_one(bad, good).await;
            for _ in 0..12 {
                let answer = gateway.post(form.path, form.ask).await;
                let received = (status(&answer), body(&answer).0);
                let name = format!("{} {media_type} {text}", form.path);
                assert_eq!(received, (200, form.answer.clone().into_bytes()), "{name}");
                assert_eq!(gateway.record().await.outcome, Outcome::Ok, "{name}");
            }
            assert!(
                bad.seen().len() <= 6,
                "{} {text}: {}",
                form.path,
                bad.seen().len()
            );
            assert_eq!(good.seen().len(), 12);
            let backends = gateway.pool.backends();
            let ejections = |fake: &ScriptedBackend| {
                let port = fake.addr.port().to_string();
                let backend = backends
                    .iter()
                    .find(|it| it.identity.id.as_str().ends_with(&port));
                backend.unwrap().health.breaker.ejections()
            };
            assert_eq!(ejections(&good), 0, "{} {text}", form.path);
        }
    }
}

#[tokio::test]
async fn without_any_answer_the_outcome_is_failure() {
    for form in forms() {
        for (number, (media_type, text)) in form.no_answers().into_iter().enumerate() {
            let steps = answer(media_type, &text, FRAMINGS[number % 3]);
            let (_fakes, gateway) = beside_a_bad_one(steps.clone(), steps).await;
            let answer = gateway.post(form.path, form.ask).await;
            let name = format!("{} {media_type} {text}", form.path);
            assert_eq!(
                (status(&answer), body(&answer).0),
                (200, text.into_bytes()),
                "{name}"
            );
            let record = gateway.record().await;
            assert!(
                record.outcome.is_backend_failure(),
                "{name}: {:?}",
                record.outcome
            );
            assert_eq!(record.attempts.len(), 2, "{name}");
            let first = record.attempts[0].failure;
            assert!(
                matches!(first, Some("empty" | "inband_error")),
                "{name}: {first:?}"
            );
            assert_eq!(
                record.not_retried,
                Some(FailoverDenialReason::NoOtherBackend),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_that_looks_empty_is_kept() {
    let embedded = r#"{"object":"list","data":[],"usage":{"prompt_tokens":0}}"#;
    let cases = [
        (
            EMBEDDINGS,
            r#"{"model":"tiny","input":[]}"#,
            json("200 OK", embedded),
        ),
        (
            RERANK,
            r#"{"model":"tiny","query":"a","documents":[ ]}"#,
            json("200 OK", r#"{"results":[]}"#),
        ),
        (
            "/detokenize",
            r#"{"model":"tiny","tokens":[]}"#,
            json("200 OK", r#"{"prompt":""}"#),
        ),
        (CHAT, ASK, json("200 OK", &WHOLE.replace("\"Hi\"", "\"\""))),
        // An engine that does not stream answers the request for a stream with JSON.
        (CHAT, ASK_STREAM, json("200 OK", WHOLE)),
        (CHAT, ASK_STREAM, stream_of(&[ROLE, FINISH, "[DONE]"])),
    ];
    for (path, ask, sent) in cases {
        let expected = body(&sent).0;
        let steps = vec![Step::Send(sent)];
        let (_fakes, gateway) = beside_a_bad_one(steps.clone(), steps).await;
        let answer = gateway.post(path, ask).await;
        assert_eq!(
            (status(&answer), body(&answer).0),
            (200, expected),
            "{path} {ask}"
        );
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.attempts.len()),
            (Outcome::Ok, 1),
            "{path} {ask}"
        );
    }
}

#[tokio::test]
async fn a_status_without_a_body_is_no_answer() {
    let no_content = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
    let good = vec![Step::Send(json("200 OK", WHOLE))];
    let fakes = ScriptedBackend::first_of_two([Step::Send(no_content)], good).await;
    let gateway = start_before(&fakes, Setup::default()).await;
    assert_eq!(body(&gateway.post(CHAT, ASK).await).0, WHOLE.as_bytes());
    let record = gateway.record().await;
    assert_eq!(
        (record.attempts.len(), record.attempts[0].failure),
        (2, Some("empty"))
    );
}

#[tokio::test]
async fn a_finished_stream_without_output_is_unchanged() {
    for ending in ["\n", "\r\n", "\r"] {
        for end in ["data: [DONE]\n\n", "data: [DONE]\n", "data: [DONE]", ""] {
            let events = format!("data: {FINISH}\n\n{end}").replace('\n', ending);
            let steps = answer("text/event-stream", &events, Framing::Chunked);
            let (_fake, gateway) = gateway_following(steps).await;
            let received = gateway.post(CHAT, ASK_STREAM).await;
            assert_eq!(
                body(&received),
                (events.clone().into_bytes(), true),
                "{events:?}"
            );
            let mut sender = http2_client::handshake(gateway.connect().await).await;
            let received = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
            let bytes = http2_client::whole(received).await.1;
            assert_eq!(bytes, events.clone().into_bytes(), "{events:?}");
        }
    }
}
