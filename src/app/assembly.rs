//! A valid configuration becomes a gateway that is ready to serve.

use super::collectors;
use super::diagnosing::Diagnosing;
use super::hearing::Hearing;
use super::keys::KeysFile;
use super::lasting::Lasting;
use super::logs::Logs;
use super::memory;
use super::parts::{access, admission, backends, guard, observation, outbound, span_counts};
use super::ports::Ports;
use super::reload::Reloader;
use super::signals::Hangups;
use super::sources::Sources;
use super::systemd;
use crate::admin::{Admin, Configuration, Guard};
use crate::backend::Backend;
use crate::backend::pool::Pool;
use crate::config::{Config, ConfigError, Loaded, Overrides, SecretError};
use crate::discovery::file::WatchedFile;
use crate::proxy::BodyMemory;
use crate::proxy::admission::Admission;
use crate::proxy::retry::Retry;
use crate::server::{self, BindError, Drained, Server};
use crate::telemetry::buckets::BucketsError;
use crate::telemetry::otel::{self, Otel};
use crate::telemetry::push::{self, Push};
use crate::telemetry::teller::Telling;
use crate::telemetry::{capture, content, quality};
use arc_swap::ArcSwap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::Live;
use tokenweir_diagnose::Board;
use tokenweir_net::client::Client;
use tokenweir_net::supervise::{self, Supervised, Task};
use tokenweir_net::tls::{Side, TlsError};
use tokio::sync::Mutex;

/// A gateway with its ports bound and its replicas looked at.
pub(crate) struct Assembly {
    /// Where clients connect.
    pub(crate) listen: SocketAddr,
    /// Where operators connect.
    pub(crate) operators: SocketAddr,
    /// Where traces go.
    pub(crate) traces: Option<String>,
    /// Where metrics are pushed.
    pub(crate) pushed_to: Option<String>,
    /// Where the traffic is written.
    pub(crate) captured_in: Option<PathBuf>,
    /// Connections that clients may have, each with a request.
    pub(crate) connections: usize,
    /// Whether clients and operators are spoken to through TLS.
    pub(crate) is_https: [bool; 2],
    /// The replicas.
    pub(crate) pool: Arc<Pool>,
    server: Server,
    /// Tells what is left when it is dropped.
    telling: Telling,
    otel: Option<Otel>,
    push: Option<Push>,
    /// Writes what is left of the capture when it is dropped.
    _capture: Option<capture::Running>,
    /// As well.
    _content: Option<content::Running>,
    /// As well.
    _quality: Option<quality::Running>,
    /// Watches the replicas and the configuration.
    reloader: Reloader,
    /// Reads the file of keys again, and diagnoses the replicas, while it lives.
    _beside: Vec<Supervised>,
}

