//! A scripted backend on a raw socket. A test controls every byte, every pause, and the way in which a
//! connection ends. Its `/health`, `/metrics`, `/v1/models` and `/version` answer as a healthy vLLM or
//! another server does.

use super::request_reader::read_request;
use super::tcp_server::TcpServer;
use bytes::BytesMut;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};

/// One step of a backend after it has read a request.
#[derive(Clone)]
pub(crate) enum Step {
    /// Writes these bytes to the connection.
    Send(Vec<u8>),
    /// Waits for the test to call [`ScriptedBackend::go`].
    Wait,
    /// Yields this number of times, so that other tasks run.
    YieldTurns(usize),
    /// Waits until the gateway closes the connection, and reports that to [`ScriptedBackend::closed`].
    AwaitClose,
    /// Closes the connection (FIN).
    Close,
    Reset,
}

/// The software of the server. `owner` is what `/v1/models` names as the owner of models, `health` the path
/// of its health check, `metrics` the metrics page.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    owner: &'static str,
    health: &'static str,
    pub(crate) metrics: &'static str,
}

/// A vLLM server.
pub(crate) const VLLM: Kind = Kind {
    owner: "vllm",
    health: "/health",
    metrics: "vllm:num_requests_running{engine=\"0\"} 1.0\n\
              vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
              vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n",
};
/// An SGLang server. Here it has no metrics page.
pub(crate) const SGLANG: Kind = Kind {
    owner: "sglang",
    health: "/health",
    metrics: "",
};
/// llama.cpp, to which the gateway sends no parameters that this server may not know.
pub(crate) const LLAMA_CPP: Kind = Kind {
    owner: "llamacpp",
    health: "/health",
    metrics: "llamacpp:requests_processing 1\n",
};

/// TensorRT-LLM. Its `/metrics` has JSON instead of the Prometheus format.
pub(crate) const TENSORRT_LLM: Kind = Kind {
    owner: "tensorrt_llm",
    health: "/health",
    metrics: "[{\"iter\":7,\"numActiveRequests\":1}]",
};

/// vLLM behind Ray Serve. Its proxy has another path for health checks, and its metrics page is at another
/// port.
pub(crate) const RAY_SERVE: Kind = Kind {
    owner: "organization-owner",
    health: "/-/healthz",
    metrics: "",
};

