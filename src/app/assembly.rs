//! A valid configuration becomes a gateway that is ready to serve.

use super::collectors;
use super::logs::Logs;
use super::parts::{
    access, admission, backends, capture, gate, guard, later, limits, log_counts, observation,
    outbound, session_headers, span_counts, telemetry, tiers,
};
use crate::admin::Admin;
use crate::backend::Keeper;
use crate::backend::client::Client;
use crate::backend::pool::Pool;
use crate::clock;
use crate::config::{Config, ConfigError, Loaded, SecretError};
use crate::observe::{Live, Sink};
use crate::proxy::admission::Admission;
use crate::proxy::retry::Retry;
use crate::proxy::{Gateway, KeptText};
use crate::server::{self, BindError, Connections, Drained, Server, Tls};
use crate::telemetry::buckets::{Buckets, BucketsError};
use crate::telemetry::capture::{self, Capture};
use crate::telemetry::content::{self, Content};
use crate::telemetry::explain::Explanations;
use crate::telemetry::otel::{self, Otel};
use crate::telemetry::push::{self, Push};
use crate::telemetry::teller::Telling;
use crate::tls::{Acceptor, Credentials, Side, TlsError};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::task::JoinSet;

/// A gateway with its ports bound and its replicas looked at.
pub(super) struct Assembly {
    /// Where clients connect.
    pub(super) listen: SocketAddr,
    /// Where operators connect.
    pub(super) operators: SocketAddr,
    /// Where traces go.
    pub(super) traces: Option<String>,
    /// Where metrics are pushed.
    pub(super) pushed_to: Option<String>,
    /// Where the traffic is written.
    pub(super) captured_in: Option<PathBuf>,
    /// Connections that clients may have, each with a request.
    pub(super) connections: usize,
    /// Whether clients and operators are spoken to through TLS.
    pub(super) is_https: [bool; 2],
    /// The replicas.
    pub(super) pool: Arc<Pool>,
    server: Server,
    /// Tells what is left when it is dropped.
    telling: Telling,
    otel: Option<Otel>,
    push: Option<Push>,
    /// Writes what is left of the capture when it is dropped.
    _capture: Option<capture::Running>,
    /// As well.
    _content: Option<content::Running>,
    /// Watches while it lives.
    _keeper: Keeper,
    /// Reads the file of keys again while it lives.
    _keys: JoinSet<()>,
}

