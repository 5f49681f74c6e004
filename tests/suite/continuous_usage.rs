//! Continuous usage: for a sample of streams, the gateway requests the token count of every event from vLLM,
//! and removes the counts from the response. From the observed tokens per event, it estimates the tokens of
//! responses without usage.

use crate::support::scripted_backend::{
    FINISH, ROLE, SGLANG, ScriptedBackend, Seen, Step, USAGE, VLLM, WHOLE_STREAM, WORD, begin,
    data, paused, stream_of,
};
use crate::support::test_gateway::{CHAT, Running, Setup, body_text, post, start_with, with_lines};
use tokenweir_gateway::backend::routes::{ModelConfig, RoutePolicy};
use tokenweir_request::access::TokenCharge;
use tokenweir_request::record::{Outcome, UsageEventOutcome, UsageSource};

const PLAIN: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;
const AT_END: &str =
    r#"{"stream_options":{"include_usage":true},"model":"tiny","stream":true,"messages":[]}"#;
const EVERY_EVENT: &str = r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"model":"tiny","stream":true,"messages":[]}"#;
async fn sampling(backends: &[&ScriptedBackend], continuous_usage: f64) -> Running {
    let addresses: Vec<_> = backends.iter().map(|fake| fake.addr).collect();
    let setup = Setup {
        injects_usage: true,
        continuous_usage,
        ..Setup::default()
    };
    start_with(&addresses, setup).await
}

/// Returns the event with the usage that vLLM adds after `tokens` generated tokens.
fn with_usage(event: &str, tokens: u64) -> String {
    let usage = format!(
        r#","usage":{{"prompt_tokens":9,"total_tokens":{},"completion_tokens":{tokens},"completion_tokens_details":{{"reasoning_tokens":0}}}}}}"#,
        9 + tokens
    );
    format!("{}{usage}", event.strip_suffix('}').unwrap())
}

