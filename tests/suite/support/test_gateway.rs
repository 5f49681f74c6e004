//! A gateway inside the test process, on real sockets. The test receives the record of each request.

use crate::support::chunked_body::chunks;
use crate::support::scripted_backend::{ScriptedBackend, Seen, Step};
use arc_swap::ArcSwap;
use http::{HeaderName, HeaderValue};
use std::any::Any;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir::admin::{ActiveConfiguration, Admin, AdminAuthorizer, Timeline};
use tokenweir::app::metrics::metric_rows;
use tokenweir::app::options::{self, AttachedOptions, start_context};
use tokenweir::config::{self, BackendConfig, Config};
use tokenweir_continuation::ContinuationSettings;
use tokenweir_diagnose::Diagnosis;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_engine::role::Role;
use tokenweir_gateway::backend::facets::PoolFacets;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_gateway::backend::{
    Backend, BackendSettings, HealthCheckSupervisor, PoolSettings, health_checker,
};
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_gateway::proxy::{
    BodyMemory, ConfiguredRoutes, IdentityReader, OverloadGuard, OverloadLimits, ProxyContext,
    ProxySettings, RecordingSettings, RequestSettings, StoredResponses,
};
use tokenweir_gateway::proxy::{admission, retry};
use tokenweir_gateway::server::{
    self, ConnectionLimiter, DrainOutcome, Server, ServerLimits, ServerState, ServerTls,
};
use tokenweir_gateway::status::StatusSource;
use tokenweir_gateway::telemetry::Telemetry;
use tokenweir_gateway::telemetry::decision_log::DecisionLog;
use tokenweir_gateway::telemetry::metrics_registry::{
    BucketOverrides, MetricsLevel, MetricsSettings, Prometheus,
};
use tokenweir_gateway::telemetry::otel::Semconv;
use tokenweir_gateway::telemetry::recent_requests::RecentRequests;
use tokenweir_gpu::{GpuExporter, GpuSettings};
use tokenweir_kv_event_routing::KvEventsSettings;
use tokenweir_net::client::{self, HttpClient};
use tokenweir_net::file_descriptors::FileDescriptorPool;
use tokenweir_net::tls::OutboundTls;
use tokenweir_option::OptionParts;
use tokenweir_protocol::atomic::AtomicInstant;
use tokenweir_protocol::trace_context::Propagation;
use tokenweir_quality::QualitySettings;
use tokenweir_request::access::KeyDigest;
use tokenweir_request::observe::{self, Sink};
use tokenweir_request::record::{RequestRecord, SampleReason, TierResolver};
use tokenweir_request::runs::RunSettings;
use tokenweir_request::slo::Objective;
use tokenweir_resume::ResumeConfig;
use tokenweir_routing::Policy;
use tokenweir_routing::resilience;
use tokenweir_sessions::SessionSettings;
use tokenweir_trace_capture::TraceCaptureConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) const CHAT: &str = "/v1/chat/completions";
/// The body of a chat request.
pub(crate) const ASK: &str = r#"{"model":"tiny","messages":[]}"#;
/// The body of a chat request for a stream.
pub(crate) const ASK_STREAM: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;
/// A whole chat response that is not a stream.
pub(crate) const WHOLE: &str = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

pub(crate) struct Running {
    /// Address of the client listener.
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    pub pool: Arc<BackendPool>,
    /// The counter of the memory of all request bodies.
    pub body_memory: Arc<BodyMemory>,
    records: Mutex<mpsc::UnboundedReceiver<RequestRecord>>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<DrainOutcome>>,
    _guards: std::sync::Mutex<Vec<Guard>>,
    _health_checks: HealthCheckSupervisor,
}

