//! The gateway as a process of its own, and clients that notice every request that is lost.

#![expect(clippy::panic, reason = "a test that cannot go on has failed")]

use super::fake::Fake;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// A running `tokenweir serve`. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    /// Where operators connect.
    pub admin: SocketAddr,
}

/// Clients that ask again and again.
pub(crate) struct Load {
    clients: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    outcomes: watch::Receiver<Outcomes>,
}

/// What became of requests.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Those that were answered whole.
    pub served: u64,
    /// Why others were not.
    pub failed: Vec<String>,
}

const LONGEST: Duration = Duration::from_secs(20);

// === impl Process ===

impl Process {
    /// Starts it, and waits until it is ready.
    pub(crate) async fn start(config: &Path) -> Self {
        Self::start_with(config, &[]).await
    }

    /// The same, with these variables in its environment.
    pub(crate) async fn start_with(config: &Path, variables: &[(&str, &str)]) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
        Self::run(command, config, variables).await
    }

    /// The same, and it may have so many files open.
    pub(crate) async fn start_with_files(config: &Path, files: usize) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_tokenweir")]);
        Self::run(command, config, &[]).await
    }

    async fn run(mut command: Command, config: &Path, variables: &[(&str, &str)]) -> Self {
        command.args(["serve", "--log-format", "human", "--access-log", "false", "--config"]);
        command.arg(config).env("TOKENWEIR_ADMIN", "127.0.0.1:0").envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut told = Vec::new();
        let admin = loop {
            let line = lines.next_line().await.unwrap();
            let Some(line) = line else { panic!("it ended: {}", told.join("\n")) };
            let rest = line.trim_start().strip_prefix("admin").map(str::trim_start);
            let url = rest.and_then(|rest| rest.strip_prefix("http://"));
            if let Some(addr) = url.and_then(|url| url.split(' ').next()?.parse().ok()) {
                break addr;
            }
            told.push(line);
        };
        // What it says later is shown if the test fails.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}");
            }
        });
        let process = Self { child, admin };
        while !process.get("/readyz").await.starts_with("HTTP/1.1 200") {
            tokio::task::yield_now().await;
        }
        process
    }

    /// A page of its admin port; nothing if it has none any more.
    pub(crate) async fn get(&self, path: &str) -> String {
        self.ask("GET", path).await
    }

    /// Has its configuration read again, and gives the answer.
    pub(crate) async fn reload(&self) -> String {
        self.ask("POST", "/-/reload").await
    }

    /// The value of a series.
    pub(crate) async fn value(&self, series: &str) -> f64 {
        crate::metrics::value(&self.get("/metrics").await, series)
    }

    async fn ask(&self, method: &str, path: &str) -> String {
        let mut answer = String::new();
        let Ok(mut stream) = TcpStream::connect(self.admin).await else { return answer };
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        if stream.write_all(request.as_bytes()).await.is_ok() {
            let _ = stream.read_to_string(&mut answer).await;
        }
        answer
    }

    /// Sends it a signal, such as `HUP`.
    pub(crate) async fn signal(&self, name: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(LONGEST, self.child.wait()).await.expect("it ends").unwrap()
    }
}

/// The program in front of a replica, with no other variables than these in its environment; where
/// its clients connect, and what it says.
pub(crate) async fn in_front_of(
    fake: &Fake,
    variables: &[(&str, &str)],
) -> (Child, SocketAddr, mpsc::UnboundedReceiver<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
    let backend = format!("http://{}", fake.addr);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format"]);
    command.args(["human", "--backend", &backend]).env_clear().envs(variables.iter().copied());
    command.stderr(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut clients = None;
    while clients.is_none() {
        let line = lines.next_line().await.unwrap().expect("a banner");
        let url = line.trim().strip_prefix("clients   http://").map(str::to_owned);
        clients = url.map(|url| url.strip_suffix("/v1").unwrap().parse().unwrap());
    }
    let (sender, log) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = sender.send(line);
        }
    });
    (child, clients.unwrap(), log)
}

// === impl Load ===

impl Load {
    /// Clients with a new connection for each request, and as many that keep theirs. What they ask
    /// for is a stream that ends.
    pub(crate) fn start(gateway: SocketAddr, model: &str, pairs: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, outcomes) = watch::channel(Outcomes::default());
        let sender = Arc::new(sender);
        let mut clients = JoinSet::new();
        for client in 0..pairs * 2 {
            let keeps = client % 2 == 0;
            let request = request(model, keeps);
            let (is_over, sender) = (is_over.clone(), sender.clone());
            clients.spawn(async move {
                let mut kept = None;
                while !is_over.load(Ordering::Relaxed) {
                    let asked = ask(gateway, &mut kept, &request, keeps);
                    let result = tokio::time::timeout(LONGEST, asked).await;
                    sender.send_modify(|outcomes| match result {
                        Ok(Ok(())) => outcomes.served += 1,
                        Ok(Err(problem)) => {
                            outcomes.failed.push(format!("{problem}, kept: {keeps}"));
                        }
                        Err(_) => outcomes.failed.push("no answer".to_owned()),
                    });
                }
            });
        }
        Self { clients, is_over, outcomes }
    }

    /// Waits until so many more requests have been answered.
    pub(crate) async fn goes_on(&mut self, requests: u64) {
        let goal = self.outcomes.borrow().served + requests;
        let is_enough =
            |outcomes: &Outcomes| outcomes.served >= goal || !outcomes.failed.is_empty();
        self.outcomes.wait_for(is_enough).await.unwrap();
    }

    /// Ends the load.
    pub(crate) async fn end(mut self) -> Outcomes {
        self.is_over.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
        let outcomes = self.outcomes.borrow();
        Outcomes { served: outcomes.served, failed: outcomes.failed.clone() }
    }
}

fn request(model: &str, keeps: bool) -> String {
    let body = format!(
        r#"{{"model":"{model}","stream":true,"max_tokens":12,"messages":[{{"role":"user","content":"hi"}}]}}"#
    );
    let connection = if keeps { "keep-alive" } else { "close" };
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n\
         connection: {connection}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One request, to the last byte of its answer. A connection that the answer does not close is kept.
async fn ask(
    gateway: SocketAddr,
    kept: &mut Option<TcpStream>,
    request: &str,
    keeps: bool,
) -> Result<(), String> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => TcpStream::connect(gateway).await.map_err(|error| format!("connect: {error}"))?,
    };
    stream.write_all(request.as_bytes()).await.map_err(|error| format!("send: {error}"))?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"0\r\n\r\n") {
        let read = stream.read_buf(&mut answer).await.map_err(|error| format!("read: {error}"))?;
        if read == 0 {
            return Err(format!("cut: {:?}", String::from_utf8_lossy(&answer)));
        }
    }
    let text = String::from_utf8_lossy(&answer);
    if !text.starts_with("HTTP/1.1 200") || !text.contains("data: [DONE]") {
        return Err(format!("answered: {text:?}"));
    }
    let head = text.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
    if keeps && !head.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(())
}
