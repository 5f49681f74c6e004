//! Replicas behind a Service of Kubernetes. Its API server lists the slices of endpoints once, and
//! tells what changes of them from then on. A watch that breaks is taken up where it was, or begins
//! anew if the server no longer knows that place; what is known stays meanwhile.

mod slices;

use super::Source;
use futures_util::stream::{BoxStream, StreamExt};
use http::Uri;
use http::uri::Scheme;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::client::ClientBuilder;
use kube::config::InferConfigError;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use slices::Slices;
use std::error::Error;
use std::time::{Duration, Instant};
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tower::limit::RateLimitLayer;

/// Which pods are replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The name of their Service.
    pub name: String,
    /// The namespace of it. `None`: the one of this pod, or of the context in use.
    pub namespace: Option<String>,
    /// Their port. `None`: the only one of the Service.
    pub port: Option<Port>,
}

/// A port of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// Its number, whatever the Service says.
    Number(u16),
    /// Its name in the Service.
    Name(String),
}

/// A Service whose pods come and go.
pub struct WatchedService {
    api: Api<EndpointSlice>,
    /// By which its slices are selected.
    label: String,
    /// Namespace and name, for people.
    name: String,
    events: BoxStream<'static, watcher::Result<Event<EndpointSlice>>>,
    slices: Slices,
    /// What was told last.
    told: Option<Vec<Address>>,
    failed: Option<Instant>,
}

/// Why no API server can be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing says where it is, or who asks.
    #[error("neither a kubeconfig nor a service account can be used")]
    Configuration(#[from] InferConfigError),
    /// The client cannot be made.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// The label by which slices name their Service.
const LABEL: &str = "kubernetes.io/service-name";
/// Seconds after which the server ends a watch, to be asked for the next.
const WATCH: u32 = 60;
/// A server that says nothing for longer is not there.
const SILENCE: Duration = Duration::from_secs(70);
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Most requests in a second, also to a server that ends each watch at once.
const RATE: u64 = 5;
/// Failures that are no further apart are one to whoever reads the log.
const SAME_FAILURE: Duration = Duration::from_mins(2);

// === impl WatchedService ===

impl WatchedService {
    /// Asks this API server, without credentials; `None`: the one of `KUBECONFIG` or
    /// `~/.kube/config`, else the one of the cluster that this pod is in. Must be called inside a
    /// runtime. Nothing is asked yet.
    pub async fn new(service: Service, server: Option<Uri>) -> Result<Self, ConnectError> {
        let client = client(server).await?;
        let namespace = service.namespace.as_deref().unwrap_or(client.default_namespace());
        let api = Api::namespaced(client.clone(), namespace);
        let name = format!("{namespace}/{}", service.name);
        let label = format!("{LABEL}={}", service.name);
        let events = watch(&api, &label);
        let slices = Slices::new(service.port);
        Ok(Self { api, label, name, events, slices, told: None, failed: None })
    }

    /// The replicas, if they are others than those that were told.
    fn news(&mut self) -> Option<Vec<Address>> {
        if self.failed.take().is_some() {
            tracing::info!(service = self.name, "the API server tells again");
        }
        let found = self.slices.replicas();
        if self.told.as_ref() == Some(&found) {
            return None;
        }
        self.told = Some(found.clone());
        Some(found)
    }

    fn on_failure(&mut self, error: &watcher::Error) {
        let (service, known) = (&self.name, self.told.as_ref().map_or(0, Vec::len));
        if is_gone(error) {
            tracing::debug!(service, "the watch begins anew");
            self.events = watch(&self.api, &self.label);
            return;
        }
        let now = clock::now();
        let before = self.failed.replace(now);
        if before.is_some_and(|before| now.duration_since(before) < SAME_FAILURE) {
            tracing::debug!(service, %error, "the API server does not tell");
        } else {
            let cause = cause(error);
            let message = "the API server does not tell; those that are known stay";
            tracing::warn!(service, %error, %cause, known, "{message}");
        }
    }
}

impl Source for WatchedService {
    async fn changed(&mut self) -> Vec<Address> {
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    if self.slices.take(event)
                        && let Some(found) = self.news()
                    {
                        return found;
                    }
                }
                Some(Err(error)) => self.on_failure(&error),
                // It tries for ever.
                None => std::future::pending().await,
            }
        }
    }
}

async fn client(server: Option<Uri>) -> Result<Client, ConnectError> {
    let mut config = match server {
        Some(url) => kube::Config::new(url),
        None => kube::Config::infer().await?,
    };
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        // Nobody has to be believed, and a small image has no authorities.
        config.root_cert = Some(Vec::new());
    }
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    let limit = RateLimitLayer::new(RATE, Duration::from_secs(1));
    Ok(ClientBuilder::try_from(config)?.with_layer(&limit).build())
}

fn watch(
    api: &Api<EndpointSlice>,
    label: &str,
) -> BoxStream<'static, watcher::Result<Event<EndpointSlice>>> {
    let config = watcher::Config::default().labels(label).timeout(WATCH);
    watcher(api.clone(), config).default_backoff().boxed()
}

/// What is below all that was wrapped around it.
fn cause(error: &watcher::Error) -> &dyn Error {
    let mut cause: &dyn Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause
}

/// Whether the server no longer knows the place where the watch was.
fn is_gone(error: &watcher::Error) -> bool {
    use kube::Error::Api;
    use watcher::Error::{WatchError, WatchFailed, WatchStartFailed};
    const GONE: u16 = 410;
    let (WatchError(status) | WatchStartFailed(Api(status)) | WatchFailed(Api(status))) = error
    else {
        return false;
    };
    status.code == GONE
}