pub(crate) struct Setup {
    /// Maximum time from a request to the response headers of a backend.
    pub header_timeout: Duration,
    /// Maximum size of a request body in bytes.
    pub max_body: usize,
    /// The memory limit for all request bodies together, in bytes.
    pub body_memory: usize,
    /// Maximum pause between two parts of a request body.
    pub body_idle: Duration,
    /// Maximum time without a byte on a WebSocket connection.
    pub websocket_idle: Duration,
    /// Limits of the listeners, such as timeouts and numbers of connections.
    pub limits: ServerLimits,
    /// The load from which on the gateway rejects requests because it is itself overloaded.
    pub gate: OverloadLimits,
    /// The file descriptors that connections to backends may use.
    pub descriptors: FileDescriptorPool,
    /// TLS settings of both listeners.
    pub tls: ServerTls,
    /// TLS settings towards the backends. `None`: the gateway uses plain HTTP.
    pub outbound: Option<Arc<OutboundTls>>,
    /// Maximum time that a shutdown waits for open requests.
    pub drain: Duration,
    pub policy: Policy,
    /// Models with their aliases.
    pub models: Vec<ModelConfig>,
    /// Maximum number of model names from backends that become label values.
    pub max_models: usize,
    /// How the gateway propagates the trace context to backends. `None`: it does not.
    pub propagation: Option<Propagation>,
    /// Whether the gateway requests usage for streams whose clients do not request it.
    pub injects_usage: bool,
    /// Share of streams, from 0 to 1, for which the gateway requests continuous usage.
    pub continuous_usage: f64,
    pub observation: observe::ObservationSettings,
    /// Admission settings. `None`: the gateway has no admission queue.
    pub admission: Option<admission::AdmissionSettings>,
    /// Admission by live sessions.
    pub sessions: SessionSettings,
    pub access: Arc<AccessControl>,
    /// Access control of the admin listener.
    pub guard: AdminAuthorizer,
    /// How the gateway determines the tier of a request.
    pub tiers: TierResolver,
    /// A path in the URL of each backend, which precedes the path of a request.
    pub prefix: &'static str,
    /// URL of the metrics page of each backend. `None`: the page is at the URL of the backend.
    pub metrics_url: Option<MetricsUrl>,
    /// The API key with which the gateway authenticates at the backends. `None`: it forwards the
    /// `authorization` header of the client.
    pub backend_key: Option<&'static str>,
    pub gpus: Option<u32>,
    /// Price of one GPU for one hour, without a currency.
    pub gpu_hour_price: Option<f64>,
    /// The GPU exporters, which the gateway scrapes every 100 ms.
    pub gpu_exporters: Vec<GpuExporter>,
    /// The reader of user, session and conversation in requests.
    pub identities: IdentityReader,
    pub level: MetricsLevel,
    /// Buckets of histograms that differ from the defaults.
    pub buckets: BucketOverrides,
    /// The service level objectives whose fulfilment the metrics report.
    pub slos: Vec<Objective>,
    /// Interval between two scrapes of a backend.
    pub scrape_interval: Duration,
    /// The request headers in which the gateway looks for the session id.
    pub session_headers: Vec<HeaderName>,
    /// Settings for resumption: a client that lost its connection may repeat its request. `None`: it may not.
    pub resume: Option<RunSettings>,
    /// Settings of the continuation of streams at other backends.
    pub continuation: ContinuationSettings,
    /// Share of the requests, from 0 to 1, that the trace capture records.
    pub captured: f64,
    /// The file of the trace capture. `None`: the gateway captures no trace.
    pub capture: Option<PathBuf>,
    pub retry: retry::RetrySettings,
    pub health: resilience::CircuitBreakerSettings,
    /// Maximum time from a request to its first output. `None`: no limit.
    pub first_output: Option<Duration>,
    /// Maximum time of a whole request. `None`: no limit.
    pub total: Option<Duration>,
    /// Paths that the configuration adds.
    pub routes: ConfiguredRoutes,
    /// The diagnosis whose verdicts the gateway reports.
    pub diagnosis: Arc<ArcSwap<Diagnosis>>,
    pub quality: QualitySettings,
    pub kv_events: KvEventsSettings,
    /// Age after which a pooled connection gets no further request. `None`: the default.
    pub connection_age: Option<Duration>,
    /// Changes the settings of options. An option needs no other field here.
    pub options: Box<dyn Fn(&mut Config) + Send + Sync>,
    /// Whether the data-parallel ranks of backends are targets of routing.
    pub data_parallel_ranks: bool,
    /// The roles of the first backends (prefill or decode), in order. The remaining backends have no role.
    pub roles: &'static [Role],
}

/// The guard of the worker of a sink. When it is dropped, the worker ends.
type Guard = Box<dyn Any + Send>;

struct RecordingSink(mpsc::UnboundedSender<RequestRecord>);