/// Why a valid configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum AssemblyError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the key of backend `{backend}` cannot be had")]
    Secret { backend: String, source: SecretError },
    #[error("the key of tier `{tier}` cannot be had")]
    TierKey { tier: String, source: SecretError },
    #[error("the admin token cannot be had")]
    AdminToken { source: SecretError },
    #[error(transparent)]
    Keys(#[from] ConfigError),
    #[error("the refusal phrases are too many to be looked for")]
    Phrases(#[from] aho_corasick::BuildError),
    #[error(transparent)]
    TraceSettings(#[from] otel::SettingsError),
    #[error(transparent)]
    Traces(#[from] otel::StartError),
    #[error(transparent)]
    Push(#[from] push::StartError),
    #[error("the capture file {} cannot be written", file.display())]
    Capture { file: PathBuf, source: io::Error },
    #[error("the content log cannot be started")]
    Content(#[from] content::StartError),
    #[error(transparent)]
    Buckets(#[from] BucketsError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How long the start waits for replicas, so that the banner can tell what they are.
const FIRST_LOOK: Duration = Duration::from_secs(2);

impl Assembly {
    /// Binds the ports, starts the exporters and looks at the replicas.
    pub(super) async fn new(
        loaded: &Loaded,
        logs: &Logs,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AssemblyError> {
        let config = &loaded.config;
        let began = clock::wall();
        let clients = server::bind(config.listen, "for clients")?;
        let operators = server::bind(config.admin, "for operators")?;
        let (listen, admin_addr) =
            (local(&clients, config.listen), local(&operators, config.admin));
        let files = raise_file_limit();
        let (gate, limits) = (Arc::new(gate(config, files)), limits(config, files));
        let connections = Connections::new(&limits, gate.clone());
        let (tls, outbound) = (tls(config)?, outbound(config)?);
        tls.credentials.keep_outbound(Side::Backend, &outbound);
        let backends = backends(config, &env)?;
        let pool = Pool::new(backends, &config.models, config.routing.policy())
            .with_panic_threshold(config.health.panic_threshold);
        let pool = Arc::new(pool.with_shadow(&config.routing.shadow));
        let settings = otel::Settings::read(collectors::spans(loaded, &env), &env)?;
        let pushing = collectors::metrics(loaded, &env)?;
        let otel = settings.endpoint.is_some().then(|| Otel::start(&settings)).transpose()?;
        if let Some(outbound) = otel.as_ref().and_then(Otel::outbound) {
            tls.credentials.keep_outbound(Side::Collector, outbound);
        }
        let explanations = Arc::new(Explanations::new(config.routing.explain_ring));
        let (capture, running) = capture(config)?.unzip();
        let counter = capture.as_ref().map(Capture::counter);
        let access_log = logs.access_log();
        let (content, content_running) = Content::start(&config.log.content)?.unzip();
        let log_counts = log_counts(logs, access_log.as_ref(), content.as_ref());
        let (access, keys_file) = access(config)?;
        let at_once: Vec<Arc<dyn Sink>> = vec![pool.clone(), explanations.clone(), access.clone()];
        let mut later = later(access_log, otel.as_ref(), capture);
        later.extend(content.map(|content| Arc::new(content) as Arc<dyn Sink>));
        let buckets = Buckets::new(&config.metrics.buckets, &config.slos)?;
        let (telemetry, telling) = telemetry(&pool, config, &buckets, at_once, later);
        let telemetry = Arc::new(telemetry);
        let client = Client::with_tls(config.timeouts, outbound);
        let keeper = server::watch_all(&pool, &client, config.watch, &telemetry, FIRST_LOOK).await;
        let keys = keys_file.into_iter().map(|file| file.watch(access.clone())).collect();
        let live = Live::new(observation(config, &buckets)?, clock::now());
        let admission = Arc::new(Admission::new(pool.clone(), admission(config)));
        let admin = Arc::new(Admin {
            guard: guard(config, &env)?,
            pool: pool.clone(),
            access: access.clone(),
            admission: admission.clone(),
            telemetry: telemetry.clone(),
            explanations,
            live: live.clone(),
            draining: Arc::new(AtomicBool::new(false)),
            spans: span_counts(otel.as_ref()),
            capture: counter,
            logs: log_counts,
            pushes: push::Counter::default(),
            connections: {
                let connections = connections.clone();
                Box::new(move || connections.vitals())
            },
            credentials: tls.credentials.clone(),
            config: loaded.view(),
        });
        let push = pushing.as_ref().map(|settings| collectors::push(settings, &admin, began));
        let push = push.transpose()?;
        if let Some(push) = &push {
            tls.credentials.keep_outbound(Side::Collector, push.outbound());
        }
        let gateway = Arc::new(Gateway {
            pool: pool.clone(),
            access,
            admission,
            client,
            retry: Retry::new(config.retry),
            first_output: config.timeouts.first_output,
            sink: telemetry,
            max_body: config.limits.body,
            body_idle: config.limits.body_idle_timeout,
            gate,
            propagation: settings.propagation(clock::now()),
            tiers: tiers(config, &env)?,
            live,
            session_headers: session_headers(config),
            captured: running.as_ref().map_or(0.0, |_| config.capture.sample),
            kept_text: content_running.as_ref().map(|_| KeptText {
                share: config.log.content.sample,
                bytes: config.log.content.room(),
            }),
        });
        let is_https = [&tls.clients, &tls.operators].map(Option::is_some);
        let server = Server { clients, operators, gateway, admin, limits, connections, tls };
        Ok(Self {
            listen,
            operators: admin_addr,
            traces: settings.endpoint.filter(|_| otel.is_some()),
            pushed_to: pushing.map(|settings| settings.endpoint),
            captured_in: config.capture.file.clone(),
            connections: limits.connections,
            is_https,
            pool,
            server,
            telling,
            otel,
            push,
            _capture: running,
            _content: content_running,
            _keeper: keeper,
            _keys: keys,
        })
    }

    /// Serves until `shutdown`, drains, and sends what is left of the spans and the last metrics.
    pub(super) async fn run(self, shutdown: impl Future<Output = ()>) {
        let drained = self.server.run(shutdown).await;
        drop(self.telling);
        let spans = async {
            if let Some(otel) = self.otel {
                otel.shutdown().await;
            }
        };
        let metrics = async {
            if let Some(push) = self.push {
                push.shutdown().await;
            }
        };
        tokio::join!(spans, metrics);
        match drained {
            Drained::Whole => tracing::info!("drained"),
            Drained::Cut => tracing::warn!("the drain deadline has cut requests"),
        }
    }
}

/// Every stream takes two descriptors, so the soft limit is raised as far as the system allows.
/// Gives the limit. `None`: it is not known.
pub(super) fn raise_file_limit() -> Option<usize> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    match raised.or_else(|error| {
        tracing::warn!(%error, "the limit of open files cannot be raised");
        rlimit::getrlimit(rlimit::Resource::NOFILE).map(|(soft, _)| soft)
    }) {
        Ok(limit) => {
            tracing::debug!(limit, "open files");
            usize::try_from(limit).ok()
        }
        Err(_) => None,
    }
}

/// The certificates of both ports.
fn tls(config: &Config) -> Result<Tls, TlsError> {
    let credentials = Arc::new(Credentials::default());
    let clients = Acceptor::for_clients(&config.tls)?;
    let operators = Acceptor::for_operators(&config.tls)?;
    [&clients, &operators].into_iter().flatten().for_each(|it| credentials.keep_acceptor(it));
    Ok(Tls { clients, operators, credentials })
}

fn local(listener: &tokio::net::TcpListener, configured: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(configured)
}