fn usage_event(tokens: u64) -> String {
    USAGE.replace(
        r#""completion_tokens":3"#,
        &format!(r#""completion_tokens":{tokens}"#),
    )
}

/// Returns the events of vLLM's response to this request, with the usage that the request asks for. The
/// answer has `words` words of `tokens` tokens each.
fn answer(seen: &Seen, words: u64, tokens: u64) -> Vec<String> {
    let asks = |name: &str| String::from_utf8_lossy(&seen.body).contains(name);
    let usage = |event: &str, tokens| {
        if asks(r#""continuous_usage_stats":true"#) {
            with_usage(event, tokens)
        } else {
            event.to_owned()
        }
    };
    let mut events = vec![usage(ROLE, 0)];
    events.extend((1..=words).map(|word| usage(WORD, word * tokens)));
    events.push(usage(FINISH, words * tokens + 1));
    if asks(r#""include_usage":true"#) {
        events.push(usage_event(words * tokens + 1));
    }
    events.push("[DONE]".into());
    events
}

/// Starts a vLLM server whose events have `tokens` tokens each. If a request contains `cut`, the server
/// closes the connection before the last events of the response.
async fn vllm(words: u64, tokens: u64) -> ScriptedBackend {
    ScriptedBackend::start(move |seen| {
        let events = answer(seen, words, tokens);
        if String::from_utf8_lossy(&seen.body).contains("cut") {
            return vec![begin(&events[..=words as usize]), Step::Close];
        }
        vec![Step::Send(stream_of(&events))]
    })
    .await
}

fn last_body(fake: &ScriptedBackend) -> String {
    String::from_utf8(fake.seen().pop().unwrap().body).unwrap()
}

/// Returns the body of a response with `words` words, as it reaches a client that did not request usage.
fn without_usage(words: usize) -> String {
    let words = std::iter::repeat_n(WORD, words);
    let events = [ROLE].into_iter().chain(words).chain([FINISH, "[DONE]"]);
    events.map(data).collect()
}

#[tokio::test]
async fn token_counts_are_exact_and_streams_unchanged() {
    let done = "data: [DONE]\n\n";
    let usage_at_end = data(&usage_event(21)) + done;
    for (ask, end, usage_event) in [
        (PLAIN, done, Some(UsageEventOutcome::Stripped)),
        (AT_END, &usage_at_end, None),
    ] {
        let fake = vllm(5, 4).await;
        let gateway = sampling(&[&fake], 1.0).await;
        let expected = without_usage(5).replace(done, end);
        for (sent, counted) in [(AT_END, 0), (EVERY_EVENT, 5), (EVERY_EVENT, 5)] {
            assert_eq!(body_text(&gateway.post(CHAT, ask).await), expected);
            assert_eq!(last_body(&fake), sent);
            let record = gateway.record().await;
            let observed = &record.observed;
            assert_eq!(record.bytes_out as usize, expected.len());
            assert_eq!(observed.usage_event, usage_event);
            let source = (observed.usage_source, observed.usage.output);
            assert_eq!(source, (UsageSource::Exact, Some(21)));
            let chunks = (observed.chunk_tokens.count(), observed.chunk_tokens.sum());
            assert_eq!(chunks, (counted, f64::from(counted) * 4.0));
        }
        let page = gateway.admin("/metrics").await;
        let count = page
            .lines()
            .find(|line| line.starts_with("tokenweir_chunk_tokens_count"));
        assert!(count.is_some_and(|line| line.ends_with(" 10")), "{count:?}");
        // Also from the stream of a client that requests usage, the gateway learns how the server writes
        // usage. So it can now sample the streams of all clients.
        gateway.post(CHAT, PLAIN).await;
        assert_eq!(last_body(&fake), EVERY_EVENT);
        // If a client refuses continuous usage, the gateway does not request it.
        let refused = AT_END.replace("true}", r#"true,"continuous_usage_stats":false}"#);
        gateway.post(CHAT, &refused).await;
        assert_eq!(last_body(&fake), refused);
    }
}

#[tokio::test]
async fn servers_with_usage_everywhere_are_not_asked() {
    let null = WORD.replace("}]}", r#"}],"usage":null}"#);
    let finish = with_usage(FINISH, 1);
    let always = [
        &*with_usage(ROLE, 0),
        &with_usage(WORD, 1),
        &finish,
        &usage_event(1),
        "[DONE]",
    ];
    let stripped = Some(UsageEventOutcome::Stripped);
    let not_removed = Some(UsageEventOutcome::NotRemoved);
    for (events, kept, usage_events) in [
        (
            [ROLE, &null, FINISH, USAGE, "[DONE]"],
            &null,
            [stripped, None, stripped],
        ),
        // The gateway stops requesting usage that it did not remove.
        (always, &finish, [not_removed, None, None]),
    ] {
        let fake = ScriptedBackend::answering(stream_of(&events)).await;
        let gateway = sampling(&[&fake], 1.0).await;
        for (request, usage_event) in [PLAIN, AT_END, PLAIN].into_iter().zip(usage_events) {
            let answer = body_text(&gateway.post(CHAT, request).await);
            assert!(
                answer.contains(kept),
                "the client gets {kept} with and without the gateway"
            );
            let is_asked = request == AT_END || usage_event.is_some();
            assert_eq!(last_body(&fake), if is_asked { AT_END } else { PLAIN });
            let record = gateway.record().await;
            assert_eq!(record.observed.usage_event, usage_event, "{kept}");
            assert_eq!(record.observed.usage_source, UsageSource::Exact);
        }
    }
}

#[tokio::test]
async fn a_model_can_be_excluded_from_sampling() {
    let fake = vllm(5, 4).await;
    fake.set_models(&["tiny", "other"]);
    let policy = RoutePolicy {
        continuous_usage: Some(0.0),
        ..RoutePolicy::default()
    };
    let setup = Setup {
        injects_usage: true,
        continuous_usage: 1.0,
        models: vec![ModelConfig {
            name: "other".into(),
            policy,
            ..ModelConfig::default()
        }],
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    gateway.post(CHAT, PLAIN).await;
    gateway.record().await;
    for (model, expected) in [("tiny", EVERY_EVENT), ("other", AT_END)] {
        gateway.post(CHAT, &PLAIN.replace("tiny", model)).await;
        assert_eq!(last_body(&fake), expected.replace("tiny", model));
        gateway.record().await;
    }
}

/// The unit test of the sample proves that it has no other request ids. Here the rate of additional streams, whose
/// tokens are counted too, makes the other ids depend on the time.
#[tokio::test]
async fn the_request_id_selects_the_sample() {
    let fake = vllm(1, 4).await;
    let gateway = sampling(&[&fake], 0.5).await;
    gateway.post(CHAT, PLAIN).await;
    gateway.record().await;
    for id in [0, 4, 7, 8, 11, 13, 14, 18, 19, 20, 21, 22] {
        let header = format!("x-request-id: sample-{id}");
        gateway.raw(with_lines(&post(CHAT, PLAIN), &header)).await;
        assert!(
            gateway.record().await.options.continuous_usage_injected,
            "{header}"
        );
    }
}

/// vLLM's Rust front end divides tool calls into other events if it sends continuous usage, which would
/// change the response. The gateway recognizes this front end by its missing fingerprint.
#[tokio::test]
async fn only_pythons_front_end_is_asked_with_tools() {
    let with_tools = |body: &str| body.replacen(r#""model""#, r#""tools":[],"model""#, 1);
    for (fingerprint, expected) in [
        ("", AT_END),
        (r#","system_fingerprint":"vllm-1""#, EVERY_EVENT),
    ] {
        let fake = ScriptedBackend::start(move |seen| {
            let mut events = answer(seen, 2, 4);
            for event in events
                .iter_mut()
                .filter(|event| event.contains(r#""choices":[]"#))
            {
                *event = format!("{}{fingerprint}}}", event.strip_suffix('}').unwrap());
            }
            vec![Step::Send(stream_of(&events))]
        })
        .await;
        let gateway = sampling(&[&fake], 1.0).await;
        for (request, sent) in [
            (PLAIN.to_owned(), AT_END.to_owned()),
            (with_tools(PLAIN), with_tools(expected)),
            (PLAIN.to_owned(), EVERY_EVENT.to_owned()),
        ] {
            gateway.post(CHAT, &request).await;
            assert_eq!(last_body(&fake), sent);
            gateway.record().await;
        }
    }
}

#[tokio::test]
async fn an_events_time_is_divided_among_its_tokens() {
    let fake = ScriptedBackend::start(|seen| {
        let events = answer(seen, 2, 4);
        paused(&events[..2], &events[2..])
    })
    .await;
    let gateway = sampling(&[&fake], 1.0).await;
    // The gateway requests no continuous usage for the first stream, because it does not know the server yet.
    let mut tokens = 0;
    loop {
        let got = gateway
            .post_and_release(CHAT, PLAIN, WORD, || fake.go())
            .await;
        assert_eq!(body_text(&got), without_usage(2));
        let observed = gateway.record().await.observed;
        // On a loaded machine the client may read late. A gap that such a client causes does not count, so
        // try again.
        if observed.write_stall.is_zero() {
            assert_eq!(
                (
                    observed.inter_token_latency.count(),
                    observed.inter_chunk_latency.count()
                ),
                (tokens, 1)
            );
            if tokens > 0 {
                break;
            }
        }
        tokens = 4;
    }
}

#[tokio::test]
async fn other_streams_have_usage_at_the_end() {
    let logprobs = PLAIN.replace('{', r#"{"logprobs":true,"#);
    let cases = [
        (VLLM, 0.0, PLAIN, AT_END),
        (SGLANG, 1.0, PLAIN, AT_END),
        (VLLM, 1.0, EVERY_EVENT, EVERY_EVENT),
        (
            VLLM,
            1.0,
            &logprobs,
            &AT_END.replace("},", r#"},"logprobs":true,"#),
        ),
    ];
    for (kind, share, sent, expected) in cases {
        let answer = |_: &_| vec![Step::Send(stream_of(&WHOLE_STREAM))];
        let fake = ScriptedBackend::start_kind(kind, answer).await;
        let gateway = sampling(&[&fake], share).await;
        for request in [PLAIN, sent] {
            gateway.post(CHAT, request).await;
            assert!(!gateway.record().await.options.continuous_usage_injected);
        }
        assert_eq!(last_body(&fake), expected);
    }
}

#[tokio::test]
async fn irremovable_usage_disables_continuous_usage() {
    // The JSON of this event is split into two `data` lines, so the gateway cannot remove the usage from it.
    let odd = "{\"usage\":{\"completion_tokens\":1},\ndata: \
               \"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}";
    let fake = ScriptedBackend::start(move |seen| {
        let is_continuous = String::from_utf8_lossy(&seen.body).contains("continuous");
        let word = if is_continuous { odd } else { WORD };
        vec![Step::Send(stream_of(&[
            ROLE, word, FINISH, USAGE, "[DONE]",
        ]))]
    })
    .await;
    let gateway = sampling(&[&fake], 1.0).await;
    let expected = [WORD, odd, WORD, WORD];
    for word in expected {
        let answer = body_text(&gateway.post(CHAT, PLAIN).await);
        assert_eq!(answer, without_usage(1).replace(WORD, word));
        gateway.record().await;
    }
    gateway
        .assert_value("tokenweir_usage_events_total{result=\"not_removed\"}", 1.0)
        .await;
}

#[tokio::test]
async fn tokens_of_a_truncated_stream_are_counted() {
    let fake = vllm(70, 4).await;
    let gateway = sampling(&[&fake], 1.0).await;
    gateway.post(CHAT, PLAIN).await;
    gateway.record().await;
    gateway.post(CHAT, &PLAIN.replace("[]", r#"["cut"]"#)).await;
    let record = gateway.record().await;
    assert_eq!(record.outcome, Outcome::Truncated);
    assert_eq!(record.observed.usage_source, UsageSource::Continuous);
    assert_eq!(record.output_tokens(), Some(280));
}

#[tokio::test]
async fn truncated_streams_are_estimated_from_earlier_ones() {
    let (merging, single) = (vllm(70, 4).await, vllm(70, 1).await);
    merging.set_models(&["merging"]);
    single.set_models(&["single"]);
    let gateway = sampling(&[&merging, &single], 0.0).await;
    let post = async |model: &str, messages: &str| {
        let request = PLAIN.replace("tiny", model).replace("[]", messages);
        gateway.post(CHAT, &request).await;
        gateway.record().await
    };
    for (model, taught) in [
        ("merging", 70..=70),
        ("merging", 252..=308),
        ("single", 70..=70),
    ] {
        let record = post(model, r#"["cut"]"#).await;
        assert_eq!(record.outcome, Outcome::Truncated);
        assert_eq!(record.observed.usage_source, UsageSource::Estimated);
        let tokens = record.output_tokens().unwrap();
        assert!(taught.contains(&tokens), "{model}: {tokens}");
        assert_eq!(record.wasted_tokens().output, tokens);
        assert_eq!(TokenCharge::from_record(&record).output, tokens);
        post("merging", "[]").await;
    }
}
