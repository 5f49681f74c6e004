//! Discovers the backends of a Kubernetes Service by a watch on its `EndpointSlices`, or the backends of
//! an `InferencePool` by a watch on the `InferencePool` and its pods.
//!
//! The API server lists the `EndpointSlices` once and then sends their changes. A broken watch
//! continues at its last resource version, or lists again if that version has expired (410 Gone).
//! The backends that were discovered before stay in use meanwhile.

mod inference_pool;
mod slices;

use super::kubernetes_settings::KubernetesConfig;
use super::{DiscoveredBackend, DiscoveryChange};
use futures_util::stream::{BoxStream, StreamExt};
use http::Uri;
use http::uri::Scheme;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::client::ClientBuilder;
use kube::config::InferConfigError;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use slices::EndpointSlices;
use std::time::{Duration, Instant};
use tokenweir_net::client::root_cause;
use tokenweir_protocol::clock;
use tower::limit::RateLimitLayer;

/// A discovery source that watches one Service or one `InferencePool`.
pub struct ServiceWatcher {
    client: Client,
    namespace: String,
    settings: KubernetesConfig,
    /// `namespace/name`, for logs.
    display_name: String,
    events: BoxStream<'static, watcher::Result<Event<EndpointSlice>>>,
    slices: EndpointSlices,
    /// The backends that were reported last. `None`: none have been reported.
    last_reported: Option<Vec<DiscoveredBackend>>,
    /// The time of the last failure. `None`: no request has failed since the last event.
    last_failure: Option<Instant>,
    /// Whether the last reported change was a problem.
    has_problem: bool,
}

