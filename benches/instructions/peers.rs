//! The clients and the backend of the measured gateway. They take turns: the backend sends the next group of
//! events of a stream only when the client has received all events before. So the gateway wakes up once for
//! each group, and every run is the same.

use super::{engine, work};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::spawn_local;

/// The recorded stream that the backend sends.
const RECORDED_STREAM: &str = "python/chat-stream-long.http";
const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 1.0\nvllm:num_requests_waiting{engine=\"0\"} 0.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000000\"} 1.0\n";

/// The state that the clients and the backend share.
pub(crate) struct Peers {
    /// The HTTP chunks of the recorded stream. Each has one event.
    events: Vec<Vec<u8>>,
    /// The client notifies the backend when it has received all events that were sent.
    taken: Notify,
}

/// A connection to the gateway, or directly to the backend.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Peers {
    pub(crate) fn new() -> Rc<Self> {
        // The first event is omitted. It has no output, so the gateway buffers it until the next event, for
        // which the backend would wait forever.
        let events = work::chunks(RECORDED_STREAM).split_off(1);
        Rc::new(Self {
            events,
            taken: Notify::new(),
        })
    }

    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    pub(crate) async fn start(self: &Rc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let peers = self.clone();
        spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let peers = peers.clone();
                // Ignores errors: the gateway may close a connection.
                spawn_local(async move { drop(peers.converse(stream).await) });
            }
        });
        address
    }

    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut request = Vec::with_capacity(1 << 12);
        loop {
            request.clear();
            while !is_whole(&request) {
                if stream.read_buf(&mut request).await? == 0 {
                    return Ok(());
                }
            }
            let find = |what: &str| memchr::memmem::find(&request, what.as_bytes());
            if let Some(at) = find("\"together\":") {
                let digit = request[at + "\"together\":".len()];
                self.play(&mut stream, 1 << (digit - b'0')).await?;
                continue;
            }
            let path = request
                .split(|byte| *byte == b' ')
                .nth(1)
                .unwrap_or_default();
            let page = engine::page(&String::from_utf8_lossy(path), "tiny", METRICS);
            let answer = page.unwrap_or_else(|| engine::whole(engine::CHAT));
            stream.write_all(answer.as_bytes()).await?;
        }
    }

    /// Sends the stream in groups of `together` events. Before each group, waits until the client has
    /// received the group before.
    async fn play(&self, stream: &mut TcpStream, together: usize) -> io::Result<()> {
        stream.write_all(engine::STREAM_HEAD.as_bytes()).await?;
        let mut bytes = Vec::with_capacity(1 << 12);
        for events in self.events.chunks(together) {
            bytes.clear();
            for event in events {
                bytes.extend_from_slice(format!("{:x}\r\n", event.len()).as_bytes());
                bytes.extend_from_slice(event);
                bytes.extend_from_slice(b"\r\n");
            }
            stream.write_all(&bytes).await?;
            self.taken.notified().await;
        }
        stream.write_all(b"0\r\n\r\n").await
    }
}

/// Whether the whole request has arrived: a request ends with a closing bracket only if it has its whole
/// body.
fn is_whole(request: &[u8]) -> bool {
    let end: &[u8] = if request.starts_with(b"POST") {
        b"]}"
    } else {
        b"\r\n\r\n"
    };
    request.ends_with(end)
}

fn post(fields: &str) -> String {
    engine::post(&format!(
        "{{\"model\":\"tiny\",{fields}\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}"
    ))
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(1 << 14),
        })
    }

    /// Sends `count` small requests one after the other and reads the responses.
    pub(crate) async fn requests(&mut self, count: usize) {
        let request = post("");
        for _ in 0..count {
            self.stream.write_all(request.as_bytes()).await.unwrap();
            self.buffer.clear();
            while !self.buffer.ends_with(b"\"total_tokens\":12}}") {
                self.read().await;
            }
        }
    }

    /// Requests a stream in groups of 2 to the power of `together` events, and reads the response to its end.
    pub(crate) async fn stream(&mut self, peers: &Peers, together: u32) {
        let request = post(&format!("\"stream\":true,\"together\":{together},"));
        self.stream.write_all(request.as_bytes()).await.unwrap();
        for events in peers.events.chunks(1 << together) {
            self.buffer.clear();
            while memchr::memmem::find_iter(&self.buffer, b"\n\n").count() < events.len() {
                self.read().await;
            }
            peers.taken.notify_one();
        }
        while !self.buffer.ends_with(b"0\r\n\r\n") {
            self.read().await;
        }
    }

    async fn read(&mut self) {
        assert!(
            self.stream.read_buf(&mut self.buffer).await.unwrap() > 0,
            "a truncated response"
        );
    }
}
