//! A subject: a proxy that the bench measures, as a child process on a core of its own.

use super::{clients, cpu, floor, servers};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokio::task::spawn_blocking;

named_enum! {
    /// The kind of a subject. Subjects are measured in this order. The name of a kind is used in tables and in
    /// environment variables, and is the program name of another proxy.
    pub(crate) enum Kind {
        /// The reference proxy that uses hyper.
        Floor = "hyper",
        /// Other proxies and routers with their access logs.
        Nginx = "nginx",
        Haproxy = "haproxy",
        Envoy = "envoy",
        VllmRouter = "vllm-router",
        Smg = "smg",
        LiteLlm = "litellm",
        /// The gateway with routing, but without telemetry.
        Off = "off",
        /// The gateway with routing and metrics.
        Metrics = "metrics",
        /// The gateway with routing, metrics and a JSON access log.
        Log = "log",
        /// The gateway with metrics and traces at the default rate.
        Traces = "traces",
        /// The gateway with metrics, access log and traces.
        All = "all",
    }
}

impl Kind {
    /// Whether the measured proxy is this gateway.
    pub(crate) const fn is_gateway(self) -> bool {
        matches!(
            self,
            Self::Off | Self::Metrics | Self::Log | Self::Traces | Self::All
        )
    }

    /// Whether the measured proxy is one of another project.
    pub(crate) fn is_other(self) -> bool {
        self != Self::Floor && !self.is_gateway()
    }

    /// Whether the program of the subject is installed. The gateway and the reference proxy always are.
    pub(crate) fn is_installed(self) -> bool {
        !self.is_other() || servers::is_installed(self.as_str())
    }
}

/// A running subject. Dropping it kills the process.
pub(crate) struct Subject {
    child: Child,
    /// The address at which clients reach the measured proxy.
    pub(crate) address: SocketAddr,
}

/// With more backends than this, the gateway scrapes at long intervals instead of the default ones.
const MAX_SCRAPED_BACKENDS: usize = 16;

/// Two cores: the core of the subject, and the core of clients and backends (`PASSTHROUGH_CORES`). A subject
/// that runs on two cores uses both.
fn pinned_cores() -> (String, String) {
    let cores = std::env::var("PASSTHROUGH_CORES").unwrap_or_else(|_| "0,1".into());
    let (subject, other) = cores.split_once(',').unwrap();
    (subject.into(), other.into())
}

/// Moves this process to the core of clients and backends, if `taskset` is installed.
pub(crate) fn pin_to_the_other_core() {
    let id = std::process::id().to_string();
    let moved = Command::new("taskset")
        .args(["-a", "-c", "-p", &pinned_cores().1, &id])
        .output();
    if !moved.is_ok_and(|output| output.status.success()) {
        eprintln!("taskset is not available: subjects and load share the cores");
    }
}

impl Subject {
    /// Starts a subject on its own core, in front of `backends`.
    pub(crate) async fn start(kind: Kind, backends: &[SocketAddr]) -> Self {
        Self::on_cores(1, kind, backends).await
    }

    /// Starts a subject on `cores` cores, one or two, with one worker per core.
    pub(crate) async fn on_cores(cores: usize, kind: Kind, backends: &[SocketAddr]) -> Self {
        let backends = backends.to_vec();
        // A blocking task, because the backends must answer on this thread while the subject starts.
        spawn_blocking(move || Self::of_kind(cores, kind, &backends))
            .await
            .unwrap()
    }

