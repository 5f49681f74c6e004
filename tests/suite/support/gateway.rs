//! A gateway inside the test, on real sockets, whose records the test receives.

use arc_swap::ArcSwap;
use http::HeaderName;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir::admin::{Admin, Configuration, Guard};
use tokenweir::backend::pool::Pool;
use tokenweir::backend::routes::Named;
use tokenweir::backend::{Backend, Keeper, watch};
use tokenweir::config;
use tokenweir::proxy::access::Access;
use tokenweir::proxy::admission::{self, Admission};
use tokenweir::proxy::retry::{self, Retry};
use tokenweir::proxy::{BodyMemory, Gate, GateLimits, Gateway, KeptText};
use tokenweir::server::{self, Connections, Drained, Limits, Server, Tls};
use tokenweir::telemetry::Telemetry;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::capture::{self, Capture, Counter};
use tokenweir::telemetry::content;
use tokenweir::telemetry::explain::Explanations;
use tokenweir::telemetry::metric::Known;
use tokenweir::telemetry::prometheus::Prometheus;
use tokenweir::telemetry::push;
use tokenweir::telemetry::quality::{self, Quality};
use tokenweir::telemetry::recent::Recent;
use tokenweir::telemetry::vitals::{LogCounts, SpanCounts};
use tokenweir_core::address::Address;
use tokenweir_core::observe::{self, Live, Sink};
use tokenweir_core::record::{Kept, RequestRecord, Tiers};
use tokenweir_core::resilience;
use tokenweir_core::routing::{Policy, PolicyKind};
use tokenweir_core::slo::Objective;
use tokenweir_core::trace_context::Propagation;
use tokenweir_diagnose::Board;
use tokenweir_net::client::{self, Client};
use tokenweir_net::descriptors::Descriptors;
use tokenweir_net::tls::Outbound;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

/// A running gateway.
pub(crate) struct Running {
    /// Where clients connect.
    pub addr: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// Its replicas.
    pub pool: Arc<Pool>,
    records: Mutex<mpsc::UnboundedReceiver<RequestRecord>>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<Drained>>,
    /// Counts what the capture has written.
    capture: Option<Counter>,
    _capturing: std::sync::Mutex<Option<capture::Running>>,
    _sampling: std::sync::Mutex<Option<quality::Running>>,
    _keeper: Keeper,
}

/// How a test's gateway differs from the default.
pub(crate) struct Setup {
    /// Longest wait for a response head.
    pub header_timeout: Duration,
    /// Longest request body.
    pub max_body: usize,
    /// The memory of all of them together.
    pub body_memory: Arc<BodyMemory>,
    /// Longest pause in one.
    pub body_idle: Duration,
    /// What clients may have and take.
    pub limits: Limits,
    /// What is let in.
    pub gate: GateLimits,
    /// The file descriptors of connections to the backends.
    pub descriptors: Descriptors,
    /// TLS of both ports.
    pub tls: Tls,
    /// TLS towards the replicas. `None`: they have none.
    pub outbound: Option<Arc<Outbound>>,
    /// Longest wait for streams at the end.
    pub drain: Duration,
    /// The policy.
    pub policy: Policy,
    /// Names of models.
    pub models: Vec<Named>,
    /// Models of replicas that are label values.
    pub max_models: usize,
    /// Policies that are asked too.
    pub shadow: Vec<PolicyKind>,
    /// Decisions that are kept.
    pub explain_ring: usize,
    /// How trace context comes in and goes on.
    pub propagation: Option<Propagation>,
    /// Whether usage is asked for.
    pub injects_usage: bool,
    /// The share of streams whose events are counted.
    pub continuous_usage: f64,
    /// What is looked for.
    pub observation: observe::Settings,
    /// When requests wait.
    pub admission: Option<admission::Settings>,
    /// Who may come in.
    pub access: Arc<Access>,
    /// Who may see the admin port.
    pub guard: Guard,
    /// How the tier of a request is told.
    pub tiers: Tiers,
    /// Labels that are known from the start.
    pub known: Known,
    /// The bounds of histograms.
    pub buckets: Buckets,
    /// What is promised.
    pub slos: Vec<Objective>,
    /// How often replicas are looked at.
    pub look_every: Duration,
    /// The headers that name a session.
    pub session_headers: Vec<HeaderName>,
    /// The share of requests that are captured.
    pub captured: f64,
    /// Where they are written.
    pub capture: Option<PathBuf>,
    /// How often requests are sent again.
    pub retry: retry::Settings,
    /// When replicas are ejected.
    pub health: resilience::Settings,
    /// How long a first output is waited for.
    pub first_output: Option<Duration>,
    /// What is the matter with the replicas.
    pub diagnosis: Arc<Board>,
    /// Whether answers are as good as they were.
    pub quality: quality::Settings,
}

