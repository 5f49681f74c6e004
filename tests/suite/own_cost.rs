//! The gateway measures its own cost: the time that a stream chunk spends in the gateway (its transit time),
//! the scheduling delay of its tasks, and the CPU time of telemetry.

use crate::metrics::value;
use crate::support::http2_client;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, begin, chunk, json,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, gateway_answering, read_rest, read_until, start,
};

/// Starts a backend that pauses twice in a stream, before its second and before its last write. Each pause
/// lasts until the test releases the backend.
async fn pausing_backend() -> ScriptedBackend {
    ScriptedBackend::following([
        begin(&[ROLE, WORD]),
        Step::Wait,
        Step::Send(chunk(WORD)),
        Step::Wait,
        Step::Send([chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat()),
    ])
    .await
}

#[tokio::test]
async fn the_transit_of_each_chunk_is_measured() {
    let fake = pausing_backend().await;
    let gateway = start(&[fake.addr]).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    for _ in 0..2 {
        read_until(&mut client, WORD).await;
        fake.go();
    }
    read_rest(client).await;
    let transit = gateway.record().await.observed.chunk_transit.clone();
    assert_eq!(transit.count(), 2, "{transit:?}");
    assert!(transit.sum() > 0.0, "{transit:?}");
    gateway
        .assert_value("tokenweir_chunk_transit_seconds_count", 2.0)
        .await;
}

#[tokio::test]
async fn whole_responses_and_http2_have_no_transit() {
    let (_fake, gateway) = gateway_answering(json("200 OK", r#"{"id":"a","choices":[]}"#)).await;
    gateway.post(CHAT, r#"{"model":"tiny"}"#).await;
    assert_eq!(gateway.record().await.observed.chunk_transit.count(), 0);
    let fake = pausing_backend().await;
    let gateway = start(&[fake.addr]).await;
    fake.go();
    fake.go();
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    http2_client::whole(http2_client::post(&mut sender, CHAT, ASK_STREAM).await).await;
    assert_eq!(gateway.record().await.observed.chunk_transit.count(), 0);
}

#[tokio::test]
async fn the_page_has_delay_and_cpu_time() {
    let (_fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    gateway.admin("/metrics").await;
    let page = gateway.admin("/metrics").await;
    assert!(value(&page, "tokenweir_scheduling_delay_seconds_count") > 0.0);
    let cpu = value(
        &page,
        r#"tokenweir_telemetry_cpu_seconds_total{part="metrics_page"}"#,
    );
    assert!(!cfg!(target_os = "linux") || cpu > 0.0);
}
