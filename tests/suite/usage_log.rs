//! The usage log of the real program: each request has one record even if the process is killed, and a receiver
//! that was unreachable still gets every event.

use crate::metrics::sum;
use crate::restart::{Port, listed, model, start_backends};
use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{ScriptedBackend, Step, json};
use crate::support::test_gateway::{CHAT, operate, post, with_lines};
use fastrand::Rng;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Output tokens of each request.
const TOKENS: u64 = 12;
const CLIENTS: usize = 4;
/// Time for which a response must have been complete before the process was killed, so that its request must
/// have a record.
const SURELY_WRITTEN: Duration = Duration::from_millis(500);

/// Clients that send requests, and the results that they observed.
struct Clients {
    tasks: JoinSet<()>,
    state: Arc<ClientState>,
}

#[derive(Default)]
struct ClientState {
    /// The ids of all requests, each with the time of its complete response.
    requests: Mutex<BTreeMap<String, Option<Instant>>>,
    is_over: AtomicBool,
    /// Number of pieces of responses that arrived.
    pieces: watch::Sender<u64>,
    /// Whether a gateway runs.
    is_up: watch::Sender<bool>,
}

impl Clients {
    fn start(gateway: SocketAddr) -> Self {
        let state = Arc::<ClientState>::default();
        state.is_up.send_replace(true);
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let state = state.clone();
            tasks.spawn(async move {
                for number in 0.. {
                    state
                        .is_up
                        .subscribe()
                        .wait_for(|is_up| *is_up)
                        .await
                        .unwrap();
                    if state.is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let id = format!("c{client}-{number}");
                    state.requests.lock().unwrap().insert(id.clone(), None);
                    let on_piece = || state.pieces.send_modify(|pieces| *pieces += 1);
                    if is_complete(gateway, &id, on_piece).await {
                        state
                            .requests
                            .lock()
                            .unwrap()
                            .insert(id, Some(clock::now()));
                    }
                }
            });
        }
        Self { tasks, state }
    }

    /// Waits until `count` more pieces of responses have arrived.
    async fn go_on(&self, count: u64) {
        let mut pieces = self.state.pieces.subscribe();
        let goal = *pieces.borrow() + count;
        pieces.wait_for(|pieces| *pieces >= goal).await.unwrap();
    }

    async fn end(mut self) -> BTreeMap<String, Option<Instant>> {
        self.state.is_over.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.unwrap();
        }
        std::mem::take(&mut *self.state.requests.lock().unwrap())
    }
}

/// Sends a request. Calls `on_piece` for each piece of its response. Returns whether the response is complete.
async fn is_complete(gateway: SocketAddr, id: &str, on_piece: impl Fn()) -> bool {
    let body = format!(
        r#"{{"model":"{}","stream":true,"max_tokens":{TOKENS},"ignore_eos":true,"messages":[{{"role":"user","content":"hi"}}]}}"#,
        model()
    );
    let request = with_lines(&post(CHAT, &body), &format!("x-request-id: {id}"));
    let Ok(mut stream) = tokio::net::TcpStream::connect(gateway).await else {
        return false;
    };
    let sent = tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await;
    let mut response = Vec::new();
    while stream
        .read_buf(&mut response)
        .await
        .is_ok_and(|length| length > 0)
    {
        on_piece();
    }
    sent.is_ok() && response.ends_with(b"0\r\n\r\n")
}

/// Writes the configuration of a gateway with a usage log, and returns the file of the log.
fn configure(name: &str, port: &Port, backends: &[SocketAddr], more: &str) -> (PathBuf, PathBuf) {
    let folder = folder(name);
    let log = folder.join("usage.jsonl");
    let config = folder.join("gateway.yaml");
    let text = format!(
        "usage_log: {{ file: '{}'{more} }}\n{}",
        log.display(),
        listed(backends)
    );
    port.configure(&config, &text);
    (config, log)
}

fn read_events(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn is_of(kind: &'static str) -> impl Fn(&&Value) -> bool {
    move |event| event["type"] == kind
}

fn assert_numbered(events: &[Value]) {
    let ids: BTreeSet<&str> = events
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), events.len(), "no id occurs twice");
    for (number, event) in (1_u64..).zip(events) {
        assert_eq!(event["data"]["sequence"], number);
    }
}

async fn engine_counter(backends: &[SocketAddr], name: &str) -> u64 {
    let mut total = 0.0;
    for backend in backends {
        let page = operate(*backend, "GET", "/metrics", "").await;
        total += sum(std::str::from_utf8(&page).unwrap(), name, &[]);
    }
    total as u64
}

