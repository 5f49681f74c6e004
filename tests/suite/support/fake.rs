//! A scripted replica on a raw socket, so that a test controls every byte, every pause and the
//! way a connection ends. Its `/health`, `/metrics`, `/v1/models` and `/version` are those of a
//! well vLLM, or of another server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// What the replica does after it has read a request.
pub(crate) enum Step {
    /// Writes bytes.
    Send(Vec<u8>),
    /// Waits for the test to call [`Fake::go`].
    Wait,
    /// Lets others go on, so many times.
    Turns(usize),
    /// Waits until the gateway closes the connection, and tells the test.
    AwaitClose,
    /// Closes in the ordinary way (FIN).
    Close,
    /// Closes by reset.
    Reset,
}

/// What a replica says of itself, by which its kind is told.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    owner: &'static str,
    metrics: &'static str,
}

/// vLLM.
pub(crate) const VLLM: Kind = Kind {
    owner: "vllm",
    metrics: "vllm:num_requests_running{engine=\"0\"} 1.0\n\
              vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
              vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n",
};
/// SGLang.
pub(crate) const SGLANG: Kind = Kind { owner: "sglang", metrics: "" };
/// llama.cpp, which is not asked for what it may not know.
pub(crate) const LLAMA_CPP: Kind =
    Kind { owner: "llamacpp", metrics: "llamacpp:requests_processing 1\n" };

/// TensorRT-LLM, whose usual path has something else.
pub(crate) const TENSORRT_LLM: Kind =
    Kind { owner: "tensorrt_llm", metrics: "[{\"iter\":7,\"numActiveRequests\":1}]" };

/// What `/metrics` is answered with, in place of the page of the replica's kind.
pub(crate) enum Page {
    /// These bytes, a whole answer.
    Whole(Vec<u8>),
    /// These bytes, and then the connection closes.
    Cut(Vec<u8>),
    /// These bytes, and then nothing.
    Drip(Vec<u8>),
    /// These bytes again and again, after a head.
    Endless(Vec<u8>),
}

impl Page {
    /// A page that is as it should be.
    pub(crate) fn of(page: &str) -> Self {
        let length = page.len();
        Self::Whole(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}").into())
    }
}

/// A request as it came over the wire.
#[derive(Clone)]
pub(crate) struct Seen {
    /// The head, up to and with the blank line.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
    /// How many requests came on this connection before it.
    pub earlier: usize,
}

/// A running scripted replica.
pub(crate) struct Fake {
    /// Where it listens.
    pub addr: SocketAddr,
    state: Arc<State>,
    closes: tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>,
    accepting: tokio::task::JoinHandle<()>,
}

type Script = Box<dyn Fn(&Seen) -> Vec<Step> + Send + Sync>;

struct State {
    kind: Kind,
    models: Mutex<Vec<String>>,
    models_status: Mutex<&'static str>,
    models_asked: AtomicUsize,
    script: Script,
    seen: Mutex<Vec<Seen>>,
    go: Semaphore,
    closed: mpsc::UnboundedSender<()>,
    healthy: AtomicBool,
    connections: AtomicUsize,
    page: Mutex<Option<Arc<Page>>>,
    /// How often its health and its metrics were asked for.
    looks: [AtomicUsize; 2],
}

impl Fake {
    /// Starts a vLLM that follows `script` for every inference request.
    pub(crate) async fn start(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_as(VLLM, script).await
    }

    /// Starts a replica of this kind.
    pub(crate) async fn start_as(
        kind: Kind,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (closed, closes) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            kind,
            models: Mutex::new(vec!["tiny".into()]),
            models_status: Mutex::new("200 OK"),
            models_asked: AtomicUsize::new(0),
            script: Box::new(script),
            seen: Mutex::default(),
            go: Semaphore::new(0),
            closed,
            healthy: AtomicBool::new(true),
            connections: AtomicUsize::new(0),
            page: Mutex::default(),
            looks: Default::default(),
        });
        let accepting = tokio::spawn({
            let state = state.clone();
            async move {
                // Dropped with this task, so that a dropped replica is gone whole.
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).unwrap();
                    connections.spawn(serve(stream, state.clone()));
                }
            }
        });
        Self { addr, state, closes: tokio::sync::Mutex::new(closes), accepting }
    }

    /// A replica that answers every inference request with these bytes.
    pub(crate) async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |_| vec![Step::Send(bytes.clone())]).await
    }

    /// Lets one [`Step::Wait`] pass.
    pub(crate) fn go(&self) {
        self.state.go.add_permits(1);
    }

    /// Waits until an [`Step::AwaitClose`] has seen its connection close.
    pub(crate) async fn closed(&self) {
        self.closes.lock().await.recv().await.unwrap();
    }

    /// The inference requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The inference requests since this was last asked.
    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }

    /// Whether `/health` answers 200.
    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.state.healthy.store(healthy, Ordering::SeqCst);
    }

    /// The models that `/v1/models` lists. `BASE:ADAPTER` is an adapter on a base.
    pub(crate) fn set_models(&self, models: &[&str]) {
        *self.state.models.lock().unwrap() = models.iter().map(|id| (*id).into()).collect();
    }

    /// The status of `/v1/models`.
    pub(crate) fn set_models_status(&self, status: &'static str) {
        *self.state.models_status.lock().unwrap() = status;
    }

    /// How often it was asked for its models.
    pub(crate) fn models_asked(&self) -> usize {
        self.state.models_asked.load(Ordering::SeqCst)
    }

    /// What `/metrics` answers from now on. `None`: the page of its kind.
    pub(crate) fn set_metrics(&self, page: Option<Page>) {
        *self.state.page.lock().unwrap() = page.map(Arc::new);
    }

    /// How often `/health` and `/metrics` were asked for.
    pub(crate) fn looks(&self) -> [usize; 2] {
        [0, 1].map(|which| self.state.looks[which].load(Ordering::SeqCst))
    }

    /// Connections that carried an inference request.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    let mut buffer = Vec::new();
    let mut inference = 0;
    while let Some(seen) = read_request(&mut stream, &mut buffer, inference).await {
        let path = seen.head.split(' ').nth(1).unwrap_or("").to_owned();
        for (look, count) in ["/health", "/metrics"].iter().zip(&state.looks) {
            count.fetch_add(usize::from(path == *look), Ordering::SeqCst);
        }
        let page = state.page.lock().unwrap().clone();
        if let Some(page) = page.filter(|_| path == "/metrics") {
            if send_page(&mut stream, &page).await {
                continue;
            }
            return;
        }
        if let Some(answer) = own_answer(&path, &state) {
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        if inference == 0 {
            state.connections.fetch_add(1, Ordering::SeqCst);
        }
        inference += 1;
        state.seen.lock().unwrap().push(seen.clone());
        for step in (state.script)(&seen) {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        state.closed.send(()).unwrap();
                        return;
                    }
                }
                Step::Turns(turns) => {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                }
                Step::Wait => state.go.acquire().await.unwrap().forget(),
                Step::AwaitClose => {
                    let mut rest = [0; 64];
                    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
                    state.closed.send(()).unwrap();
                    return;
                }
                Step::Close => return,
                Step::Reset => {
                    stream.set_zero_linger().unwrap();
                    return;
                }
            }
        }
    }
}