    fn of_kind(cores: usize, kind: Kind, backends: &[SocketAddr]) -> Self {
        if kind == Kind::Floor {
            let mut command = on_its_cores(cores, &std::env::current_exe().unwrap());
            let backends = backends
                .iter()
                .map(SocketAddr::to_string)
                .collect::<Vec<_>>()
                .join(",");
            command.arg("--bench").env(floor::BACKENDS, backends);
            command.env(floor::CORES, cores.to_string());
            return Self::of(command.stdout(Stdio::piped()), |line| line.parse().ok());
        }
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("passthrough-{}.yaml", kind.as_str()));
        let log = folder.join(format!("passthrough-{}.log", kind.as_str()));
        let log = fs::File::create(log).unwrap();
        let addresses = [servers::free_address(), backends[0]];
        let setup = servers::setup(kind, addresses, (&folder, &file), cores);
        if let Some((configuration, arguments)) = setup {
            fs::write(&file, configuration).unwrap();
            let mut command = on_its_cores(cores, Path::new(kind.as_str()));
            command
                .args(arguments.split(' '))
                .stdout(log)
                .stderr(Stdio::null());
            return Self::of_other(kind, command.current_dir(folder), addresses[0]);
        }
        fs::write(&file, configuration(kind, backends)).unwrap();
        let mut command = on_its_cores(cores, &program());
        command
            .args(["serve", "--config"])
            .arg(file)
            .stdout(log)
            .stderr(Stdio::piped());
        Self::of(&mut command, |line| {
            let (_, rest) = line.split_once("\"clients\":\"http://")?;
            rest[..rest.find("/v1")?].parse().ok()
        })
    }

    /// Starts another proxy, and waits until it answers a request.
    fn of_other(kind: Kind, command: &mut Command, address: SocketAddr) -> Self {
        // LiteLLM would wait for a price list from the network, and refuses to start without API keys.
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        command.env(
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY",
            "true",
        );
        let mut subject = Self {
            child: command.spawn().unwrap(),
            address,
        };
        while !answers(subject.address).unwrap_or(false) {
            assert_eq!(
                subject.child.try_wait().unwrap(),
                None,
                "{} has ended",
                kind.as_str()
            );
            thread::sleep(Duration::from_millis(50));
        }
        subject
    }

    /// Starts the process of a subject. Waits until `address` finds the subject's address in a line of its
    /// output.
    fn of(command: &mut Command, address: impl Fn(&str) -> Option<SocketAddr>) -> Self {
        let mut child = command.spawn().unwrap();
        let lines: Box<dyn BufRead + Send> = match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), _) => Box::new(BufReader::new(stdout)),
            (None, stderr) => Box::new(BufReader::new(stderr.unwrap())),
        };
        let mut lines = lines.lines().map_while(Result::ok);
        let address = lines.find_map(|line| address(&line)).unwrap();
        thread::spawn(move || lines.for_each(drop));
        // Meanwhile, the gateway scrapes its backends for the first time.
        thread::sleep(Duration::from_millis(500));
        Self { child, address }
    }

    /// CPU time of all threads of the subject since its start.
    pub(crate) fn cpu(&self) -> Duration {
        self.processes().into_iter().map(cpu::of).sum()
    }

    /// Returns the resident memory of the measured proxy in KiB.
    pub(crate) fn resident(&self) -> f64 {
        let resident = |process| -> f64 {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("VmRSS:"))
                .unwrap();
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        self.processes().into_iter().map(resident).sum()
    }

    /// The ids of the process and of its children, such as the workers of nginx.
    fn processes(&self) -> Vec<u32> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|child| child.parse().ok());
        std::iter::once(id).chain(children).collect()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // The process can have exited already. SIGTERM instead of SIGKILL, because nginx must handle the
        // signal to end its workers.
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        thread::sleep(Duration::from_millis(100));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a proxy answers a small request with the response of the backend.
fn answers(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(clients::whole(0).as_bytes())?;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin)?;
    Ok(begin == *b"HTTP/1.1 200")
}

/// The gateway: the program in `PASSTHROUGH_PROGRAM`, or the one that was built with this bench.
fn program() -> PathBuf {
    std::env::var_os("PASSTHROUGH_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_tokenweir").into(), PathBuf::from)
}

/// A command that runs `program` with one worker per core, and with no environment variable but `PATH` and
/// the number of workers.
fn on_its_cores(cores: usize, program: &Path) -> Command {
    let has_taskset = Command::new("taskset").arg("--version").output().is_ok();
    let mut command = if has_taskset {
        let mut taskset = Command::new("taskset");
        let (subject, other) = pinned_cores();
        let used = if cores == 1 {
            subject
        } else {
            format!("{subject},{other}")
        };
        taskset.args(["-c", &used]).arg(program);
        taskset
    } else {
        Command::new(program)
    };
    command
        .env_clear()
        .env("PATH", servers::search_path())
        .env("TOKIO_WORKER_THREADS", cores.to_string());
    command
}

fn configuration(kind: Kind, backends: &[SocketAddr]) -> String {
    let has_metrics = kind != Kind::Off;
    let has_log = matches!(kind, Kind::Log | Kind::All);
    let collector = if matches!(kind, Kind::Traces | Kind::All) {
        let endpoint = backends[0];
        format!("tracing: {{ endpoint: \"http://{endpoint}\", protocol: http/protobuf }}\n")
    } else {
        String::new()
    };
    // The cost of scrapes depends on time and not on requests. For a large fleet, long intervals keep it out
    // of the cost of requests.
    let scrape = if backends.len() > MAX_SCRAPED_BACKENDS {
        "scrape: { min_interval: 1m, max_interval: 1m }\n"
    } else {
        ""
    };
    let level = if has_metrics { "standard" } else { "null" };
    let backend = |backend: &SocketAddr| format!("{{ url: \"http://{backend}\" }}");
    let backends = backends.iter().map(backend).collect::<Vec<_>>().join(", ");
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{backends}]\n\
         usage: passive\nadmission: {{ enabled: false }}\nmetrics: {{ level: {level} }}\n\
         log: {{ access: {has_log}, format: json }}\n{scrape}{collector}"
    )
}