/// Kills the process at random points under load, 30 times. `POINTS=1000` kills it more often.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_loses_only_open_requests() {
    let points: usize = std::env::var("POINTS").map_or(30, |points| points.parse().unwrap());
    let (port, backends) = (Port::reserve(), start_backends(2).await);
    let (config, log) = configure("usage-killed", &port, &backends, "");
    let mut gateway = GatewayProcess::start(&config).await;
    let clients = Clients::start(port.addr);
    let mut rng = Rng::with_seed(66);
    let mut kills = Vec::new();
    for _ in 0..points {
        clients.go_on(rng.u64(1..600)).await;
        clients.state.is_up.send_replace(false);
        gateway.signal("KILL").await;
        gateway.ended().await;
        kills.push(clock::now());
        gateway = GatewayProcess::start(&config).await;
        clients.state.is_up.send_replace(true);
    }
    clients.go_on(100).await;
    let requests = clients.end().await;
    let gaps = gateway
        .value("tokenweir_usage_gaps_total{cause=\"unclean_stop\"}")
        .await;
    gateway.signal("TERM").await;
    assert!(gateway.ended().await.success());
    wait_until!(engine_counter(&backends, "vllm:num_requests_running").await == 0);
    let events = read_events(&log);
    assert_numbered(&events);
    assert_eq!(events.last().unwrap()["type"], "tokenweir.usage.stop");
    let gap_events = events.iter().filter(is_of("tokenweir.usage.gap")).count();
    assert_eq!(
        (gap_events, gaps as usize),
        (points, 1),
        "each kill left a gap"
    );
    let records: BTreeMap<&str, &Value> = events
        .iter()
        .filter(is_of("tokenweir.usage"))
        .map(|event| {
            (
                event["data"]["request_id"].as_str().unwrap(),
                &event["data"],
            )
        })
        .collect();
    assert_eq!(
        records.len() + gap_events + 1,
        events.len(),
        "each request has one record"
    );
    let mut missing = 0;
    let mut latest = Vec::new();
    for (id, completed) in &requests {
        if records.contains_key(id.as_str()) {
            continue;
        }
        missing += 1;
        let Some(completed) = completed else { continue };
        let kill = kills
            .iter()
            .find(|kill| *kill >= completed)
            .expect("a record");
        latest.push(*kill - *completed);
    }
    let total = |name: &str| {
        records
            .values()
            .map(|data| data[name].as_u64().unwrap())
            .sum::<u64>()
    };
    let prompts = engine_counter(&backends, "vllm:prompt_tokens_total").await;
    let prompt = prompts / (records.len() as u64 + missing);
    let lost_prompts = prompts - total("input_tokens");
    assert!(
        lost_prompts <= missing * (prompt + 1),
        "{lost_prompts} tokens of {missing} requests"
    );
    let outputs = engine_counter(&backends, "vllm:generation_tokens_total").await;
    let lost_outputs = outputs - total("output_tokens");
    assert!(
        lost_outputs <= missing * TOKENS,
        "{lost_outputs} tokens of {missing} requests"
    );
    let sent = requests.len();
    eprintln!(
        "{sent} requests, {points} kills, {missing} without a record, complete before: {latest:?}"
    );
    assert!(latest.iter().all(|before| *before < SURELY_WRITTEN));
    assert!(missing as usize <= points * CLIENTS * 2, "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_receiver_later_gets_each_event() {
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let receiver = ScriptedBackend::start(move |_| {
        let is_away = away.load(Ordering::Relaxed);
        let status = if is_away {
            "503 Service Unavailable"
        } else {
            "204 No Content"
        };
        vec![Step::Send(json(status, ""))]
    })
    .await;
    let (port, backends) = (Port::reserve(), start_backends(1).await);
    let push = format!(
        ", push: {{ url: 'http://{}/events', token: {{ env: TOKEN }} }}",
        receiver.addr
    );
    let (config, log) = configure("usage-push", &port, &backends, &push);
    let start = async || GatewayProcess::start_with(&config, &[("TOKEN", "abc")]).await;
    let mut gateway = start().await;
    for number in 0..5 {
        assert!(is_complete(port.addr, &format!("a{number}"), || ()).await);
    }
    let waiting = "tokenweir_usage_unacknowledged_events";
    wait_until!(gateway.value(waiting).await as u64 == 5);
    receiver.until_received(1).await;
    let status = gateway.get("/status").await;
    assert!(
        status.contains("it responded with status 503") && !status.contains("/events"),
        "{status}"
    );
    gateway.signal("KILL").await;
    gateway.ended().await;
    let refused = receiver.take_received().len();
    is_away.store(false, Ordering::Relaxed);
    let mut gateway = start().await;
    assert!(is_complete(port.addr, "b0", || ()).await);
    wait_until!(read_events(&log).len() == 7 && gateway.value(waiting).await as u64 == 0);
    gateway.signal("TERM").await;
    assert!(gateway.ended().await.success());
    let mut got = Vec::new();
    for request in receiver.take_received() {
        let head = request.head.to_ascii_lowercase();
        assert!(head.starts_with("post /events "), "{head}");
        assert!(
            head.contains("content-type: application/cloudevents-batch+json\r\n"),
            "{head}"
        );
        assert!(head.contains("authorization: bearer abc\r\n"), "{head}");
        let events: Vec<Value> = serde_json::from_slice(&request.body).unwrap();
        got.extend(events);
    }
    assert_eq!(got, read_events(&log), "after {refused} refused requests");
    assert_eq!(got.last().unwrap()["type"], "tokenweir.usage.stop");
    assert_numbered(&got);
    assert_eq!(got[5]["data"]["cause"], "unclean_stop");
    assert!(
        !fs::read_to_string(&log).unwrap().contains("\"hi\""),
        "no text of a prompt"
    );
}