impl Sink for RecordingSink {
    fn sample_reason(&self, record: &RequestRecord) -> Option<SampleReason> {
        record
            .trace
            .as_ref()
            .filter(|trace| trace.is_sampled)
            .map(|_| SampleReason::Sampled)
    }

    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            // Sending fails if the test has ended already.
            let _ = self.0.send((*record).clone());
        }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(20),
            max_body: 1 << 20,
            body_memory: usize::MAX,
            body_idle: Duration::from_secs(30),
            websocket_idle: Duration::from_mins(5),
            limits: ServerLimits {
                head_timeout: Duration::from_secs(30),
                ..ServerLimits::default()
            },
            gate: OverloadLimits::default(),
            descriptors: FileDescriptorPool::default(),
            tls: ServerTls::default(),
            outbound: None,
            drain: Duration::from_secs(5),
            policy: Policy::default(),
            models: Vec::new(),
            max_models: config::MetricsConfig::default().max_models,
            propagation: None,
            injects_usage: false,
            continuous_usage: 0.0,
            observation: observe::ObservationSettings::default(),
            admission: Some(admission_settings(&config::AdmissionConfig::default())),
            sessions: SessionSettings::default(),
            access: Arc::default(),
            guard: AdminAuthorizer::default(),
            tiers: TierResolver::default(),
            prefix: "",
            metrics_url: None,
            backend_key: None,
            gpus: None,
            gpu_hour_price: None,
            gpu_exporters: Vec::new(),
            identities: IdentityReader::default(),
            level: MetricsLevel::Full,
            buckets: BucketOverrides::default(),
            slos: Vec::new(),
            scrape_interval: Duration::from_millis(20),
            session_headers: Vec::new(),
            resume: None,
            continuation: ContinuationSettings {
                memory_bytes: 64 << 20,
                ..ContinuationSettings::default()
            },
            captured: 0.0,
            capture: None,
            retry: retry::RetrySettings::default(),
            health: resilience::CircuitBreakerSettings {
                slow_start: Duration::ZERO,
                ..Default::default()
            },
            first_output: None,
            total: None,
            routes: ConfiguredRoutes::default(),
            diagnosis: Arc::default(),
            quality: QualitySettings::default(),
            kv_events: KvEventsSettings {
                enabled: Some(false),
                ..Default::default()
            },
            connection_age: None,
            options: Box::new(|_| {}),
            data_parallel_ranks: false,
            roles: &[],
        }
    }
}

/// Derives the admission settings from a configuration, as the gateway does.
pub(crate) fn admission_settings(
    configured: &config::AdmissionConfig,
) -> admission::AdmissionSettings {
    let config = Config {
        admission: configured.clone(),
        ..Config::default()
    };
    let settings = config
        .proxy_settings(None, |_| None)
        .unwrap()
        .admission
        .unwrap();
    // Without a configured wait, a request does not wait for a backend, so that a refusal comes at once.
    let max_backend_wait = configured.max_backend_wait.unwrap_or_default();
    admission::AdmissionSettings {
        max_backend_wait,
        ..settings
    }
}

/// Builds the access control of an admin listener that requires the token `operator`.
pub(crate) fn operator_token() -> AdminAuthorizer {
    let token_digest = Some(KeyDigest::from_key(b"operator"));
    AdminAuthorizer {
        token_digest,
        ..AdminAuthorizer::default()
    }
}

/// Builds the tiers with these names. A request names its tier in the header `x-tier`.
pub(crate) fn tiers(names: &[&str]) -> TierResolver {
    TierResolver {
        priorities: BTreeMap::new(),
        header: Some("x-tier".parse().unwrap()),
        names: names.iter().map(|name| (*name).into()).collect(),
    }
}

/// Starts a gateway in front of these backends, and waits until it has scraped each of them.
pub(crate) async fn start(backends: &[SocketAddr]) -> Running {
    start_with(backends, Setup::default()).await
}

/// Starts a gateway with these settings in front of these backends, as [`start`] does.
pub(crate) async fn start_before<B>(backends: &[B], setup: Setup) -> Running
where
    B: Borrow<ScriptedBackend>,
{
    let addresses: Vec<SocketAddr> = backends.iter().map(|it| it.borrow().addr).collect();
    start_with(&addresses, setup).await
}

/// Starts a backend that answers every inference request with these bytes, and a gateway in front of
/// it.
pub(crate) async fn gateway_answering(bytes: impl Into<Vec<u8>>) -> (ScriptedBackend, Running) {
    gateway_answering_with(Setup::default(), bytes).await
}