/// The pages that all servers have at their start: path, status and body. The health check, the models and
/// the metrics page depend on the software of the server.
const PAGES: [(&str, &str, &str); 4] = [
    ("/health", "404 Not Found", ""),
    ("/kv_event_sources", "404 Not Found", ""),
    ("/prometheus/metrics", "404 Not Found", ""),
    ("/version", "200 OK", r#"{"version":"0.32.0"}"#),
];

/// The response of the backend to a path that it answers itself, not by its script.
pub(crate) enum Page {
    /// The backend sends these bytes, which are a whole response.
    Whole(Vec<u8>),
    /// The backend sends these bytes and closes the connection.
    Cut(Vec<u8>),
    /// The backend sends these bytes. Then it sends nothing more, and the connection stays open.
    Drip(Vec<u8>),
    /// The backend sends these bytes, followed by lines without end.
    Endless(Vec<u8>),
    /// The page that the function returns at the time of the request, as a whole response.
    Live(Box<dyn Fn() -> String + Send + Sync>),
}

impl Page {
    /// Builds a whole response with this page.
    pub(crate) fn of(page: &str) -> Self {
        Self::Whole(response("200 OK", "", page))
    }
}

/// A received inference request.
#[derive(Clone)]
pub(crate) struct Seen {
    /// The request line and the headers, with the blank line.
    pub head: String,
    pub body: Vec<u8>,
    /// Number of inference requests that arrived before on the same connection.
    pub earlier: usize,
    /// Number of inference requests that arrived before at this backend.
    pub number: usize,
}

pub(crate) struct ScriptedBackend {
    pub addr: SocketAddr,
    state: Arc<State>,
    closes: tokio::sync::Mutex<mpsc::UnboundedReceiver<()>>,
    _server: TcpServer,
}

type Script = Box<dyn Fn(&Seen) -> Vec<Step> + Send + Sync>;

struct State {
    kind: Kind,
    script: Script,
    received: Mutex<Vec<Seen>>,
    gate: Semaphore,
    closed: mpsc::UnboundedSender<()>,
    inference_connections: AtomicUsize,
    inference_requests: AtomicUsize,
    pages: Mutex<BTreeMap<&'static str, Arc<Page>>>,
    /// Number of received requests for each path.
    counts: Mutex<BTreeMap<String, usize>>,
}

impl ScriptedBackend {
    /// Starts a scripted vLLM. For every inference request, it follows the steps that `script` returns.
    pub(crate) async fn start(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_kind(VLLM, script).await
    }

    /// Starts a backend with this server software.
    pub(crate) async fn start_kind(
        kind: Kind,
        script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let (closed, closes) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            kind,
            script: Box::new(script),
            received: Mutex::default(),
            gate: Semaphore::new(0),
            closed,
            inference_connections: AtomicUsize::new(0),
            inference_requests: AtomicUsize::new(0),
            pages: Mutex::default(),
            counts: Mutex::default(),
        });
        let served = state.clone();
        let server = TcpServer::start(move |stream| serve(stream, served.clone())).await;
        let closes = tokio::sync::Mutex::new(closes);
        let backend = Self {
            addr: server.addr,
            state,
            closes,
            _server: server,
        };
        for (path, status, body) in PAGES {
            backend.set_page(path, status, body);
        }
        backend.set_healthy(true);
        backend.set_models(&["tiny"]);
        backend.set_metrics(None);
        if kind.owner == TENSORRT_LLM.owner {
            let page = include_str!("../../pages/tensorrt_llm.txt");
            backend.set_page("/prometheus/metrics", "200 OK", page);
        }
        backend
    }

    /// Starts a backend that follows these steps for every inference request.
    pub(crate) async fn following(steps: impl Into<Vec<Step>>) -> Self {
        let steps = steps.into();
        Self::start(move |_| steps.clone()).await
    }

    /// Starts two backends that follow a script. It gets the number of the request, which counts over both
    /// backends, the index of the backend, and the request.
    pub(crate) async fn two(
        script: impl Fn(usize, usize, &Seen) -> Vec<Step> + Send + Sync + 'static,
    ) -> [Self; 2] {
        let shared = Arc::new((AtomicUsize::new(0), script));
        let start_backend = |index| {
            let shared = shared.clone();
            Self::start(move |seen| {
                let (request_count, script) = &*shared;
                script(request_count.fetch_add(1, Ordering::SeqCst), index, seen)
            })
        };
        [start_backend(0).await, start_backend(1).await]
    }

    /// Starts two backends. The one that gets the first request follows the steps `first`. Both follow the
    /// steps `then` for all other requests.
    pub(crate) async fn first_of_two(
        first: impl Into<Vec<Step>>,
        then: impl Into<Vec<Step>>,
    ) -> [Self; 2] {
        let (first, then) = (first.into(), then.into());
        Self::two(move |number, _, _| {
            if number == 0 {
                first.clone()
            } else {
                then.clone()
            }
        })
        .await
    }

    /// Starts a backend that answers every inference request with these bytes.
    pub(crate) async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        Self::following([Step::Send(bytes.into())]).await
    }

    /// Ends one [`Step::Wait`]. If no connection is at such a step, the next one ends at once.
    pub(crate) fn go(&self) {
        self.state.gate.add_permits(1);
    }

    /// Waits until a [`Step::AwaitClose`] has seen that its connection is closed, or until a [`Step::Send`]
    /// has failed.
    pub(crate) async fn closed(&self) {
        self.closes.lock().await.recv().await.unwrap();
    }

    /// Returns the inference requests that arrived since the last call of [`ScriptedBackend::take_received`].
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.received.lock().unwrap().clone()
    }

    /// Waits until the backend has received this many inference requests.
    pub(crate) async fn until_received(&self, count: usize) {
        wait_until!(self.seen().len() >= count);
    }

    /// Takes the inference requests that arrived since the last call of this function.
    pub(crate) fn take_received(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.received.lock().unwrap())
    }

    /// Sets whether the health check answers with 200.
    pub(crate) fn set_healthy(&self, healthy: bool) {
        let status = if healthy {
            "200 OK"
        } else {
            "503 Service Unavailable"
        };
        self.set_page(self.state.kind.health, status, "");
    }

    /// Sets the models that `/v1/models` lists. `BASE:ADAPTER` stands for an adapter on a base model.
    pub(crate) fn set_models(&self, models: &[&str]) {
        let models: Vec<_> = models
            .iter()
            .map(|id| model(id, self.state.kind.owner))
            .collect();
        let list = serde_json::json!({ "object": "list", "data": models });
        self.set_page("/v1/models", "200 OK", &list.to_string());
    }

    /// Makes `/v1/models` respond with this status of an error. The body is a valid list of models, which
    /// the gateway must ignore.
    pub(crate) fn refuse_models(&self, status: &'static str) {
        let list = serde_json::json!({ "object": "list", "data": [model("tiny", "vllm")] });
        self.set_page("/v1/models", status, &list.to_string());
    }

    /// Sets the response to `/metrics`. `None` restores the metrics page of the server software.
    pub(crate) fn set_metrics(&self, page: Option<Page>) {
        let page = page.unwrap_or_else(|| Page::of(self.state.kind.metrics));
        self.state
            .pages
            .lock()
            .unwrap()
            .insert("/metrics", Arc::new(page));
    }

    /// Sets the response to a path that the server answers itself, not by a script, such as `/is_paused`.
    pub(crate) fn set_page(&self, path: &'static str, status: &'static str, body: &str) {
        let page = Page::Whole(response(status, "", body));
        self.state
            .pages
            .lock()
            .unwrap()
            .insert(path, Arc::new(page));
    }

    /// Sets the response to a path that the server answers itself, in any form.
    pub(crate) fn set_raw_page(&self, path: &'static str, page: Page) {
        self.state
            .pages
            .lock()
            .unwrap()
            .insert(path, Arc::new(page));
    }

    /// Makes `/v1/models` list this model with this context length in tokens.
    pub(crate) fn set_context(&self, model: &str, length: u32) {
        let models = serde_json::json!({ "object": "list", "data": [{
            "id": model, "object": "model", "owned_by": "vllm", "max_model_len": length,
        }] });
        self.set_page("/v1/models", "200 OK", &models.to_string());
    }

    /// Returns the number of requests for this path so far.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.state
            .counts
            .lock()
            .unwrap()
            .get(path)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the numbers of requests for `/health` and for `/metrics` so far.
    pub(crate) fn looks(&self) -> [usize; 2] {
        ["/health", "/metrics"].map(|path| self.asked(path))
    }

    /// Returns the number of connections that carried an inference request.
    pub(crate) fn connections(&self) -> usize {
        self.state.inference_connections.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    let mut buffer = BytesMut::new();
    let mut inference = 0;
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let mut seen = Seen {
            head,
            body: body.into(),
            earlier: inference,
            number: 0,
        };
        let path = seen.head.split(' ').nth(1).unwrap_or("");
        // Removes this prefix, as a proxy in front of the engine would.
        let path = path.strip_prefix("/engine-1").unwrap_or(path).to_owned();
        *state
            .counts
            .lock()
            .unwrap()
            .entry(path.clone())
            .or_default() += 1;
        let page = state.pages.lock().unwrap().get(&*path).cloned();
        if let Some(page) = page {
            if send_page(&mut stream, &page).await {
                continue;
            }
            return;
        }
        if inference == 0 {
            state.inference_connections.fetch_add(1, Ordering::SeqCst);
        }
        inference += 1;
        seen.number = state.inference_requests.fetch_add(1, Ordering::SeqCst);
        state.received.lock().unwrap().push(seen.clone());
        for step in (state.script)(&seen) {
            match step {
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        state.closed.send(()).unwrap();
                        return;
                    }
                }
                Step::YieldTurns(turns) => {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                }
                Step::Wait => state.gate.acquire().await.unwrap().forget(),
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

/// Sends a page. Returns whether the connection stays open.
async fn send_page(stream: &mut TcpStream, page: &Page) -> bool {
    let bytes = match page {
        Page::Live(page) => return Box::pin(send_page(stream, &Page::of(&page()))).await,
        Page::Whole(bytes) | Page::Cut(bytes) | Page::Drip(bytes) | Page::Endless(bytes) => bytes,
    };
    if stream.write_all(bytes).await.is_err() {
        return false;
    }
    match page {
        Page::Whole(_) | Page::Live(_) => return true,
        Page::Cut(_) => {}
        Page::Drip(_) => while matches!(stream.read(&mut [0; 64]).await, Ok(1..)) {},
        Page::Endless(_) => {
            // The pieces are so large that the gateway reaches its size limit before its timeout.
            let piece = b"vllm:endless 1\n".repeat(4_096);
            while stream.write_all(&piece).await.is_ok() {}
        }
    }
    false
}

fn model(id: &str, owner: &str) -> serde_json::Value {
    let (parent, id) = id
        .split_once(':')
        .map_or((None, id), |(base, id)| (Some(base), id));
    serde_json::json!({
        "id": id, "object": "model", "created": std::process::id(), "owned_by": owner,
        "root": format!("/models/{id}"), "parent": parent, "x-field": [1, 2],
    })
}

/// Builds a whole response with these events as a chunked event stream.
pub(crate) fn stream_of<T: AsRef<str>>(events: &[T]) -> Vec<u8> {
    [begun_stream(events), b"0\r\n\r\n".to_vec()].concat()
}

/// Returns the steps of an event stream: it begins with the events `begun`, waits until the test releases it,
/// and ends with the events `rest`.
pub(crate) fn paused<T: AsRef<str> + Clone>(begun: &[T], rest: &[T]) -> Vec<Step> {
    let all = stream_of(&[begun, rest].concat());
    let begun = begun_stream(begun);
    let rest = all[begun.len()..].to_vec();
    vec![Step::Send(begun), Step::Wait, Step::Send(rest)]
}

/// Builds the first bytes of a response: the head, and these events as a chunked event stream without its
/// end.
pub(crate) fn begun_stream<T: AsRef<str>>(events: &[T]) -> Vec<u8> {
    let chunks = events.iter().flat_map(|event| chunk(event.as_ref()));
    event_stream_head().into_iter().chain(chunks).collect()
}

/// Returns the step that begins a chunked event stream with these events.
pub(crate) fn begin<T: AsRef<str>>(events: &[T]) -> Step {
    Step::Send(begun_stream(events))
}

/// Returns the response head of a chunked event stream.
pub(crate) fn event_stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
      transfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// Builds a server-sent event with this data.
pub(crate) fn data(event: &str) -> String {
    format!("data: {event}\n\n")
}

/// Builds a server-sent event with this data, as one HTTP chunk.
pub(crate) fn chunk(event: &str) -> Vec<u8> {
    framed(&[&data(event)])
}

/// Frames each piece as one HTTP chunk, so that the gateway reads the pieces separately.
pub(crate) fn framed(pieces: &[&str]) -> Vec<u8> {
    let frame = |piece: &&str| format!("{:x}\r\n{piece}\r\n", piece.len());
    pieces
        .iter()
        .filter(|piece| !piece.is_empty())
        .map(frame)
        .collect::<String>()
        .into_bytes()
}

/// Builds a whole response with this JSON body.
pub(crate) fn json(status: &str, body: &str) -> Vec<u8> {
    response(status, "content-type: application/json\r\n", body)
}

/// Builds a whole response with these header lines and this body.
pub(crate) fn response(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The data of the first event of a chat stream, which has the role.
pub(crate) const ROLE: &str = r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
/// The data of an event with the text `Hi`.
pub(crate) const WORD: &str = r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}"#;
/// The data of the event that has the finish reason.
pub(crate) const FINISH: &str =
    r#"{"id":"c","model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
/// The data of the usage event.
pub(crate) const USAGE: &str = r#"{"id":"c","model":"tiny","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
/// The data of the events of a whole chat stream with usage.
pub(crate) const WHOLE_STREAM: [&str; 5] = [ROLE, WORD, FINISH, USAGE, "[DONE]"];