struct Tap(mpsc::UnboundedSender<RequestRecord>);

impl Sink for Tap {
    fn judge(&self, record: &RequestRecord) -> Option<Kept> {
        record.trace.as_ref().filter(|trace| trace.is_sampled).map(|_| Kept::Sampled)
    }

    fn finished(&self, record: &RequestRecord) {
        // The test may have ended.
        let _ = self.0.send(record.clone());
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(20),
            max_body: 1 << 20,
            body_memory: Arc::default(),
            body_idle: Duration::from_secs(30),
            limits: Limits { head_timeout: Duration::from_secs(30), ..Limits::default() },
            gate: GateLimits::default(),
            descriptors: Descriptors::default(),
            tls: Tls::default(),
            outbound: None,
            drain: Duration::from_secs(5),
            policy: Policy::default(),
            models: Vec::new(),
            max_models: config::Metrics::default().max_models,
            shadow: Vec::new(),
            explain_ring: 1_024,
            propagation: None,
            injects_usage: false,
            continuous_usage: 0.0,
            observation: observe::Settings::default(),
            admission: Some(waiting_room(&config::Admission::default())),
            access: Arc::default(),
            guard: Guard::default(),
            tiers: Tiers::default(),
            known: Known::default(),
            buckets: Buckets::default(),
            slos: Vec::new(),
            look_every: Duration::from_millis(20),
            session_headers: Vec::new(),
            captured: 0.0,
            capture: None,
            retry: retry::Settings::default(),
            health: resilience::Settings { slow_start: Duration::ZERO, ..Default::default() },
            first_output: None,
            diagnosis: Arc::default(),
            quality: quality::Settings::default(),
        }
    }
}

/// The waiting room that a configuration describes.
pub(crate) fn waiting_room(configured: &config::Admission) -> admission::Settings {
    admission::Settings {
        marks: configured.marks(),
        places: configured.room,
        max_wait: configured.max_wait,
        classes: configured.classes(),
        tenant_header: configured.tenant_header.as_ref().map(|name| name.parse().unwrap()),
    }
}

/// Starts a gateway in front of these replicas and waits until it has looked at them.
pub(crate) async fn start(backends: &[SocketAddr]) -> Running {
    start_with(backends, Setup::default()).await
}

/// The replicas, which have not been looked at.
fn pool(backends: &[SocketAddr], setup: &Setup) -> Arc<Pool> {
    let backend = |addr: &SocketAddr| {
        let scheme = if setup.outbound.is_some() { "https" } else { "http" };
        let address = Address::parse(&format!("{scheme}://{addr}")).unwrap();
        Backend::new(address.default_id(), address, None)
            .with_usage_injection(setup.injects_usage)
            .with_continuous_usage(setup.continuous_usage)
            .with_health(setup.health)
    };
    let backends = backends.iter().map(backend).collect();
    let pool = Pool::new(backends, &setup.models, setup.policy)
        .with_panic_threshold(setup.health.panic_threshold)
        .with_most_labels(setup.max_models);
    Arc::new(pool.with_shadow(&setup.shadow))
}