/// Like [`gateway_answering`], with these settings of the gateway.
pub(crate) async fn gateway_answering_with(
    setup: Setup,
    bytes: impl Into<Vec<u8>>,
) -> (ScriptedBackend, Running) {
    gateway_following_with(setup, [Step::Send(bytes.into())]).await
}

/// Starts a backend that follows this script, and a gateway in front of it.
pub(crate) async fn gateway_scripted(
    script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
) -> (ScriptedBackend, Running) {
    gateway_scripted_with(Setup::default(), script).await
}

/// Like [`gateway_scripted`], with these settings of the gateway.
pub(crate) async fn gateway_scripted_with(
    setup: Setup,
    script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static,
) -> (ScriptedBackend, Running) {
    let backend = ScriptedBackend::start(script).await;
    let gateway = start_with(&[backend.addr], setup).await;
    (backend, gateway)
}

/// Starts a backend that follows these steps for each inference request, and a gateway in front of it.
pub(crate) async fn gateway_following(steps: impl Into<Vec<Step>>) -> (ScriptedBackend, Running) {
    gateway_following_with(Setup::default(), steps).await
}

/// Like [`gateway_following`], with these settings of the gateway.
pub(crate) async fn gateway_following_with(
    setup: Setup,
    steps: impl Into<Vec<Step>>,
) -> (ScriptedBackend, Running) {
    let steps = steps.into();
    gateway_scripted_with(setup, move |_| steps.clone()).await
}

fn option_config(setup: &Setup) -> Config {
    let mut config = Config {
        kv_events: setup.kv_events,
        models: setup.models.clone(),
        slos: setup.slos.clone(),
        sessions: setup.sessions,
        quality: setup.quality.clone(),
        gpu: GpuSettings {
            exporters: setup.gpu_exporters.clone(),
            interval: Duration::from_millis(100),
            timeout: Duration::from_secs(1),
            max_page: 1 << 20,
        },
        trace_capture: TraceCaptureConfig {
            file: setup.capture.clone(),
            sample: setup.captured,
        },
        ..Config::default()
    };
    if let Some(runs) = setup.resume {
        config.streams.resume = ResumeConfig {
            window: Some(runs.window),
            memory: runs.memory,
        };
    }
    config.streams.continuation = setup.continuation.mode;
    config.streams.continuation_greedy_only = setup.continuation.is_greedy_only;
    config.limits.continuation_memory = setup.continuation.memory_bytes;
    config.routing.data_parallel_ranks = setup.data_parallel_ranks;
    config.cost.gpus = setup.gpus;
    config.cost.gpu_hour_price = setup.gpu_hour_price;
    (setup.options)(&mut config);
    config
}

/// Builds the backend pool of the gateway, before the first scrape.
fn pool(
    backends: &[SocketAddr],
    setup: &Setup,
    config: &Config,
    options: &AttachedOptions,
    facets: PoolFacets,
) -> Arc<BackendPool> {
    let backend = |(addr, role): (&SocketAddr, Option<Role>)| {
        let scheme = if setup.outbound.is_some() {
            "https"
        } else {
            "http"
        };
        let address = BackendAddress::parse(&format!("{scheme}://{addr}{}", setup.prefix)).unwrap();
        let key = setup.backend_key.map(HeaderValue::from_static);
        let facets = options.facets(config, &BackendConfig::at(address.clone()));
        let settings = BackendSettings {
            may_inject_usage: setup.injects_usage,
            continuous_usage_share: setup.continuous_usage,
            ..BackendSettings::default()
        };
        let mut backend = Backend::new(address.default_id(), address, key).with_settings(settings);
        backend.identity.metrics_url.clone_from(&setup.metrics_url);
        backend.facets.options = facets;
        backend.facets.role.set(role);
        backend.health.breaker.set(setup.health);
        backend
    };
    let roles = setup
        .roles
        .iter()
        .copied()
        .map(Some)
        .chain(std::iter::repeat(None));
    let backends = backends.iter().zip(roles).map(backend).collect();
    let settings = PoolSettings {
        models: setup.models.clone(),
        policy: setup.policy,
        panic_threshold: setup.health.panic_threshold,
        max_model_labels: setup.max_models,
    };
    Arc::new(BackendPool::with_facets(backends, &settings, facets))
}

