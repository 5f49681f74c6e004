//! The gateway under test: the real program as a child process, its addresses and its outputs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokenweir_protocol::clock;

/// A child process. Dropping it kills the process.
pub(crate) struct Process(pub(crate) Child);

/// The gateway process that the bench started.
pub(crate) struct Gateway {
    child: Process,
    pub(crate) clients: SocketAddr,
    admin: SocketAddr,
    access_log: Option<JoinHandle<Vec<String>>>,
}

/// Gauges of the gateway that must return to zero when all requests have ended.
pub(crate) const IN_FLIGHT: [&str; 2] = [
    "tokenweir_requests_in_flight",
    "tokenweir_backend_requests_in_flight",
];

/// Maximum time for the start of the gateway, and for its gauges to return to zero.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

impl Gateway {
    /// Starts the gateway with this configuration, in a file with the name of the bench. `access_log` receives
    /// the gateway's standard output. If it is a pipe, the output is collected for [`Gateway::stop`].
    pub(crate) fn start(bench: &str, config: &str, access_log: impl Into<Stdio>) -> Self {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{bench}.yaml"));
        fs::write(&file, config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tokenweir"))
            .args(["serve", "--log-format", "json"])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--config",
            ])
            .arg(file)
            .env_clear()
            .stdout(access_log)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let access_log = child.stdout.take().map(|stdout| {
            thread::spawn(move || {
                BufReader::new(stdout)
                    .lines()
                    .map_while(Result::ok)
                    .collect()
            })
        });
        let (line_sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if line.contains("\"WARN\"") || line.contains("\"ERROR\"") {
                    eprintln!("{line}");
                }
                // Sending fails once both addresses are known, because the receiver is dropped then.
                let _ = line_sender.send(line);
            }
        });
        let start = loop {
            let line = lines.recv_timeout(WAIT_TIMEOUT).unwrap();
            if line.contains("\"gateway started\"") {
                break line;
            }
        };
        let address = |name: &str| {
            let (_, rest) = start.split_once(&format!("\"{name}\":\"http://")).unwrap();
            rest[..rest.find(['/', '"']).unwrap()].parse().unwrap()
        };
        let (clients, admin) = (address("clients"), address("admin"));
        Self {
            child: Process(child),
            clients,
            admin,
            access_log,
        }
    }

    /// The metrics page of the gateway as soon as no request is in flight, or after [`WAIT_TIMEOUT`].
    pub(crate) fn metrics_at_rest(&self) -> String {
        let deadline = clock::now() + WAIT_TIMEOUT;
        loop {
            let page = self.metrics();
            if is_at_rest(&page) || clock::now() > deadline {
                return page;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fetches the current metrics page of the gateway.
    pub(crate) fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\nhost: admin\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends the gateway a signal by its name, such as HUP.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process().to_string();
        let is_signalled = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status()
            .unwrap();
        assert!(is_signalled.success(), "the gateway had exited before");
    }

    /// Stops the gateway with a signal. Returns its access log if standard output was a pipe, else nothing.
    pub(crate) fn stop(mut self) -> Vec<String> {
        self.signal("TERM");
        self.child.0.wait().unwrap();
        self.access_log
            .take()
            .map(|log| log.join().unwrap())
            .unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process can have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a metrics page shows no request in flight.
pub(crate) fn is_at_rest(page: &str) -> bool {
    IN_FLIGHT
        .iter()
        .all(|gauge| sum(page, gauge, "") == Some(0.0))
}

/// The sum of the time series of the metric `name` whose labels contain `label`. `None` if there is no such
/// series.
pub(crate) fn sum(page: &str, name: &str, label: &str) -> Option<f64> {
    let values = page.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = series.strip_prefix(name)?;
        let is_it = (labels.is_empty() || labels.starts_with('{')) && labels.contains(label);
        is_it.then(|| value.parse::<f64>().ok())?
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}