/// The way to the replicas.
fn client(setup: &Setup) -> Client {
    let limits = client::Limits {
        connect: Duration::from_secs(2),
        headers: setup.header_timeout,
        first_output: setup.first_output,
        idle: Duration::from_secs(3),
    };
    let client = match &setup.outbound {
        Some(outbound) => Client::with_tls(limits, outbound.clone()),
        None => Client::new(limits),
    };
    client.with_descriptors(setup.descriptors.clone())
}

/// Starts a gateway that differs from the default.
#[expect(clippy::too_many_lines, reason = "each part of a gateway stands once")]
pub(crate) async fn start_with(backends: &[SocketAddr], setup: Setup) -> Running {
    let pool = pool(backends, &setup);
    let client = client(&setup);
    let (sender, records) = mpsc::unbounded_channel();
    let prometheus = Prometheus::new(setup.known, &setup.buckets, setup.slos);
    let explanations = Arc::new(Explanations::new(setup.explain_ring));
    let capture = setup.capture.map(|file| Capture::start(&file, 1 << 20).unwrap());
    let (capture, capturing) = capture.unzip();
    let counter = capture.as_ref().map(Capture::counter);
    let mut sinks: Vec<Arc<dyn Sink>> =
        vec![pool.clone(), explanations.clone(), setup.access.clone()];
    sinks.extend(capture.map(|capture| Arc::new(capture) as Arc<dyn Sink>));
    let recent = Arc::new(Recent::new(std::time::Instant::now()));
    sinks.extend([recent.clone() as Arc<dyn Sink>, Arc::new(Tap(sender))]);
    let texts = content::Settings::default();
    let (quality, sampling) = Quality::start(&setup.quality, &texts).unwrap().unzip();
    sinks.extend(quality.clone().map(|quality| Arc::new(quality) as Arc<dyn Sink>));
    let share = setup.quality.share();
    let kept_text = KeptText { log: 0.0, quality: share, bytes: texts.room() };
    let telemetry = Arc::new(Telemetry::new(prometheus, sinks));
    let settings = watch::Settings {
        min_interval: setup.look_every,
        max_interval: setup.look_every,
        timeout: Duration::from_secs(1),
        max_page: 1 << 20,
    };
    let keeper =
        server::watch_all(&pool, &client, settings, &telemetry, Duration::from_secs(10)).await;
    let admission = Arc::new(Admission::new(pool.clone(), setup.admission));
    let live = Live::new(setup.observation, std::time::Instant::now());
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let gate = Arc::new(Gate::new(setup.gate));
    let limits = Limits { drain: setup.drain, ..setup.limits };
    let connections = Connections::new(&limits, gate.clone());
    let counted = connections.clone();
    let server = Server {
        clients: server::bind(local, "clients").unwrap(),
        operators: server::bind(local, "operators").unwrap(),
        gateway: Arc::new(ArcSwap::from_pointee(Gateway {
            pool: pool.clone(),
            access: setup.access.clone(),
            admission: admission.clone(),
            client,
            retry: Retry::new(setup.retry),
            first_output: setup.first_output,
            sink: telemetry.clone(),
            max_body: setup.max_body,
            body_memory: setup.body_memory.clone(),
            body_idle: setup.body_idle,
            gate,
            propagation: setup.propagation,
            tiers: setup.tiers,
            live: live.clone(),
            session_headers: setup.session_headers,
            captured: setup.captured,
            kept_text: (share > 0.0).then_some(kept_text),
        })),
        admin: Arc::new(Admin {
            diagnosis: setup.diagnosis,
            guard: setup.guard,
            recent,
            trace_ui: None,
            pool: pool.clone(),
            access: setup.access,
            admission,
            telemetry,
            explanations,
            live,
            body_memory: setup.body_memory,
            draining: Arc::new(AtomicBool::new(false)),
            spans: Box::new(SpanCounts::default),
            capture: counter.clone(),
            logs: Arc::new(LogCounts::default),
            quality,
            pushes: push::Counter::default(),
            connections: Box::new(move || counted.vitals()),
            credentials: setup.tls.credentials.clone(),
            configuration: Configuration::new(serde_json::Value::Null, UNIX_EPOCH).0,
        }),
        limits: Arc::new(ArcSwap::from_pointee(limits)),
        connections,
        tls: setup.tls,
    };
    let (addr, admin) =
        (server.clients.local_addr().unwrap(), server.operators.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running {
        addr,
        admin,
        pool,
        records: Mutex::new(records),
        stop: Some(stop),
        serving: Some(serving),
        capture: counter,
        _capturing: std::sync::Mutex::new(capturing),
        _sampling: std::sync::Mutex::new(sampling.flatten()),
        _keeper: keeper,
    }
}

impl Running {
    /// The record of the next request that ends.
    pub(crate) async fn record(&self) -> RequestRecord {
        self.records.lock().await.recv().await.expect("a request ends")
    }

    /// The records that are there.
    pub(crate) async fn take_records(&self) -> Vec<RequestRecord> {
        let mut records = self.records.lock().await;
        std::iter::from_fn(|| records.try_recv().ok()).collect()
    }

    /// Fails if a record is there that no test step has taken.
    pub(crate) async fn assert_no_more_records(&self) {
        assert!(self.records.lock().await.try_recv().is_err(), "one record for each request");
    }

    /// Waits until the capture has written so many lines.
    pub(crate) async fn captured(&self, lines: u64) {
        let counter = self.capture.as_ref().expect("a capture");
        while counter.counts().written < lines {
            tokio::task::yield_now().await;
        }
    }

    /// Sends raw bytes and reads until the gateway closes the connection.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = self.connect().await;
        stream.write_all(request.as_ref()).await.unwrap();
        let mut answer = Vec::new();
        // A cut connection may end in a reset; what came before it counts.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    /// A connection to the clients' port.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Posts JSON on a connection of its own.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Vec<u8> {
        self.raw(post(path, body)).await
    }

    /// Gets a page of the admin port as text.
    pub(crate) async fn admin(&self, path: &str) -> String {
        self.admin_as(path, "*/*").await
    }

    /// Gets it in a form that is wished for.
    pub(crate) async fn admin_as(&self, path: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let head = format!("host: localhost\r\naccept: {accept}\r\nconnection: close");
        let request = format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }

    /// Tells the gateway to stop and waits until it has.
    pub(crate) async fn stop(&mut self) -> Drained {
        self.begin_stop();
        self.serving.take().unwrap().await.unwrap()
    }

    /// Tells the gateway to stop.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// A JSON POST that asks for the connection to be closed after it.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Moves the clock of the gateway forward.
pub(crate) async fn pass_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Runs something while the clock of the gateway stands still, however slow the machine is.
pub(crate) async fn at_one_moment<T>(doing: impl Future<Output = T>) -> T {
    // A paused clock jumps to the next timer when all tasks wait, but not while a blocking task runs.
    let (done, until_done) = std::sync::mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || until_done.recv());
    tokio::time::pause();
    let result = doing.await;
    tokio::time::resume();
    drop(done);
    assert!(blocking.await.unwrap().is_err());
    result
}

/// The status of a raw answer.
pub(crate) fn status(answer: &[u8]) -> u16 {
    let head = String::from_utf8_lossy(answer);
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// The body of a raw answer, without chunk framing, and whether it ended as HTTP says.
pub(crate) fn body(answer: &[u8]) -> (Vec<u8>, bool) {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let mut rest = &answer[end..];
    if !head.contains("transfer-encoding: chunked") {
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
        return (rest.to_vec(), length.is_none_or(|length| length == rest.len()));
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        let data = &rest[line + 2..];
        body.extend_from_slice(&data[..size.min(data.len())]);
        rest = data.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}
