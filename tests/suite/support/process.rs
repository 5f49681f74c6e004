//! The gateway as a separate process, and clients that put load on it and note every failed request.

use super::test_gateway::{CHAT, operate, post};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A running `tokenweir serve`. Dropping it kills the process.
pub(crate) struct GatewayProcess {
    child: Child,
    clients: Option<SocketAddr>,
    pub admin: SocketAddr,
    access_log: Output,
    log: Output,
}

/// One output of a process, such as standard error.
struct Output {
    /// The lines that were read so far.
    text: Arc<Mutex<String>>,
    /// The task that reads the lines of the output.
    reading: JoinHandle<()>,
}

/// How a command ended: exit code, standard output and standard error.
pub(crate) type Ended = (Option<i32>, String, String);

/// Running clients. Each sends one request after the other, without pause.
pub(crate) struct Load {
    clients: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    outcomes: watch::Receiver<Outcomes>,
}

/// The outcomes of the requests of [`Load`] so far.
#[derive(Debug, Default)]
struct Outcomes {
    /// Number of requests that got a complete response.
    served: u64,
    /// For each request without a complete response, what was wrong.
    failed: Vec<String>,
}

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Creates a folder for the files of the test `name`. If the suite runs twice at the same time, both runs
/// have different folders.
pub(crate) fn folder(name: &str) -> PathBuf {
    let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("suite-{}", std::process::id()));
    let folder = run.join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns a command that runs the `tokenweir` program.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tokenweir"))
}

/// Runs the `tokenweir` program with these arguments, and with no environment variables but these.
pub(crate) async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = program();
    command
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    let output = command.output().await.unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

/// Runs the `tokenweir` program with the words of `line` as arguments, and with no environment variables but
/// these.
pub(crate) async fn run_line(line: &str, variables: &[(&str, &str)]) -> Ended {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    run(&arguments, variables).await
}

impl GatewayProcess {
    /// Starts the gateway with this configuration file, and waits until it is ready.
    pub(crate) async fn start(config: &Path) -> Self {
        Self::start_with(config, &[]).await
    }

    /// Like [`GatewayProcess::start`], with additional environment variables.
    pub(crate) async fn start_with(config: &Path, variables: &[(&str, &str)]) -> Self {
        Self::run(program(), Some(config), variables).await
    }

    /// Like [`GatewayProcess::start`], but without a configuration file and with these environment variables.
    pub(crate) async fn start_without_file(variables: &[(&str, &str)]) -> Self {
        Self::run(program(), None, variables).await
    }

    /// Like [`GatewayProcess::start`], with this limit for the open files of the process.
    pub(crate) async fn start_with_file_limit(config: &Path, files: usize) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_tokenweir")]);
        Self::run(command, Some(config), &[]).await
    }

    async fn run(mut command: Command, config: Option<&Path>, variables: &[(&str, &str)]) -> Self {
        command.args(["serve", "--log-format", "human", "--access-log", "false"]);
        command.args(
            config
                .iter()
                .flat_map(|config| [OsStr::new("--config"), config.as_os_str()]),
        );
        command
            .env("TOKENWEIR_ADMIN", "127.0.0.1:0")
            .envs(variables.iter().copied());
        let process = Self::spawn(command).await;
        wait_until!(process.get("/readyz").await.starts_with("HTTP/1.1 200"));
        process
    }

    /// Starts a command that runs a gateway, and waits until its log shows the addresses of its listeners.
    pub(crate) async fn spawn(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let access_log = Output::read(child.stdout.take().unwrap());
        let log = Output::read(child.stderr.take().unwrap());
        let address = |name: &str| listener_address(&log.text(), name);
        let admin = wait_for!({
            let has_exited = child.try_wait().unwrap().is_some();
            assert!(!has_exited, "the gateway exited: {}", log.text());
            address("admin")
        });
        Self {
            child,
            clients: address("clients"),
            admin,
            access_log,
            log,
        }
    }

    /// Returns the address of the client listener. Fails if the listener uses TLS.
    pub(crate) fn clients(&self) -> SocketAddr {
        self.clients
            .expect("the banner names the client listener before the admin listener")
    }

    /// Returns the lines of the log so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Returns the lines of the access log so far.
    pub(crate) fn access_log(&self) -> String {
        self.access_log.text()
    }

    /// Fetches a page of the admin listener, with the response head. Returns an empty string if the listener
    /// is closed.
    pub(crate) async fn get(&self, path: &str) -> String {
        String::from_utf8(operate(self.admin, "GET", path, "").await).unwrap()
    }

    /// Fetches a JSON document of the admin listener.
    pub(crate) async fn document<T: DeserializeOwned>(&self, path: &str) -> T {
        let page = self.get(path).await;
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Tells the admin listener to reload the configuration. Returns the response.
    pub(crate) async fn reload(&self) -> String {
        String::from_utf8(operate(self.admin, "POST", "/-/reload", "").await).unwrap()
    }

    /// Returns the value of a time series on the metrics page.
    pub(crate) async fn value(&self, series: &str) -> f64 {
        crate::metrics::value(&self.get("/metrics").await, series)
    }

    /// Sends the process a signal, such as `HUP`.
    pub(crate) async fn signal(&self, name: &str) {
        let id = self.child.id().expect("a running process").to_string();
        let sent = Command::new("kill")
            .args(["-s", name, &id])
            .status()
            .await
            .unwrap();
        assert!(sent.success());
    }

    /// Waits until the process has exited and its outputs are read. Returns its exit status.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ending = async {
            let status = self.child.wait().await.unwrap();
            (&mut self.access_log.reading).await.unwrap();
            (&mut self.log.reading).await.unwrap();
            status
        };
        tokio::time::timeout(WAIT_TIMEOUT, ending)
            .await
            .expect("exit within the timeout")
    }
}