/// Answers with a page. Whether the connection goes on.
async fn send_page(stream: &mut TcpStream, page: &Page) -> bool {
    let (Page::Whole(bytes) | Page::Cut(bytes) | Page::Drip(bytes) | Page::Endless(bytes)) = page;
    if stream.write_all(bytes).await.is_err() {
        return false;
    }
    match page {
        Page::Whole(_) => return true,
        Page::Cut(_) => {}
        Page::Drip(_) => while matches!(stream.read(&mut [0; 64]).await, Ok(1..)) {},
        Page::Endless(_) => {
            // In large pieces, so that a limit is met before a timeout.
            let piece = b"vllm:endless 1\n".repeat(4_096);
            while stream.write_all(&piece).await.is_ok() {}
        }
    }
    false
}

async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    earlier: usize,
) -> Option<Seen> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end + 4]).into_owned();
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned)
                })
                .map_or(0, |length| length.trim().parse::<usize>().unwrap());
            if buffer.len() >= end + 4 + length {
                let body = buffer[end + 4..end + 4 + length].to_vec();
                buffer.drain(..end + 4 + length);
                return Some(Seen { head, body, earlier });
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

fn own_answer(path: &str, state: &State) -> Option<String> {
    let Kind { owner, metrics } = state.kind;
    let (status, body) = match path {
        "/health" if state.healthy.load(Ordering::SeqCst) => ("200 OK", String::new()),
        "/health" => ("503 Service Unavailable", String::new()),
        "/version" => ("200 OK", r#"{"version":"0.32.0"}"#.into()),
        "/v1/models" => {
            state.models_asked.fetch_add(1, Ordering::SeqCst);
            let models = state.models.lock().unwrap();
            let models: Vec<_> = models.iter().map(|id| model(id, owner)).collect();
            let status = *state.models_status.lock().unwrap();
            (status, serde_json::json!({ "object": "list", "data": models }).to_string())
        }
        "/metrics" => ("200 OK", metrics.into()),
        "/prometheus/metrics" if owner == "tensorrt_llm" => {
            ("200 OK", include_str!("../../pages/tensorrt_llm.txt").into())
        }
        "/prometheus/metrics" => ("404 Not Found", String::new()),
        _ => return None,
    };
    Some(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

fn model(id: &str, owner: &str) -> serde_json::Value {
    let (parent, id) = id.split_once(':').map_or((None, id), |(base, id)| (Some(base), id));
    serde_json::json!({
        "id": id, "object": "model", "created": std::process::id(), "owned_by": owner,
        "root": format!("/models/{id}"), "parent": parent, "x-field": [1, 2],
    })
}

/// A chunked event stream of these events, whole.
pub(crate) fn stream_of(events: &[&str]) -> Vec<u8> {
    [stream_head(), events.iter().flat_map(|event| chunk(event)).collect(), b"0\r\n\r\n".to_vec()]
        .concat()
}

/// The head of a chunked event stream.
pub(crate) fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
      transfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// One event as one HTTP chunk.
pub(crate) fn chunk(event: &str) -> Vec<u8> {
    framed(&[&format!("data: {event}\n\n")])
}

/// Pieces of a body, each as one HTTP chunk, so that each is read on its own.
pub(crate) fn framed(pieces: &[&str]) -> Vec<u8> {
    let frame = |piece: &&str| format!("{:x}\r\n{piece}\r\n", piece.len());
    pieces.iter().filter(|piece| !piece.is_empty()).map(frame).collect::<String>().into_bytes()
}

/// A whole JSON answer.
pub(crate) fn json(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The role event of a chat stream.
pub(crate) const ROLE: &str = r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
/// A content event.
pub(crate) const WORD: &str = r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}"#;
/// The last event with a choice.
pub(crate) const FINISH: &str =
    r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
/// The usage event.
pub(crate) const USAGE: &str = r#"{"id":"c","model":"tiny","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