/// Why a valid configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssemblyError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the key of backend `{backend}` cannot be had")]
    Secret { backend: String, source: SecretError },
    #[error("the key of tier `{tier}` cannot be had")]
    TierKey { tier: String, source: SecretError },
    #[error("the admin token cannot be had")]
    AdminToken { source: SecretError },
    #[error("the secret of access.cache_salt cannot be read")]
    CacheSalt { source: SecretError },
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
    #[error("quality cannot be looked at")]
    Quality(#[source] content::StartError),
    #[error(transparent)]
    Buckets(#[from] BucketsError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How long the start waits for replicas, so that the banner can tell what they are.
const FIRST_LOOK: Duration = Duration::from_secs(2);

impl Assembly {
    /// Binds the ports, starts the exporters and looks at the replicas.
    pub(crate) async fn new(
        loaded: &Loaded,
        overrides: Overrides,
        logs: &Logs,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AssemblyError> {
        let config = &loaded.config;
        let began = clock::wall();
        let hangups = Hangups::new();
        let file = WatchedFile::of(loaded.file.as_deref()).await;
        let ports = Ports::bind(config)?;
        let (listen, operators) = (ports.clients.address(), ports.operators(config.admin));
        let (is_https, most_connections) = (ports.is_https(), ports.limits.connections);
        let mut sources = Sources::start(&config.discovery);
        sources.first(FIRST_LOOK).await;
        let replicas = sources.replicas(config);
        let outbound = outbound(config, &replicas)?;
        let pool = pool(config, backends(config, &replicas, &env)?);
        let (access, keys_file) = access(config, &env)?;
        let settings = otel::Settings::read(collectors::spans(loaded, &env), &env)?;
        let pushing = collectors::metrics(loaded, &env)?;
        let hearing = Hearing::start(config, &settings, logs, &pool, &access)?;
        let Hearing { telemetry, buckets, .. } = &hearing;
        ports.gate.set_watchers(replicas.len());
        let client = Client::with_tls(config.timeouts, outbound.clone())
            .with_descriptors(ports.gate.descriptors().clone());
        let keeper = server::watch_all(&pool, &client, config.watch, telemetry, FIRST_LOOK).await;
        let watched = access.clone();
        let watch = |file: KeysFile| move || file.clone().watch(watched.clone());
        let keys_watch = keys_file.map(|file| supervise::spawn(Task::KeysFile, watch(file)));
        let mut beside: Vec<Supervised> = keys_watch.into_iter().collect();
        let (configuration, requests) = Configuration::new(loaded.view(), began);
        let body_memory = config.limits.body_memory(memory::available());
        let lasting = Lasting {
            pool: pool.clone(),
            access,
            admission: Arc::new(Admission::new(pool.clone(), admission(config))),
            gate: ports.gate.clone(),
            outbound: outbound.clone(),
            files: ports.files,
            body_memory: Arc::new(BodyMemory::new(body_memory)),
            telemetry: telemetry.clone(),
            live: Live::new(observation(config, buckets)?, clock::now()),
            propagation: settings.propagation(clock::now()),
            captured: hearing.captured_share(config),
            kept_text: hearing.kept_text(config),
            buckets: buckets.clone(),
        };
        let seen = Seen { guard: guard(config, &env)?, trace_ui: config.tracing.ui.clone() };
        let admin = Arc::new(admin(seen, &lasting, &hearing, &ports, configuration.clone()));
        let diagnosing = diagnosing(&lasting, &hearing, &admin);
        beside.push(supervise::spawn(Task::Diagnosis, move || diagnosing.clone().run()));
        let push = pushing.as_ref().map(|settings| collectors::push(settings, &admin, began));
        let push = push.transpose()?;
        let Ports { clients, operators: operators_port, limits, connections, tls, .. } = ports;
        tls.credentials.keep_outbound(Side::Backend, &outbound);
        let of_spans = hearing.otel.as_ref().and_then(Otel::outbound);
        let to_collectors = of_spans.into_iter().chain(push.as_ref().map(Push::outbound));
        to_collectors.for_each(|it| tls.credentials.keep_outbound(Side::Collector, it));
        let gateway =
            shared(lasting.gateway(config, Retry::new(config.retry), client.clone(), &env)?);
        let limits = shared(limits);
        let reloader = Reloader {
            loaded: loaded.clone(),
            overrides,
            file,
            hangups,
            requests,
            sources,
            lasting,
            client,
            keeper,
            gateway: gateway.clone(),
            limits: limits.clone(),
            configuration,
        };
        // From here on nothing fails, so nobody waits in the queue in vain.
        let clients = clients.listen()?;
        let server =
            Server { clients, operators: operators_port, gateway, admin, limits, connections, tls };
        Ok(Self {
            listen,
            operators,
            traces: settings.endpoint.filter(|_| hearing.otel.is_some()),
            pushed_to: pushing.map(|settings| settings.endpoint),
            captured_in: config.capture.file.clone(),
            connections: most_connections,
            is_https,
            pool,
            server,
            telling: hearing.telling,
            otel: hearing.otel,
            push,
            _capture: hearing.capturing,
            _content: hearing.keeping,
            _quality: hearing.sampling,
            reloader,
            _beside: beside,
        })
    }

    /// Serves until `shutdown`, drains, and sends what is left of the spans and the last metrics.
    /// `Err`: a task without which the gateway cannot go on has ended.
    pub(crate) async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Task> {
        // A reload that panics loses nothing of this state.
        let reloader = Arc::new(Mutex::new(self.reloader));
        let reloading = supervise::spawn(Task::Reload, move || {
            let reloader = reloader.clone();
            async move { reloader.lock().await.run().await }
        });
        let living = supervise::spawn(Task::SystemdWatchdog, systemd::alive);
        let shutdown = async {
            shutdown.await;
            systemd::stopping();
        };
        systemd::ready();
        // On a worker: on the thread that waits for the end of all, each connection that comes or goes
        // would wake two threads instead of one.
        let drained = tokio::spawn(self.server.run(shutdown)).await;
        let drained = drained.unwrap_or_else(|_| {
            supervise::report(Task::Listener);
            Drained::Failed(Task::Listener)
        });
        drop(living);
        // What it holds is dropped when it has ended.
        reloading.stop().await;
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
            Drained::Failed(task) => {
                tracing::error!(
                    task = task.as_str(),
                    "the gateway ends because this task has ended"
                );
                return Err(task);
            }
        }
        Ok(())
    }
}

/// What is replaced when the configuration changes.
fn shared<T>(value: T) -> Arc<ArcSwap<T>> {
    Arc::new(ArcSwap::from_pointee(value))
}

/// The replicas, which have not been looked at.
fn pool(config: &Config, backends: Vec<Backend>) -> Arc<Pool> {
    let pool = Pool::new(backends, &config.models, config.routing.policy());
    let pool = pool.with_panic_threshold(config.health.panic_threshold);
    let pool = pool.with_most_labels(config.metrics.max_models);
    Arc::new(pool.with_shadow(&config.routing.shadow))
}

/// Who sees it, and where they look at traces.
struct Seen {
    guard: Guard,
    trace_ui: Option<String>,
}

/// What operators see.
fn admin(
    seen: Seen,
    lasting: &Lasting,
    hearing: &Hearing,
    ports: &Ports,
    configuration: Arc<Configuration>,
) -> Admin {
    let connections = ports.connections.clone();
    Admin {
        guard: seen.guard,
        trace_ui: seen.trace_ui,
        recent: hearing.recent.clone(),
        pool: lasting.pool.clone(),
        access: lasting.access.clone(),
        admission: lasting.admission.clone(),
        telemetry: lasting.telemetry.clone(),
        explanations: hearing.explanations.clone(),
        live: lasting.live.clone(),
        body_memory: lasting.body_memory.clone(),
        draining: Arc::new(AtomicBool::new(false)),
        spans: span_counts(hearing.otel.as_ref()),
        capture: hearing.captured.clone(),
        logs: hearing.logs.clone(),
        quality: hearing.quality.clone(),
        pushes: push::Counter::default(),
        connections: Box::new(move || connections.vitals()),
        credentials: ports.tls.credentials.clone(),
        diagnosis: Arc::<Board>::default(),
        configuration,
    }
}

/// Who looks at the replicas for them.
fn diagnosing(lasting: &Lasting, hearing: &Hearing, admin: &Admin) -> Diagnosing {
    Diagnosing {
        pool: lasting.pool.clone(),
        admission: lasting.admission.clone(),
        tallies: hearing.tallies.clone(),
        board: admin.diagnosis.clone(),
    }
}
