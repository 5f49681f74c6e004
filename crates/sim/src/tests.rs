//! Tests of the whole simulator over real sockets. No test sleeps: every wait is for an event.

use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::zmtp::{Connection, SocketType, ZmqEndpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// A simulator with one backend, which runs until the end of the test.
struct RunningSimulator {
    addr: SocketAddr,
    backend: Arc<SimulatedBackend>,
}

async fn start(settings: SimulatorSettings) -> RunningSimulator {
    let listen = ([127, 0, 0, 1], 0).into();
    let sim = Simulator::bind(&SimulatorSettings {
        listen,
        backends: 1,
        ..settings
    })
    .await
    .expect("bound");
    let addr = sim.addrs()[0];
    let backend = sim.backend(0).expect("a backend");
    tokio::spawn(sim.run(std::future::pending()));
    RunningSimulator { addr, backend }
}

fn fast() -> SimulatorSettings {
    SimulatorSettings {
        time_scale: PositiveNumber::new(1000.0).expect("in range"),
        ..SimulatorSettings::default()
    }
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\nx-request-id: r-1\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n")
}

async fn send(addr: SocketAddr, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(addr).await.expect("connected");
    socket.write_all(request.as_bytes()).await.expect("written");
    socket
}

async fn exchange(addr: SocketAddr, request: &str) -> String {
    let mut reply = String::new();
    send(addr, request)
        .await
        .read_to_string(&mut reply)
        .await
        .expect("read");
    reply
}

#[tokio::test]
async fn a_stream_has_one_chunk_per_event() {
    let sim = start(fast()).await;
    let body = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true}"#;
    let reply = exchange(sim.addr, &post("/v1/chat/completions", body)).await;
    let (head, events) = reply.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"));
    for header in [
        "content-type: text/event-stream; charset=utf-8",
        "server: uvicorn",
    ] {
        assert!(head.contains(header), "{header} is not in {head}");
    }
    assert!(events.contains(r#"{"id":"chatcmpl-r-1","#));
    assert!(events.ends_with("E\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"));
    assert_eq!(
        events.matches("data: ").count(),
        events.matches("\n\n\r\n").count()
    );
    let stats = sim.backend.until(|stats| stats.finished == 1).await;
    assert_eq!(
        (
            stats.aborts,
            stats.load.generation_tokens,
            stats.load.running
        ),
        (0, 3, 0)
    );
}

#[tokio::test]
async fn a_disconnect_aborts_its_sequences() {
    for (is_stream, sequences) in [(true, 2), (false, 1)] {
        let sim = start(SimulatorSettings::default()).await;
        let body =
            format!(r#"{{"prompt":"hi","max_tokens":8000,"stream":{is_stream},"n":{sequences}}}"#);
        let mut socket = send(sim.addr, &post("/v1/completions", &body)).await;
        if is_stream {
            socket.read_u8().await.expect("the answer begins");
        }
        sim.backend
            .until(|stats| stats.load.running == sequences && stats.load.kv_usage > 0.0)
            .await;
        drop(socket);
        let stats = sim.backend.until(|stats| stats.aborts == 1).await;
        assert_eq!(
            (stats.load.running, stats.load.waiting, stats.load.kv_usage),
            (0, 0, 0.0)
        );
    }
}

#[tokio::test]
async fn a_second_turn_finds_the_first_cached() {
    let sim = start(fast()).await;
    let question = "How does a prefix cache work? ".repeat(8);
    let first =
        format!(r#"{{"messages":[{{"role":"user","content":"{question}"}}],"max_tokens":64}}"#);
    let reply = exchange(sim.addr, &post("/v1/chat/completions", &first)).await;
    let body = reply
        .split_once("\r\n\r\n")
        .map(|(_, body)| body)
        .expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let answer = &body["choices"][0]["message"]["content"];
    let second = format!(
        r#"{{"messages":[{{"role":"user","content":"{question}"}},{{"role":"assistant","content":{answer}}},
            {{"role":"user","content":"And then?"}}],"max_tokens":1}}"#
    );
    let reply = exchange(sim.addr, &post("/v1/chat/completions", &second)).await;
    let prompt = body["usage"]["total_tokens"].as_u64().expect("a number");
    let cached = (prompt - 1) / 16 * 16;
    assert!(
        reply.contains(&format!(r#""cached_tokens":{cached},"#)),
        "{cached} of {prompt}: {reply}"
    );
}

#[tokio::test]
async fn unknown_paths_get_the_errors_of_vllm() {
    let sim = start(fast()).await;
    let unknown = exchange(sim.addr, &get("/v1/nothing")).await;
    assert!(unknown.starts_with("HTTP/1.1 404 ") && unknown.ends_with(r#"{"detail":"Not Found"}"#));
    let method = exchange(sim.addr, &get("/v1/completions")).await;
    assert!(method.starts_with("HTTP/1.1 405 ") && method.contains("allow: POST\r\n"));
    assert!(
        exchange(sim.addr, &get("/health"))
            .await
            .contains("content-length: 0\r\n")
    );
    let metrics = exchange(sim.addr, &get("/metrics")).await;
    assert!(
        metrics.contains("vllm:num_requests_running{engine=\"0\",model_name=\"sim-model\"} 0.0")
    );
}

#[tokio::test]
async fn the_bind_error_names_the_address() {
    let sim = start(fast()).await;
    let settings = SimulatorSettings {
        listen: sim.addr,
        backends: 1,
        ..SimulatorSettings::default()
    };
    let error = Simulator::bind(&settings).await.expect_err("taken");
    assert_eq!(
        error.to_string(),
        format!("backend 0 cannot listen on {}", sim.addr)
    );
}

#[tokio::test]
async fn a_hanging_backend_accepts_connections_and_sends_nothing() {
    let faults = SimulatedFaults {
        hang_after: Some(std::time::Duration::ZERO.into()),
        ..SimulatedFaults::default()
    };
    let sim = start(SimulatorSettings { faults, ..fast() }).await;
    let mut socket = send(sim.addr, &get("/health")).await;
    let byte = socket.read_u8();
    assert!(
        tokio::time::timeout(std::time::Duration::from_millis(50), byte)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_failed_backend_refuses_connections() {
    let faults = SimulatedFaults {
        fail_after: Some(std::time::Duration::ZERO.into()),
        ..SimulatedFaults::default()
    };
    let sim = start(SimulatorSettings { faults, ..fast() }).await;
    while TcpStream::connect(sim.addr).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn requests_above_the_kv_cache_are_rejected() {
    let sim = start(SimulatorSettings {
        blocks: 2,
        max_len: 9_000,
        ..fast()
    })
    .await;
    let body = format!(r#"{{"prompt":"{}","max_tokens":500}}"#, "word ".repeat(400));
    let reply = exchange(sim.addr, &post("/v1/completions", &body)).await;
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    let stats = sim.backend.stats();
    assert_eq!((stats.requests, stats.aborts, stats.finished), (0, 0, 0));
}

/// Parses the payload of a KV event message. Returns each event as text: its kind and some of its
/// fields.
fn described(payload: &[u8]) -> Vec<String> {
    let batch = EventBatch::parse(payload).expect("a batch");
    let describe = |event: Result<KvEvent<'_>, _>| match event.expect("an event") {
        KvEvent::Stored(stored) => format!(
            "{} blocks of {} tokens, {:?}, after {:?}",
            stored.block_hashes.iter().count(),
            stored.block_size,
            stored.session_id,
            stored.parent.map(|_| "a block"),
        ),
        KvEvent::Removed(removed) => format!("{} removed", removed.block_hashes.iter().count()),
        other => format!("{other:?}"),
    };
    batch.map(describe).collect()
}

#[tokio::test]
async fn kv_events_have_the_requests_session_id() {
    let settings = SimulatorSettings {
        kv_events_port: Some(0),
        blocks: 8,
        ..fast()
    };
    let sim = start(settings).await;
    let sources = exchange(sim.addr, &get("/kv_event_sources")).await;
    let port = sources
        .split(r#""endpoint":"tcp://*:"#)
        .nth(1)
        .expect("an endpoint");
    let port = port
        .split('"')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    let endpoint = ZmqEndpoint {
        host: "127.0.0.1".into(),
        port,
    };
    let mut events = Connection::open(&endpoint, SocketType::Sub)
        .await
        .expect("connected");
    events.subscribe("").await.expect("subscribed");
    events.ping().await.expect("sent");
    assert_eq!(events.receive().await.expect("an answer"), None);

    let ask = |prompt: char, session: &str| {
        let prompt = prompt.to_string().repeat(4 * 40);
        let body = format!(r#"{{"prompt":"{prompt}","max_tokens":9}}"#);
        let header = format!("\r\nx-session-id: {session}\r\n");
        post("/v1/completions", &body).replacen("\r\n", &header, 1)
    };
    let mut next = async || {
        let parts = events
            .receive()
            .await
            .expect("received")
            .expect("a message");
        described(&parts[2])
    };
    // The prompt of 40 tokens fills two blocks, and the output fills the third one.
    exchange(sim.addr, &ask('a', "one")).await;
    assert_eq!(
        next().await,
        [r#"2 blocks of 16 tokens, Some("one"), after None"#]
    );
    assert_eq!(
        next().await,
        [r#"1 blocks of 16 tokens, Some("one"), after Some("a block")"#]
    );
    exchange(sim.addr, &ask('b', "two")).await;
    assert_eq!(next().await.len(), 1);
    assert_eq!(next().await.len(), 1);
    // Of eight blocks, two were never used.
    exchange(sim.addr, &ask('c', "three")).await;
    assert_eq!(
        next().await,
        [
            "1 removed",
            r#"2 blocks of 16 tokens, Some("three"), after None"#
        ],
        "vLLM announces the evicted blocks first"
    );
    next().await;

    let reset = post("/reset_prefix_cache", "");
    assert!(
        exchange(sim.addr, &reset)
            .await
            .ends_with(r#"{"success":true}"#)
    );
    exchange(sim.addr, &ask('a', "four")).await;
    assert_eq!(
        next().await,
        [
            "AllCleared",
            r#"2 blocks of 16 tokens, Some("four"), after None"#
        ],
        "as from vLLM, the reset is published with the next step"
    );
}

#[tokio::test]
async fn without_a_port_no_kv_events_are_published() {
    let sim = start(fast()).await;
    assert!(
        exchange(sim.addr, &get("/kv_event_sources"))
            .await
            .ends_with("\r\n\r\n{}")
    );
    let reset = exchange(sim.addr, &post("/reset_prefix_cache", "")).await;
    assert!(reset.starts_with("HTTP/1.1 404"), "{reset}");
}
