//! The real program with every output about requests enabled, and a collector that receives its exports.

use super::secret_responses::secret;
use crate::support::process::folder;
use crate::support::program_log::listener_address;
use crate::support::test_gateway::operate;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A running gateway with every output about requests enabled.
pub(super) struct Program {
    /// Address of the client listener.
    pub(super) clients: SocketAddr,
    operators: SocketAddr,
    child: Child,
    outputs: Option<[Output; 2]>,
    capture: PathBuf,
    texts: PathBuf,
}

/// The bytes that an output has written so far, and the thread that reads them.
type Output = (Arc<Mutex<Vec<u8>>>, JoinHandle<()>);

/// What the program has written when it ends.
pub(super) struct Ended {
    pub(super) access_log: Vec<u8>,
    pub(super) log: Vec<u8>,
    pub(super) capture: Vec<u8>,
    pub(super) content: Vec<u8>,
}

/// An HTTP server that stores everything that the gateway exports to it.
pub(super) struct Collector {
    pub(super) addr: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Program {
    /// Starts the gateway. `more` is appended to the settings of the payload log. Without `more`, there is no
    /// payload log.
    pub(super) async fn start(
        format: &str,
        more: &str,
        backend: SocketAddr,
        collector: SocketAddr,
    ) -> Self {
        let name = format!("canary-{}", backend.port());
        let folder = folder(&name);
        let (file, capture) = (folder.join("tokenweir.yaml"), folder.join("capture.jsonl"));
        let texts = folder.join("content.jsonl");
        for file in [&capture, &texts] {
            let _ = fs::remove_file(file);
        }
        let content = if more.is_empty() {
            String::new()
        } else {
            format!(", payloads: {{ file: '{}'{more} }}", texts.display())
        };
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
             backends: [{{ url: 'http://{backend}', api_key: {{ env: BACKEND_KEY }} }}]\n\
             timeouts: {{ response_headers: 20s }}\n\
             tiers: {{ header: x-tier, names: [gold] }}\n\
             admission: {{ tenant_header: x-tenant }}\n\
             refusal_detection: {{ refusal_phrases: ['I cannot help'] }}\n\
             log: {{ level: trace, format: {format}, access_per_second: null{content} }}\n\
             tracing: {{ endpoint: 'http://{collector}', protocol: http/protobuf, ratio: 1.0 }}\n\
             quality: {{ enabled: true }}\n\
             trace_capture: {{ file: '{}' }}\n",
            capture.display()
        );
        fs::write(&file, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tokenweir"))
            .args(["serve", "--config"])
            .arg(&file)
            .env_clear()
            .env("RUST_LOG", "trace")
            .env("BACKEND_KEY", secret("backend-key"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = collect(child.stdout.take().unwrap());
        let err = collect(child.stderr.take().unwrap());
        let stderr_output = err.0.clone();
        let address = |name: &str| {
            listener_address(&String::from_utf8_lossy(&stderr_output.lock().unwrap()), name)
        };
        let (clients, operators) = wait_for!({
            assert!(child.try_wait().unwrap().is_none(), "the gateway exited");
            address("clients").zip(address("admin"))
        });
        let outputs = Some([out, err]);
        let program = Self { clients, operators, child, outputs, capture, texts };
        // Wait until the gateway knows the models of the backend.
        wait_until!(program.admin("/status").await.contains("\"tiny\""));
        program
    }

    /// The response of the admin listener to a request for this path.
    pub(super) async fn admin(&self, path: &str) -> String {
        String::from_utf8(operate(self.operators, "GET", path, "").await).unwrap()
    }

    /// Waits until the gateway has recorded `count` requests.
    pub(super) async fn wait_for_requests(&self, count: usize) {
        wait_until!({
            let page = self.admin("/metrics").await;
            let lines = page.lines().filter(|line| line.starts_with("tokenweir_requests_total{"));
            let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            counts.sum::<f64>() as usize >= count
        });
    }

    /// Stops the program with a signal and waits for its end. Returns its outputs.
    pub(super) fn stop(&mut self) -> Ended {
        let id = self.child.id().to_string();
        let is_signalled = Command::new("kill").args(["-TERM", &id]).status().unwrap().success();
        assert!(is_signalled, "the gateway had exited before");
        assert!(self.child.wait().unwrap().success());
        let [access_log, log] = self.outputs.take().unwrap().map(|(text, reading)| {
            reading.join().unwrap();
            std::mem::take(&mut *text.lock().unwrap())
        });
        let capture = fs::read(&self.capture).unwrap();
        Ended { access_log, log, capture, content: fs::read(&self.texts).unwrap_or_default() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Killing may fail, because the program may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(folder) = self.capture.parent() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Collects the bytes of an output in a thread of its own.
fn collect(mut from: impl Read + Send + 'static) -> Output {
    let text = Arc::new(Mutex::new(Vec::new()));
    let into = text.clone();
    let reading = thread::spawn(move || {
        let mut piece = [0; 4_096];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            into.lock().unwrap().extend_from_slice(&piece[..length]);
        }
    });
    (text, reading)
}

impl Collector {
    /// Starts the server. It answers each request with 200.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let all = received.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(take(stream, all.clone()));
            }
        });
        Self { addr, received, accepting }
    }

    /// All bytes that the server has received.
    pub(super) fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn take(mut stream: TcpStream, all: Arc<Mutex<Vec<u8>>>) {
    let mut request = Vec::new();
    while matches!(stream.read_buf(&mut request).await, Ok(1..)) {
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let whole = end + 4 + length.unwrap_or(0);
        if request.len() >= whole {
            all.lock().unwrap().extend(request.drain(..whole));
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
        }
    }
}
