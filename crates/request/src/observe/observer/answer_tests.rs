//! Tests with generated responses of each API, with and without an answer, in pieces of any length. A response
//! without an answer must never be complete.

use super::ResponseObserver;
use crate::record::{RequestOptions, Timings};
use bytes::Bytes;
use fastrand::Rng;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;

const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";
const DONE: &str = "data: [DONE]\n\n";
const FLAT_ERROR: &str =
    r#"{"object":"error","message":"x","type":"InternalServerError","code":500}"#;

/// Number of random divisions into pieces for each response.
const DIVISIONS: usize = 20;

/// Bodies that are no answer of any API, with their media types.
const NO_ANSWERS: [(&str, &str); 25] = [
    (JSON, ""),
    (JSON, " \r\n"),
    (JSON, "null"),
    (JSON, "{}"),
    (JSON, "[]"),
    (
        JSON,
        r#"{"id":"a","object":"list","created":1,"model":"m","usage":{"prompt_tokens":9}}"#,
    ),
    (JSON, FLAT_ERROR),
    (JSON, r#"{"error":{"message":"x","code":500}}"#),
    (
        JSON,
        r#"{"type":"error","code":"server_error","message":"x"}"#,
    ),
    ("application/problem+json", ""),
    ("", ""),
    ("", "<html>"),
    ("application/octet-stream", ""),
    ("text/html", "<!DOCTYPE html><p>502"),
    ("text/html; charset=utf-8", "\u{feff} \n<p>"),
    ("application/xml", "<Error/>"),
    (STREAM, ""),
    (STREAM, ": ping\n\n"),
    (STREAM, DONE),
    (STREAM, ": ping\n\ndata:\n\ndata: [DONE]"),
    (STREAM, "data: {\"error\":\"x\"}\n\ndata: [DONE]\n\n"),
    (STREAM, "event: error\ndata: Internal Server Error\n\n"),
    (
        STREAM,
        "data: {\"object\":\"error\",\"message\":\"x\",\"code\":50001}\n\ndata: [DONE]\n\n",
    ),
    (STREAM, "error: {\"code\":500,\"message\":\"x\"}\n\n"),
    (STREAM, "id: 1\nretry: 5\n\n"),
];

/// Bodies that are no answer of an API with a known format.
const NO_KNOWN_ANSWERS: [(&str, &str); 13] = [
    (JSON, "7"),
    (JSON, r#"{"detail":"Not Found"}"#),
    (
        JSON,
        r#"{"message":"no upstream","code":503,"status":"error"}"#,
    ),
    (JSON, r#"{"choices":[]}"#),
    (JSON, r#"{"choices":null,"usage":{"completion_tokens":3}}"#),
    (STREAM, "Internal Server Error\n"),
    (STREAM, "<html>\n<p>502</p>\n</html>\n"),
    (STREAM, "data: Internal Server Error\n\ndata: [DONE]\n\n"),
    (STREAM, "data: [Errno 111] refused\n\ndata: [DONE]\n\n"),
    (STREAM, "data: null\n\ndata: [DONE]\n\n"),
    (
        STREAM,
        "data: {}\n\nevent: ping\ndata: {}\n\ndata: [DONE]\n\n",
    ),
    (STREAM, "data: {\"detail\":\"x\"}\n\ndata: [DONE]\n\n"),
    (
        STREAM,
        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
    ),
];

/// Texts that are no answer of an API that answers with JSON.
const NO_JSON: [(&str, &str); 5] = [
    (JSON, "Internal Server Error"),
    (JSON, "\"Internal Server Error\""),
    (JSON, "<html>"),
    ("text/plain", "upstream connect error"),
    ("", "Bad Gateway"),
];

/// Complete answers of an API in JSON. Some of them look empty.
fn documents(api: Api) -> &'static [&'static str] {
    match api {
        Api::Chat => &[
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"index":0,"message":{"content":null,"tool_calls":[{"id":"c"}]}}]}"#,
            r#"{"choices":[{"index":0,"message":{"content":null,"reasoning":"so"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"message":{"content":null,"audio":{"data":"UklG"}}}]}"#,
            r#"{"choices":[{"index":0,"message":{"refusal":"No"}}]}"#,
            r#"{"choices":[{"message":{"content":""},"finish_reason":null},{"index":1,"message":{"content":""},"finish_reason":"length"}]}"#,
            r#"{"choices":[{"message":{"content":""},"token_ids":[7]}]}"#,
            r#"{"choices":["UklG"]}"#,
            r#"{"video":"UklG"}"#,
            r#"[{"a":1}]"#,
        ],
        Api::Completions => &[
            r#"{"choices":[{"index":0,"text":"Hi","finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#,
            r#"{"choices":[{"index":0,"text":"","logprobs":{"tokens":["a"]}}]}"#,
            r#"{"request_id":"r","choices":[{"index":0,"token_ids":[7,8]}]}"#,
        ],
        Api::Messages => &[
            r#"{"type":"message","content":[{"type":"text","text":"Hi"}],"stop_reason":null}"#,
            r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#,
            r#"{"type":"message","content":[{"type":"thinking","thinking":"so"}]}"#,
            r#"{"type":"message","content":[{"type":"tool_use","id":"t","input":{"a":1}}]}"#,
        ],
        Api::Responses => &[
            r#"{"id":"r","object":"response","status":"completed","output":[]}"#,
            r#"{"id":"r","object":"response","status":"queued","output":[],"error":null}"#,
            r#"{"id":"r","output":[{"type":"image_generation_call","result":"UklG"}]}"#,
            r#"{"id":"r","output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#,
        ],
        Api::Audio => &[
            r#"{"text":"One"}"#,
            r#"{"text":"","segments":[]}"#,
            "\"One\"",
            "One",
        ],
        Api::Embeddings => &[
            r#"{"object":"list","data":[{"index":0,"embedding":[0.1]}],"usage":{"prompt_tokens":1}}"#,
            r#"{"embedding":[0.1]}"#,
            r#"[{"embedding":[0.1]}]"#,
        ],
        Api::Other | Api::Http => &[
            r#"{"results":[{"index":0,"relevance_score":0.9}]}"#,
            r#"{"data":[{"score":0.0}]}"#,
            r#"{"embeddings":{"float":[[0.1]]},"texts":["a"]}"#,
            r#"{"embeddings":[[0.1]]}"#,
            r#"{"count":0,"tokens":[]}"#,
            r#"{"prompt":""}"#,
            r#"{"input_tokens":0}"#,
            r#"[{"index":0,"score":0.5}]"#,
            "0.5",
        ],
    }
}

