//! The gateway in front of simulated backends, which behave like real engines but need no GPU.

use crate::support::http2_client;
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::CHAT;
use tokenweir_request::record::Outcome;

const LONG: &str = r#"{"model":"sim-model","stream":true,"max_tokens":1000,"ignore_eos":true,"messages":[{"role":"user","content":"go on"}]}"#;

#[tokio::test]
async fn recorded_tokens_equal_the_engines() {
    let fleet = Fleet::start(2).await;
    let asks = [
        (
            CHAT,
            r#"{"model":"sim-model","stream":true,"max_tokens":20,"ignore_eos":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            CHAT,
            r#"{"model":"sim-model","max_tokens":20,"ignore_eos":true,"messages":[{"role":"user","content":"a"}]}"#,
        ),
        (
            "/v1/completions",
            r#"{"model":"sim-model","prompt":"a","max_tokens":20,"ignore_eos":true}"#,
        ),
        (
            "/v1/responses",
            r#"{"model":"sim-model","input":"a","stream":true,"max_output_tokens":20,"ignore_eos":true}"#,
        ),
        (
            "/v1/messages",
            r#"{"model":"sim-model","stream":true,"max_tokens":20,"ignore_eos":true,"messages":[{"role":"user","content":"a"}]}"#,
        ),
    ];
    let mut generated = 0;
    for (path, ask) in asks {
        fleet.gateway.post(path, ask).await;
        let record = fleet.gateway.record().await;
        assert_eq!(record.outcome, Outcome::Ok, "{path}");
        assert_eq!(record.observed.usage.output, Some(20), "{path}");
        assert_eq!(record.observed.finish_reasons.len(), 1, "{path}");
        generated += 20;
    }
    let metrics = fleet.sum(|load| load.generation_tokens);
    assert!((metrics - f64::from(generated)).abs() < 1e-9, "{metrics}");
}

#[tokio::test]
async fn concurrent_http2_requests_get_complete_streams() {
    let fleet = Fleet::start(2).await;
    let sender = http2_client::handshake(fleet.gateway.connect().await).await;
    let answers = (0..8).map(|number| {
        let mut sender = sender.clone();
        async move {
            let body = LONG.replace("1000", &format!("{}", 5 + number));
            http2_client::whole(http2_client::post(&mut sender, CHAT, &body).await).await
        }
    });
    for (status, body) in futures_util::future::join_all(answers).await {
        assert_eq!((status, body.ends_with(b"data: [DONE]\n\n")), (200, true));
        assert_eq!(fleet.gateway.record().await.outcome, Outcome::Ok);
    }
}
