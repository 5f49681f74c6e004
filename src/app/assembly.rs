//! A valid configuration becomes a gateway that is ready to serve.

use super::collectors;
use super::logs::Logs;
use super::parts::{
    access, admission, backends, capture, guard, later, log_counts, observation, session_headers,
    span_counts, telemetry, tiers,
};
use crate::admin::Admin;
use crate::backend::Keeper;
use crate::backend::client::Client;
use crate::backend::pool::Pool;
use crate::clock;
use crate::config::{ConfigError, Loaded, SecretError};
use crate::observe::{Live, Sink};
use crate::proxy::admission::Admission;
use crate::proxy::retry::Retry;
use crate::proxy::{Gateway, KeptText};
use crate::server::{self, BindError, Drained, Limits, Server};
use crate::telemetry::buckets::{Buckets, BucketsError};
use crate::telemetry::capture::{self, Capture};
use crate::telemetry::content::{self, Content};
use crate::telemetry::explain::Explanations;
use crate::telemetry::otel::{self, Otel};
use crate::telemetry::push::{self, Push};
use crate::telemetry::teller::Telling;
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
}

/// How long the start waits for replicas, so that the banner can tell what they are.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Longest wait for the head of a request on an open connection.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);

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
        raise_file_limit();
        let backends = backends(config, &env)?;
        let pool = Pool::new(backends, &config.models, config.routing.policy())
            .with_panic_threshold(config.health.panic_threshold);
        let pool = Arc::new(pool.with_shadow(&config.routing.shadow));
        let settings = otel::Settings::read(collectors::spans(loaded, &env), &env)?;
        let pushing = collectors::metrics(loaded, &env)?;
        let otel = settings.endpoint.is_some().then(|| Otel::start(&settings)).transpose()?;
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
        let client = Client::new(config.timeouts);
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
            config: loaded.view(),
        });
        let push = pushing.as_ref().map(|settings| collectors::push(settings, &admin, began));
        let push = push.transpose()?;
        let gateway = Arc::new(Gateway {
            pool: pool.clone(),
            access,
            admission,
            client,
            retry: Retry::new(config.retry),
            first_output: config.timeouts.first_output,
            sink: telemetry,
            max_body: config.limits.body,
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
        let limits = Limits {
            head: config.limits.header,
            headers: config.limits.headers_count,
            head_timeout: HEAD_TIMEOUT,
            drain: config.drain.timeout,
        };
        let server = Server { clients, operators, gateway, admin, limits };
        Ok(Self {
            listen,
            operators: admin_addr,
            traces: settings.endpoint.filter(|_| otel.is_some()),
            pushed_to: pushing.map(|settings| settings.endpoint),
            captured_in: config.capture.file.clone(),
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
pub(super) fn raise_file_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, streams = limit.saturating_sub(64) / 2, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    }
}

fn local(listener: &tokio::net::TcpListener, configured: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(configured)
}