/// Complete streams of an API. Some of them look empty.
fn streams(api: Api) -> &'static [&'static str] {
    match api {
        Api::Chat => &[
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"audio\":{\"data\":\"UklG\"}}}]}\n\ndata: [DONE]\n\n",
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}}]}\n\ndata: [DONE]",
            "data: one \n\ndata: two \n\ndata: [DONE]\n\n",
            "{\"text\":\"UklG\"}\n\ndata: [DONE]\n\n",
        ],
        Api::Completions => &[
            "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"token_ids\":[7]}]}\n\ndata: [DONE]\n\n",
        ],
        Api::Messages => &[
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
        ],
        Api::Responses => &[
            "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[]}}\n\n",
            "data: {\"type\":\"response.cancelled\",\"response\":{\"status\":\"cancelled\"}}\n\n",
        ],
        Api::Audio => &["data: {\"type\":\"transcript.text.done\",\"text\":\"\"}\n\n"],
        Api::Embeddings | Api::Other | Api::Http => &["data: {\"a\":1}\n\n", "data: 7\n\n"],
    }
}

fn begun_streams(api: Api) -> &'static [&'static str] {
    match api {
        Api::Chat => &[
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":\"\"}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":\"error\"}]}\n\n",
        ],
        Api::Completions => &[
            "data: {\"id\":\"c\",\"choices\":[]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":null}]}\n\n",
        ],
        Api::Messages => &[
            "data: {\"type\":\"message_start\",\"message\":{\"content\":[],\"stop_reason\":\"\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
        ],
        Api::Responses => &[
            "data: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"output\":[]}}\n\n",
            "data: {\"type\":\"response.completed\"}\n\n",
        ],
        Api::Audio => &["data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"\"}]}\n\n"],
        Api::Embeddings | Api::Other | Api::Http => &[],
    }
}

/// The first events of the APIs that generate text. A proxy can forward a request to the path of another API.
const BEGINNINGS: [&str; 4] = [
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"role\":\"assistant\",\"content\":[]}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"output\":[]}}\n\n",
];

/// Returns the observer after this whole body. The body arrives in pieces that end at random positions.
fn observe(api: Api, media_type: &str, body: &[u8], random: &mut Rng) -> ResponseObserver {
    let now = clock::now();
    let mut timings = Timings::begin(now);
    let mut observer = ResponseObserver::new(api);
    let name = media_type.split(';').next().unwrap_or_default();
    observer.on_head(name, false);
    observer.expect_answer(name);
    let mut rest = body;
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(random.usize(1..=rest.len()));
        observer.on_data(piece, now, &mut timings);
        rest = later;
    }
    observer.on_end(now, &mut timings);
    observer
}