/// Why no Kubernetes client can be created.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesClientError {
    /// There is neither a usable kubeconfig nor a service account.
    #[error("no Kubernetes credentials: neither a kubeconfig nor a service account is usable")]
    Configuration(#[from] InferConfigError),
    /// The client cannot be created.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// The label of an `EndpointSlice` that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Seconds after which the API server ends a watch request. The gateway then sends the next
/// request.
const WATCH_TIMEOUT_SECONDS: u32 = 60;
/// Read timeout of the connection to the API server. It exceeds [`WATCH_TIMEOUT_SECONDS`], so a
/// server that sends nothing for this time has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(70);
/// Timeout for establishing a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests per second to the API server. The limit matters if the server ends
/// each watch at once.
const MAX_REQUESTS_PER_SECOND: u64 = 5;
/// A failure within this time after the previous failure is logged at debug level instead of warn.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_mins(2);

impl ServiceWatcher {
    /// Creates a source that watches a Service or a pool. If no API server is configured, the source uses the
    /// one of `KUBECONFIG` or `~/.kube/config`, or else the one of the cluster in which this pod runs. If no
    /// namespace is configured, it uses the namespace of this pod or of the current kubeconfig context. Must be
    /// called inside a Tokio runtime. [`Self::changed`] sends the first request.
    pub async fn new(settings: KubernetesConfig) -> Result<Self, KubernetesClientError> {
        let client = build_client(settings.server()).await?;
        let namespace = settings
            .namespace
            .as_deref()
            .unwrap_or(client.default_namespace());
        let namespace = namespace.to_owned();
        let events = watch(&client, &namespace, &settings);
        let slices = EndpointSlices::new(settings.port.clone());
        Ok(Self {
            display_name: format!("{namespace}/{}", settings.name()),
            client,
            namespace,
            settings,
            events,
            slices,
            last_reported: None,
            last_failure: None,
            has_problem: false,
        })
    }

    /// The backends of the Service. `None`: the backends are equal to those that were reported
    /// last.
    fn take_changed_backends(&mut self) -> Option<Vec<DiscoveredBackend>> {
        if self.last_failure.take().is_some() {
            tracing::info!(
                service = self.display_name,
                "the Kubernetes API server responds again"
            );
        }
        let backends = self.slices.backends();
        if self.last_reported.as_ref() == Some(&backends) {
            return None;
        }
        self.last_reported = Some(backends.clone());
        Some(backends)
    }

    /// Logs a failure. Starts a new watch if the resource version has expired. Returns the problem at
    /// the second failure in succession, and `None` at all other failures.
    fn on_failure(&mut self, error: &watcher::Error) -> Option<String> {
        let service = &self.display_name;
        let reported = self.last_reported.as_ref().map_or(0, Vec::len);
        if is_resource_version_expired(error) {
            tracing::debug!(
                service,
                "the resource version of the watch has expired: listing again"
            );
            self.events = watch(&self.client, &self.namespace, &self.settings);
            return None;
        }
        let now = clock::now();
        let previous = self.last_failure.replace(now);
        let is_recent = |previous| now.duration_since(previous) < FAILURE_LOG_INTERVAL;
        if previous.is_some_and(is_recent) {
            tracing::debug!(service, %error, "Kubernetes discovery still fails");
            let is_new = !std::mem::replace(&mut self.has_problem, true);
            return is_new.then(|| format!("Kubernetes {service}: {}", root_cause(error)));
        }
        let cause = root_cause(error);
        let message = "Kubernetes discovery failed: keeping the known backends";
        tracing::warn!(service, %error, %cause, known = reported, "{message}");
        None
    }

    /// Completes when [`FAILURE_LOG_INTERVAL`] has passed since the last failure. The watch then counts
    /// as working again, because a working watch without changes delivers no event.
    async fn recovered(last_failure: Option<Instant>) {
        let Some(at) = last_failure else { return };
        tokio::time::sleep_until((at + FAILURE_LOG_INTERVAL).into()).await;
    }

    /// Waits until the list of addresses differs from the list that was returned last, or until the
    /// source begins or ceases to fail. Failures are logged and retried.
    pub async fn changed(&mut self) -> DiscoveryChange {
        loop {
            let event = tokio::select! {
                biased;
                event = self.events.next() => event,
                () = Self::recovered(self.last_failure), if self.has_problem => {
                    self.has_problem = false;
                    return DiscoveryChange::Problem(None);
                }
            };
            match event {
                Some(Ok(event)) => {
                    if self.slices.apply(event)
                        && let Some(backends) = self.take_changed_backends()
                    {
                        self.has_problem = false;
                        return DiscoveryChange::Backends(backends);
                    }
                }
                Some(Err(error)) => {
                    if let Some(problem) = self.on_failure(&error) {
                        return DiscoveryChange::Problem(Some(problem));
                    }
                }
                // A watcher retries forever, so its stream never ends.
                None => std::future::pending().await,
            }
        }
    }
}

async fn build_client(server: Option<Uri>) -> Result<Client, KubernetesClientError> {
    let mut config = match server {
        Some(url) => kube::Config::new(url),
        None => kube::Config::infer().await?,
    };
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        // Plain HTTP needs no certificate authorities, and a small image has none to load.
        config.root_cert = Some(Vec::new());
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let limit = RateLimitLayer::new(MAX_REQUESTS_PER_SECOND, Duration::from_secs(1));
    Ok(ClientBuilder::try_from(config)?.with_layer(&limit).build())
}

/// Starts a watch on the `EndpointSlices` of a Service, or on the pods of a pool.
fn watch(
    client: &Client,
    namespace: &str,
    settings: &KubernetesConfig,
) -> BoxStream<'static, watcher::Result<Event<EndpointSlice>>> {
    if let Some(pool) = &settings.pool {
        return inference_pool::watch_pods(client.clone(), namespace, pool, WATCH_TIMEOUT_SECONDS);
    }
    let api = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
    let label = format!("{SERVICE_NAME_LABEL}={}", settings.name());
    let config = watcher::Config::default()
        .labels(&label)
        .timeout(WATCH_TIMEOUT_SECONDS);
    watcher(api, config).default_backoff().boxed()
}

/// Whether the API server no longer has the resource version of the watch (410 Gone).
fn is_resource_version_expired(error: &watcher::Error) -> bool {
    use kube::Error::Api;
    use watcher::Error::{WatchError, WatchFailed, WatchStartFailed};
    const GONE: u16 = 410;
    let (WatchError(status) | WatchStartFailed(Api(status)) | WatchFailed(Api(status))) = error
    else {
        return false;
    };
    status.code == GONE
}