impl Output {
    fn read(output: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let text = Arc::<Mutex<String>>::default();
        let mut lines = BufReader::new(output).lines();
        let written = text.clone();
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // The output of a failed test then contains the line.
                eprintln!("{line}");
                let mut text = written.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        Self { text, reading }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }
}

/// Returns the address of a listener (`clients` or `admin`) from the log of a gateway, which is text or JSON.
/// `None`: the log does not contain the address yet.
fn listener_address(log: &str, name: &str) -> Option<SocketAddr> {
    let after = |mark: String| log.split_once(&mark).map(|(_, rest)| rest);
    let url = after(format!("\"{name}\":\"")).or_else(|| after(format!("  {name} ")))?;
    let address = url.trim_start().strip_prefix("http://")?;
    let end = address.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':')?;
    address[..end].parse().ok()
}

impl Load {
    /// Starts `pairs` clients that open a connection for each request, and `pairs` clients that reuse one
    /// connection. Each request is a chat completion whose stream ends by itself.
    pub(crate) fn start(gateway: SocketAddr, model: &str, pairs: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, outcomes) = watch::channel(Outcomes::default());
        let sender = Arc::new(sender);
        let mut clients = JoinSet::new();
        for client in 0..pairs * 2 {
            let reuses_connection = client % 2 == 0;
            let request = request(model, reuses_connection);
            let (is_over, sender) = (is_over.clone(), sender.clone());
            clients.spawn(async move {
                let mut idle_connection = None;
                while !is_over.load(Ordering::Relaxed) {
                    let exchange = exchange_request(
                        gateway,
                        &mut idle_connection,
                        &request,
                        reuses_connection,
                    );
                    let result = tokio::time::timeout(WAIT_TIMEOUT, exchange).await;
                    sender.send_modify(|outcomes| match result {
                        Ok(Ok(())) => outcomes.served += 1,
                        Ok(Err(problem)) => {
                            outcomes
                                .failed
                                .push(format!("{problem}, connection reused: {reuses_connection}"));
                        }
                        Err(_) => outcomes.failed.push("no response".to_owned()),
                    });
                }
            });
        }
        Self {
            clients,
            is_over,
            outcomes,
        }
    }

    /// Waits until the clients have got `requests` more responses, or a request has failed.
    pub(crate) async fn goes_on(&mut self, requests: u64) {
        let goal = self.outcomes.borrow().served + requests;
        let is_enough =
            |outcomes: &Outcomes| outcomes.served >= goal || !outcomes.failed.is_empty();
        self.outcomes.wait_for(is_enough).await.unwrap();
    }

    /// Stops the clients after their current requests. Fails if a request had no complete response.
    pub(crate) async fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
        let Outcomes { served, failed } = &*self.outcomes.borrow();
        eprintln!("{served} requests served, {} failed", failed.len());
        assert!(
            failed.is_empty(),
            "{} of {served}: {failed:?}",
            failed.len()
        );
    }
}

fn request(model: &str, reuses_connection: bool) -> String {
    let body = format!(
        r#"{{"model":"{model}","stream":true,"max_tokens":12,"messages":[{{"role":"user","content":"hi"}}]}}"#
    );
    let request = post(CHAT, &body);
    if reuses_connection {
        request.replace("connection: close\r\n", "")
    } else {
        request
    }
}

/// Sends one request and reads its response to the last byte. Keeps the connection unless the response closes
/// it. Returns an error text if something was wrong.
async fn exchange_request(
    gateway: SocketAddr,
    idle_connection: &mut Option<TcpStream>,
    request: &str,
    reuses_connection: bool,
) -> Result<(), String> {
    let mut stream = match idle_connection.take() {
        Some(stream) => stream,
        None => TcpStream::connect(gateway)
            .await
            .map_err(|error| format!("connect: {error}"))?,
    };
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| format!("send: {error}"))?;
    let mut response = Vec::new();
    while !response.ends_with(b"0\r\n\r\n") {
        let read = stream
            .read_buf(&mut response)
            .await
            .map_err(|error| format!("read: {error}"))?;
        if read == 0 {
            return Err(format!(
                "truncated: {:?}",
                String::from_utf8_lossy(&response)
            ));
        }
    }
    let text = String::from_utf8_lossy(&response);
    if !text.starts_with("HTTP/1.1 200") || !text.contains("data: [DONE]") {
        return Err(format!("unexpected response: {text:?}"));
    }
    let head = text
        .split("\r\n\r\n")
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    if reuses_connection && !head.contains("connection: close") {
        *idle_connection = Some(stream);
    }
    Ok(())
}
