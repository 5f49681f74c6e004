//! What gateways with the same key learn about each other's requests from the messages that they exchange
//! over a real Redis server. Without `redis-server`, these tests are skipped with a note.

use crate::metrics::sum;
use crate::restart::{Port, listed, model, start_backends};
use crate::support::process::{GatewayProcess, folder};
use crate::support::test_gateway::{self, CHAT, read_rest, send_to};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use tokenweir_peer_exchange::messages::ExchangeKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

pub(crate) const PASSWORD: &str = "bus-password";
/// The key that both gateways share. It has the minimum length.
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A Redis server on a loopback port, over which gateways exchange messages.
pub(crate) struct Bus {
    port: u16,
    process: Child,
}

/// Two gateway processes in front of the same backends.
struct Gateways {
    processes: [(Port, GatewayProcess); 2],
    backends: Vec<SocketAddr>,
}

/// Two gateways, and the Redis server over which they exchange messages.
struct Pair {
    bus: Bus,
    gateways: Gateways,
}

impl Bus {
    /// Starts a Redis server. `None`: `redis-server` is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        Self::start_at(port).await
    }

    async fn start_at(port: u16) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--requirepass",
            PASSWORD,
            "--port",
        ]);
        command
            .arg(port.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(process) = command.kill_on_drop(true).spawn() else {
            eprintln!("redis-server is not installed: the exchange is NOT tested");
            return None;
        };
        wait_until!(
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
        );
        Some(Self { port, process })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Restarts the server, which loses its data.
    pub(crate) async fn restart(&mut self) {
        self.process.kill().await.unwrap();
        *self = Self::start_at(self.port).await.unwrap();
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn command(&self, words: &[&str]) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
            .await
            .unwrap();
        let line = words.join(" ");
        let command = format!("AUTH {PASSWORD}\r\n{line}\r\n");
        stream.write_all(command.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        while String::from_utf8_lossy(&reply).lines().count() < 2 {
            assert!(stream.read_buf(&mut reply).await.unwrap() > 0);
        }
        let reply = String::from_utf8_lossy(&reply);
        assert!(!reply.contains('-'), "{reply}");
    }

    /// Publishes a message to the Redis channel of the gateways.
    async fn publish(&self, message: &[u8]) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
            .await
            .unwrap();
        let channel = ExchangeKey::new(KEY.as_bytes()).unwrap().channel();
        let (channel_length, length) = (channel.len(), message.len());
        let head = format!(
            "AUTH {PASSWORD}\r\n*3\r\n$7\r\nPUBLISH\r\n${channel_length}\r\n{channel}\r\n\
             ${length}\r\n"
        );
        stream
            .write_all(&[head.as_bytes(), message, b"\r\n"].concat())
            .await
            .unwrap();
        let mut response = Vec::new();
        // The second line of Redis's response has the number of subscribers.
        while String::from_utf8_lossy(&response).lines().count() < 2 {
            assert!(stream.read_buf(&mut response).await.unwrap() > 0);
        }
        assert!(
            response.starts_with(b"+OK\r\n:"),
            "{}",
            String::from_utf8_lossy(&response)
        );
    }
}

impl Pair {
    /// Starts both gateways and waits until each has received a message from the other. `None`:
    /// `redis-server` is not installed.
    async fn start(name: &str) -> Option<Self> {
        Self::start_with(name, "").await
    }

    /// Starts both gateways with additional lines of configuration.
    async fn start_with(name: &str, settings: &str) -> Option<Self> {
        let bus = Bus::start().await?;
        let exchange = format!(
            "peer_exchange:\n  url: redis://127.0.0.1:{}\n  password: {{ env: BUS_PASSWORD }}\n  \
             key: {{ env: BUS_KEY }}\n{settings}",
            bus.port
        );
        let gateways = Gateways::start(name, start_backends(4).await, &exchange).await;
        let pair = Self { bus, gateways };
        pair.until_connected().await;
        Some(pair)
    }

    async fn until_connected(&self) {
        for (_, gateway) in &self.gateways.processes {
            wait_until!(gateway.value("tokenweir_peer_gateways").await > 0.5);
        }
    }
}

impl Gateways {
    /// Starts both gateways in front of these backends. `settings` are further lines of their configuration.
    async fn start(name: &str, backends: Vec<SocketAddr>, settings: &str) -> Self {
        let start = async |number: usize| {
            let port = Port::reserve();
            let file = folder(&format!("exchange-{name}")).join(format!("gateway-{number}.yaml"));
            port.configure(&file, &(listed(&backends) + settings));
            let variables = [("BUS_PASSWORD", PASSWORD), ("BUS_KEY", KEY)];
            (port, GatewayProcess::start_with(&file, &variables).await)
        };
        let processes = [start(0).await, start(1).await];
        Self {
            processes,
            backends,
        }
    }