/// Builds the HTTP client with which the gateway sends requests to backends.
fn client(setup: &Setup) -> HttpClient {
    let defaults = client::HttpClientTimeouts::default();
    let limits = client::HttpClientTimeouts {
        connect: Duration::from_secs(2),
        response_headers: setup.header_timeout,
        first_output: setup.first_output,
        total: None,
        idle_connection: Duration::from_secs(3),
        connection_age: setup.connection_age.or(defaults.connection_age),
        ..defaults
    };
    let mut client = match &setup.outbound {
        Some(outbound) => HttpClient::with_tls(limits, outbound.clone()),
        None => HttpClient::new(limits),
    };
    client.descriptors = setup.descriptors.clone();
    client
}

/// Like [`start`], with these settings.
#[expect(clippy::too_many_lines, reason = "the list of all parts of a gateway")]
pub(crate) async fn start_with(backends: &[SocketAddr], setup: Setup) -> Running {
    let config = Box::new(option_config(&setup));
    let mut parts = OptionParts::default();
    let no_env = |_: &str| None;
    let start = start_context(&config, &no_env);
    let options = Arc::new(AttachedOptions::start(&config, &start, &mut parts).unwrap());
    let OptionParts {
        records: option_records,
        pool_facets,
        drivers,
        quota_scope: _,
        gateway: mut parts,
    } = parts;
    let pool_facets = PoolFacets(pool_facets);
    let pool = pool(backends, &setup, &config, &options, pool_facets);
    let client = client(&setup);
    let (sender, records) = mpsc::unbounded_channel();
    let prometheus = Prometheus::with_settings(MetricsSettings {
        rows: metric_rows().collect(),
        level: setup.level,
        semconv: Semconv::default(),
        tiers: setup.tiers.names.iter().map(ToString::to_string).collect(),
        buckets: setup.buckets,
        objectives: setup.slos,
    });
    let decisions = Arc::new(DecisionLog::new(1_024, options::decision_parts()));
    let stored_responses = Arc::<StoredResponses>::default();
    let mut sinks: Vec<Arc<dyn Sink>> = vec![
        pool.clone(),
        decisions.clone(),
        setup.access.clone(),
        stored_responses.clone(),
    ];
    sinks.extend(option_records.immediate_sinks);
    sinks.extend(option_records.sinks);
    let recent = Arc::new(RecentRequests::new(std::time::Instant::now(), Vec::new()));
    sinks.push(recent.clone());
    sinks.push(Arc::new(RecordingSink(sender)));
    let telemetry = Arc::new(Telemetry::new(prometheus, sinks));
    let settings = health_checker::ScrapeSettings {
        min_interval: setup.scrape_interval,
        max_interval: setup.scrape_interval,
        timeout: Duration::from_secs(1),
        max_page: 1 << 20,
    };
    let health_checks = HealthCheckSupervisor::new(
        pool.clone(),
        client.clone(),
        settings,
        telemetry.clone(),
        drivers,
    );
    health_checks
        .wait_first_checks(Duration::from_secs(10))
        .await;
    let overload_guard = Arc::new(OverloadGuard::new(setup.gate));
    let limits = ServerLimits {
        drain_timeout: setup.drain,
        ..setup.limits
    };
    let connection_limiter = ConnectionLimiter::new(&limits, overload_guard.clone());
    let settings = ProxySettings {
        requests: RequestSettings {
            first_output_timeout: setup.first_output,
            total_timeout: setup.total,
            routes: setup.routes,
            max_body_bytes: setup.max_body,
            body_idle_timeout: setup.body_idle,
            websocket_idle_timeout: setup.websocket_idle,
            tiers: setup.tiers,
            identities: setup.identities,
            session_headers: setup.session_headers,
        },
        retry: setup.retry,
        admission: setup.admission,
        body_memory_bytes: setup.body_memory,
        observation: setup.observation,
    };
    let recording = RecordingSettings {
        start_log: None,
        propagation: setup.propagation,
        text_sampling: option_records.text_sampling,
    };
    let mut proxy = ProxyContext::new(
        settings,
        pool.clone(),
        setup.access,
        stored_responses,
        overload_guard,
        telemetry,
        client.clone(),
    );
    proxy.state.recording = recording;
    options.join(&config, &mut proxy, &mut parts).unwrap();
    let mut status_sources = Vec::<StatusSource>::new();
    status_sources.push(Arc::new(move |status, now| options.add_status(status, now)));
    let body_memory = proxy.state.body_memory.clone();
    let (counted, credentials) = (connection_limiter.clone(), setup.tls.credentials.clone());
    status_sources.push(Arc::new(move |status, _| {
        status.connections = counted.snapshot();
    }));
    status_sources.push(Arc::new(move |status, _| {
        status.certificates = credentials.counts();
    }));
    let admin = Arc::new(Admin {
        authorizer: setup.guard,
        proxy: proxy.state.clone(),
        decisions,
        recent_requests: recent,
        status_sources,
        diagnosis: setup.diagnosis,
        timeline: Timeline::default(),
        configuration: ActiveConfiguration::new(serde_json::Value::Null, UNIX_EPOCH).0,
        trace_ui_url: None,
        metrics_read_at: AtomicInstant::default(),
        tasks: options::background_tasks(),
    });
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server {
        client_listener: server::bind_listener(local, "clients").unwrap(),
        admin_listener: server::bind_listener(local, "operators").unwrap(),
        state: ServerState::new(proxy, limits, connection_limiter),
        admin_router: tokenweir::admin::router(admin),
        tls: setup.tls,
    };
    let (addr, admin) = (
        server.client_listener.local_addr().unwrap(),
        server.admin_listener.local_addr().unwrap(),
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running {
        addr,
        admin,
        pool,
        body_memory,
        records: Mutex::new(records),
        stop: Some(stop),
        serving: Some(serving),
        _guards: std::sync::Mutex::new(parts.guards),
        _health_checks: health_checks,
    }
}

impl Running {
    /// Waits for the end of the next request. Returns its record.
    pub(crate) async fn record(&self) -> RequestRecord {
        self.records
            .lock()
            .await
            .recv()
            .await
            .expect("a request ends")
    }

    /// Takes the records of ended requests that the test has not taken yet.
    pub(crate) async fn take_records(&self) -> Vec<RequestRecord> {
        let mut records = self.records.lock().await;
        std::iter::from_fn(|| records.try_recv().ok()).collect()
    }

    /// Fails if there is a record of a request that the test has not taken.
    pub(crate) async fn assert_no_more_records(&self) {
        assert!(
            self.records.lock().await.try_recv().is_err(),
            "exactly one record per request"
        );
    }

    /// Waits until the trace capture has written exactly this many lines.
    pub(crate) async fn captured(&self, lines: u64) {
        let written = format!("\ntokenweir_capture_records_total{{result=\"written\"}} {lines}\n");
        wait_until!(self.admin("/metrics").await.contains(&written));
    }

    /// Sends raw bytes on a new connection. Returns what the gateway sends until it closes the connection.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = self.connect().await;
        let mut answer = Vec::new();
        // The gateway may reject the request early and reset the connection. The bytes before that count.
        let _ = stream.write_all(request.as_ref()).await;
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    /// Opens a connection to the client listener.
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Posts JSON on a new connection. Returns the whole response as raw bytes.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Vec<u8> {
        self.raw(post(path, body)).await
    }

    /// Posts JSON on a new connection. Returns the connection, from which the test reads the response.
    pub(crate) async fn begin(&self, path: &str, body: &str) -> TcpStream {
        self.send(post(path, body)).await
    }

    /// Sends raw bytes on a new connection. Returns the connection, from which the test reads the response.
    pub(crate) async fn send(&self, request: impl AsRef<[u8]>) -> TcpStream {
        send_to(self.addr, request).await
    }

    /// Posts JSON on a new connection, and calls `release` when the response contains the text `begun`.
    /// Returns the whole response.
    pub(crate) async fn post_and_release(
        &self,
        path: &str,
        body: &str,
        begun: &str,
        release: impl FnOnce(),
    ) -> Vec<u8> {
        let mut client = self.begin(path, body).await;
        let mut answer = read_until(&mut client, begun).await;
        release();
        answer.extend(read_rest(client).await);
        answer
    }

    /// Fetches a page of the admin listener. Returns the whole response as text.
    pub(crate) async fn admin(&self, path: &str) -> String {
        self.get_admin_page_as(path, "*/*").await
    }

    /// Like [`Running::admin`], with this `accept` header.
    pub(crate) async fn get_admin_page_as(&self, path: &str, accept: &str) -> String {
        let page = self
            .get_admin_bytes(path, &format!("accept: {accept}"))
            .await;
        String::from_utf8(page).unwrap()
    }

    /// Fetches a page of the admin listener with this header line. Returns the whole response.
    pub(crate) async fn get_admin_bytes(&self, path: &str, header: &str) -> Vec<u8> {
        operate(self.admin, "GET", path, &format!("{header}\r\n")).await
    }

    /// Sends a POST to the admin listener, with the headers of the admin page. Returns the response.
    pub(crate) async fn change(&self, path: &str) -> Vec<u8> {
        operate(self.admin, "POST", path, AS_JSON).await
    }

    /// Fetches a JSON document of the admin listener.
    pub(crate) async fn document(&self, path: &str) -> serde_json::Value {
        let page = self.admin(path).await;
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Stops the gateway, waits for the end of open requests, and returns how the drain ended.
    pub(crate) async fn stop(&mut self) -> DrainOutcome {
        self.begin_stop();
        self.serving.take().unwrap().await.unwrap()
    }

    /// Starts the shutdown of the gateway without waiting.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

/// The header line that the admin listener requires in a request that changes something.
pub(crate) const AS_JSON: &str = "content-type: application/json\r\n";

/// Sends a request with these header lines to an admin listener. Returns the response, which is empty if the
/// listener is closed.
pub(crate) async fn operate(admin: SocketAddr, method: &str, path: &str, headers: &str) -> Vec<u8> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {admin}\r\n{headers}content-length: 0\r\n\
         connection: close\r\n\r\n"
    );
    let mut answer = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(admin).await
        && stream.write_all(request.as_bytes()).await.is_ok()
    {
        let _ = stream.read_to_end(&mut answer).await;
    }
    answer
}

/// Sends raw bytes to `addr` on a new connection. Returns the connection, from which the test reads the
/// response.
pub(crate) async fn send_to(addr: SocketAddr, request: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(request.as_ref()).await.unwrap();
    stream
}

/// Builds a GET request with `connection: close`.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
}