const APIS: [Api; 7] = [
    Api::Chat,
    Api::Completions,
    Api::Messages,
    Api::Responses,
    Api::Audio,
    Api::Embeddings,
    Api::Other,
];

#[test]
fn responses_without_answers_are_incomplete() {
    let mut random = Rng::with_seed(1);
    let mut count = 0;
    for api in APIS {
        let has_known_format = !matches!(api, Api::Embeddings | Api::Other);
        let mut bodies: Vec<(&str, String)> = NO_ANSWERS
            .iter()
            .map(|(media, body)| (*media, (*body).to_owned()))
            .collect();
        let mut add = |more: &[(&'static str, &str)]| {
            bodies.extend(
                more.iter()
                    .map(|(media, body)| (*media, (*body).to_owned())),
            );
        };
        if has_known_format {
            add(&NO_KNOWN_ANSWERS);
        } else {
            add(&[(JSON, r#"{"embeddings":{"float":[]},"texts":["a"]}"#)]);
        }
        if matches!(api, Api::Chat | Api::Completions) {
            for finish in ["null", "\"\""] {
                let choice = format!(r#"{{"index":0,"finish_reason":{finish}}}"#);
                add(&[(JSON, &format!(r#"{{"choices":[{choice}]}}"#))]);
            }
        }
        if api != Api::Audio {
            add(&NO_JSON);
        }
        let of_others: &[&str] = if api.generates() { &BEGINNINGS } else { &[] };
        for begun in begun_streams(api).iter().chain(of_others) {
            add(&[(STREAM, begun), (STREAM, &format!("{begun}{DONE}"))]);
        }
        for document in documents(api)
            .iter()
            .filter(|document| document.starts_with('{'))
        {
            add(&[(JSON, &document[..random.usize(1..document.len())])]);
        }
        for empty in ["data", "results", "embeddings"] {
            add(&[(
                JSON,
                &format!(r#"{{"object":"list","{empty}":[],"usage":{{}}}}"#),
            )]);
        }
        for (media_type, body) in bodies {
            for _ in 0..DIVISIONS {
                count += 1;
                let observer = observe(api, media_type, body.as_bytes(), &mut random);
                let is_error = observer.observed().error.is_some();
                assert!(
                    observer.lacks_answer() || is_error,
                    "{api:?} {media_type:?} {body:?}"
                );
            }
        }
    }
    assert!(count > 5_000, "{count}");
}

#[test]
fn answers_that_look_empty_are_complete() {
    let mut random = Rng::with_seed(2);
    for api in APIS {
        let documents = documents(api).iter().map(|body| (JSON, *body));
        let streams = streams(api).iter().map(|body| (STREAM, *body));
        let unread = [
            ("text/plain", "{\"a\":1}"),
            ("", "\u{feff} data: {}\n\n"),
            ("application/octet-stream", "\0\0"),
            ("audio/wav", "<RIFF"),
        ];
        for (media_type, body) in documents.chain(streams).chain(unread) {
            for _ in 0..DIVISIONS {
                let observer = observe(api, media_type, body.as_bytes(), &mut random);
                let is_complete = observer.observed().is_complete && !observer.lacks_answer();
                assert!(is_complete, "{api:?} {media_type:?} {body:?}");
            }
        }
    }
    for body in ["", "One two\n", "1\n00:00 --> 00:01\nOne\n"] {
        let observer = observe(Api::Audio, "text/plain", body.as_bytes(), &mut random);
        assert!(
            !observer.lacks_answer(),
            "a transcription can be a text: {body:?}"
        );
    }
}

#[test]
fn requested_usage_shows_generated_empty_texts() {
    let now = clock::now();
    let mut timings = Timings::begin(now);
    let mut observer = ResponseObserver::new(Api::Chat);
    observer.on_head(STREAM, false);
    observer.expect_answer(STREAM);
    let options = RequestOptions {
        stream: true,
        usage_injected: true,
        continuous_usage_injected: true,
        ..RequestOptions::default()
    };
    observer.remove_injected_usage(&options, None);
    for tokens in 0..3 {
        let choice = r#"{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null}"#;
        let usage =
            format!(r#"{{"prompt_tokens":9,"total_tokens":12,"completion_tokens":{tokens}}}"#);
        let event = format!("data: {{\"id\":\"c\",\"choices\":[{choice}],\"usage\":{usage}}}\n\n");
        observer.on_data(event.as_bytes(), now, &mut timings);
        assert_eq!(observer.is_answered(), tokens > 0, "{tokens}");
        let forwarded = observer.forward(Bytes::from(event));
        assert!(
            !forwarded.windows(5).any(|part| part == b"usage"),
            "{forwarded:?}"
        );
    }
}