    /// Asserts that the second gateway sends each prompt to the backend to which the first gateway sent it.
    /// The counter `learned` of the second gateway shows that it has learned of a prompt.
    async fn assert_shared(&self, learned: &str) {
        let (_, second) = &self.processes[1];
        for number in 0..6 {
            let prompt = format!("{number} is the number of this long prompt. ").repeat(600);
            let before = second.value(learned).await;
            let chosen = self.backend_of(0, &prompt).await;
            wait_until!(second.value(learned).await > before);
            assert_eq!(self.backend_of(1, &prompt).await, chosen, "prompt {number}");
        }
    }

    /// Sends a prompt to the gateway with this number. Returns the backend that got the request.
    async fn backend_of(&self, number: usize, prompt: &str) -> SocketAddr {
        let (port, gateway) = &self.processes[number];
        let counts = async || {
            let page = gateway.get("/metrics").await;
            self.backends
                .iter()
                .map(|addr| sent_requests(&page, *addr))
                .collect::<Vec<f64>>()
        };
        let before = counts().await;
        assert!(post(port.addr, prompt).await.starts_with("HTTP/1.1 200"));
        wait_for!({
            let now = counts().await;
            let changed = now
                .iter()
                .zip(&before)
                .position(|(now, before)| now > before);
            changed.map(|position| self.backends[position])
        })
    }
}

/// Returns the number of requests that a gateway sent to a backend, from the gateway's metrics page.
fn sent_requests(page: &str, backend: SocketAddr) -> f64 {
    sum(
        page,
        "tokenweir_attempts_total",
        &[&format!("backend=\"{backend}\"")],
    )
}

async fn post(addr: SocketAddr, prompt: &str) -> String {
    let body = format!(
        r#"{{"model":"{}","max_tokens":2,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#,
        model()
    );
    let connection = send_to(addr, test_gateway::post(CHAT, &body)).await;
    String::from_utf8(read_rest(connection).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_follows_the_prompts_of_its_peer() {
    let Some(Pair {
        gateways,
        bus: _bus,
    }) = Pair::start("same").await
    else {
        return;
    };
    gateways
        .assert_shared("tokenweir_peer_decisions_total{result=\"received\"}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_at_the_other_gateway() {
    let settings = "sessions: { enabled: true }\n";
    let Some(pair) = Pair::start_with("sessions", settings).await else {
        return;
    };
    let [(first, _), (second, gateway)] = &pair.gateways.processes;
    post(second.addr, &"a prompt of its own. ".repeat(100)).await;
    let prompt = "the first turn of a session. ".repeat(100);
    post(first.addr, &prompt).await;
    wait_until!(gateway.value("tokenweir_live_sessions").await > 1.5);
    post(second.addr, &(prompt + "and the second turn")).await;
    let passed = "tokenweir_session_turns_total{reason=\"live_session\"}";
    wait_until!(gateway.value(passed).await > 0.5);
    assert!(gateway.value("tokenweir_live_sessions").await < 2.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_served_while_redis_is_down() {
    let Some(mut pair) = Pair::start("away").await else {
        return;
    };
    pair.bus.process.kill().await.unwrap();
    for (port, gateway) in &pair.gateways.processes {
        wait_until!(gateway.value("tokenweir_peer_exchange_connected").await < 0.5);
        assert!(
            post(port.addr, "a prompt")
                .await
                .starts_with("HTTP/1.1 200")
        );
        let dropped = "tokenweir_peer_decisions_total{result=\"dropped\"}";
        wait_until!(gateway.value(dropped).await > 0.5);
        let status: Value = gateway.document("/status").await;
        assert!(status["peer_exchange"]["error"].is_string(), "{status}");
    }
    pair.bus = Bus::start_at(pair.bus.port).await.unwrap();
    for (_, gateway) in &pair.gateways.processes {
        wait_until!(gateway.value("tokenweir_peer_exchange_connected").await > 0.5);
    }
    pair.until_connected().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_messages_change_nothing() {
    let Some(pair) = Pair::start("hostile").await else {
        return;
    };
    let (_, gateway) = &pair.gateways.processes[0];
    let head = [&b"twpx\x01"[..], &[7; 24]].concat();
    let messages: [(&str, Vec<u8>); 5] = [
        ("malformed", b"hello".to_vec()),
        ("malformed", vec![0; 100_000]),
        ("malformed", [&head[..], &vec![0; 300_000]].concat()),
        ("version", [&b"twpx\x09"[..], &[7; 60]].concat()),
        ("authentication", [&head[..], &[0; 64]].concat()),
    ];
    for (result, message) in messages {
        let series = format!("tokenweir_peer_messages_total{{result=\"{result}\"}}");
        let before = gateway.value(&series).await;
        pair.bus.publish(&message).await;
        wait_until!(gateway.value(&series).await > before);
    }
    assert!((gateway.value("tokenweir_peer_gateways").await - 1.0).abs() < 0.5);
    assert!((gateway.value("tokenweir_peer_exchange_connected").await - 1.0).abs() < 0.5);
}