/// Builds a POST request with a JSON body and `connection: close`.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the text of `request` with these additional header lines.
pub(crate) fn with_lines(request: &str, lines: &str) -> String {
    request.replacen("\r\n", &format!("\r\n{lines}\r\n"), 1)
}

/// Reads a response until the gateway closes the connection.
pub(crate) async fn read_rest(mut client: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    rest
}

/// Reads a response until it contains this text. Returns the bytes that were read.
pub(crate) async fn read_until(client: &mut TcpStream, wanted: &str) -> Vec<u8> {
    read_until_times(client, wanted, 1).await
}

/// Reads a response until it contains this text this number of times. Returns the bytes that were read.
pub(crate) async fn read_until_times(
    client: &mut TcpStream,
    wanted: &str,
    times: usize,
) -> Vec<u8> {
    let mut answer = Vec::new();
    while String::from_utf8_lossy(&answer).matches(wanted).count() < times {
        let read = client.read_buf(&mut answer).await.unwrap();
        assert_ne!(
            read,
            0,
            "ended before {wanted}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    answer
}

pub(crate) async fn advance_time(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Runs a future while the gateway's clock is paused. So the speed of the machine does not matter.
pub(crate) async fn with_paused_time<T>(future: impl Future<Output = T>) -> T {
    // When all tasks wait, a paused clock jumps to the next timer. It does not while a blocking task runs, so
    // a blocking task runs here.
    let (done, until_done) = std::sync::mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || until_done.recv());
    tokio::time::pause();
    let result = future.await;
    tokio::time::resume();
    drop(done);
    assert!(blocking.await.unwrap().is_err());
    result
}

/// Returns the body of a raw response as text.
pub(crate) fn body_text(answer: &[u8]) -> String {
    String::from_utf8(body(answer).0).unwrap()
}

/// Parses the body of a raw response as a JSON document.
pub(crate) fn body_json(answer: &[u8]) -> serde_json::Value {
    serde_json::from_slice(&body(answer).0).unwrap()
}

/// Returns the status code of a raw response. 0: there is no response.
pub(crate) fn status(answer: &[u8]) -> u16 {
    let head = String::from_utf8_lossy(answer);
    head.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

/// Returns the body of a raw response without chunked framing, and whether the body is complete.
pub(crate) fn body(answer: &[u8]) -> (Vec<u8>, bool) {
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .expect("a head")
        + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let rest = &answer[end..];
    if !head.contains("transfer-encoding: chunked") {
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
        return (
            rest.to_vec(),
            length.is_none_or(|length| length == rest.len()),
        );
    }
    let (chunks, is_complete) = chunks(rest);
    (chunks.concat(), is_complete)
}
