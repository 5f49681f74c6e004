//! Admission in front of simulated engines. Under bursts of requests and mass disconnects, the gateway loses
//! no request and keeps no state.

use super::{CHAT, assert_no_state_left, header};
use crate::restart::start_simulator;
use crate::support::test_gateway::{
    Setup, admission_settings, post, read_until, start_with, status,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_request::record::Outcome;
use tokenweir_sim::SimulatorSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A chat request for which a simulated engine generates this many tokens.
fn chat(tokens: usize) -> String {
    let body = format!(
        r#"{{"model":"sim","stream":true,"max_tokens":{tokens},"ignore_eos":true,"messages":[{{"role":"user","content":"go on"}}]}}"#
    );
    post(CHAT, &body)
}

/// Two small simulated engines. Each runs four sequences and has a cache of 1,024 tokens.
async fn engines() -> Vec<SocketAddr> {
    start_simulator(SimulatorSettings {
        backends: 2,
        models: vec!["sim".to_owned()],
        max_num_seqs: 4,
        blocks: 64,
        block_size: 16,
        ..SimulatorSettings::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_of_500_clients_is_served_completely_by_two_small_engines() {
    let gateway = start_with(&engines().await, Setup::default()).await;
    let ask = chat(4);
    let burst = (0..500).map(|_| gateway.raw(&ask));
    for answer in futures_util::future::join_all(burst).await {
        assert_eq!(status(&answer), 200);
        assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"));
    }
    let mut waited = 0;
    for _ in 0..500 {
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.observed.usage.output), (Outcome::Ok, None));
        waited += usize::from(record.gateway_queue_wait().is_some());
    }
    assert!(waited > 300, "{waited} have waited");
    assert_no_state_left(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mass_disconnects_and_sheds_leave_no_state_behind() {
    let room = AdmissionConfig {
        queue_capacity: 50,
        max_wait: Duration::from_millis(300),
        ..AdmissionConfig::default()
    };
    let setup = Setup { admission: Some(admission_settings(&room)), ..Setup::default() };
    let gateway = start_with(&engines().await, setup).await;
    let ask = chat(20);
    let storm = (0..200).map(|number| {
        let (gateway, ask) = (&gateway, &ask);
        async move {
            // When the gateway sends `100 Continue`, it has read the headers, so there is a record from then
            // on. Every other client disconnects, some while they wait in the queue, some during the
            // response.
            let (head, body) = ask.split_once("\r\n\r\n").unwrap();
            let head = format!("{head}\r\nexpect: 100-continue\r\n\r\n");
            let mut client = gateway.send(head).await;
            let mut answer = read_until(&mut client, "\r\n\r\n").await;
            assert_eq!(status(&answer), 100);
            answer.clear();
            client.write_all(body.as_bytes()).await.unwrap();
            let patience = Duration::from_millis(if number % 2 == 0 { number } else { 60_000 });
            let whole = tokio::time::timeout(patience, client.read_to_end(&mut answer)).await;
            (whole.is_ok().then(|| status(&answer)), header(&answer, "x-gateway-error"))
        }
    });
    for (status, reason) in futures_util::future::join_all(storm).await {
        let is_lawful = match status {
            None => true,
            Some(200) => reason.is_none(),
            Some(429) => matches!(reason.as_deref(), Some("saturated" | "queue_timeout")),
            Some(_) => false,
        };
        assert!(is_lawful, "{status:?} {reason:?}");
    }
    for _ in 0..200 {
        let outcome = gateway.record().await.outcome;
        let is_lawful = matches!(outcome, Outcome::Ok | Outcome::Cancelled | Outcome::Rejected);
        assert!(is_lawful, "{outcome:?}");
    }
    assert_no_state_left(&gateway).await;
}
