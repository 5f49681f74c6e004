//! Watches the Kubernetes Service or the `InferencePool` that a `discovery` entry of the configuration
//! names.

use super::discovered_backends::DiscoveredBackends;
use super::result_publisher::{publish_changes, retry_until_open};
use crate::config::{KubernetesConfig, PodPort};
use tokenweir_gateway::discovery::kubernetes::{
    KubernetesClientError, KubernetesService, ServicePort, ServiceWatcher,
};

/// Publishes the backends of a Service or `InferencePool` each time they change, until the future is
/// dropped.
pub(super) async fn watch(config: &KubernetesConfig, discovered: &DiscoveredBackends) {
    let message = "cannot use the Kubernetes API server: no backends discovered, retrying";
    let watcher = retry_until_open(message, discovered, || open_watcher(config)).await;
    publish_changes(watcher, discovered).await;
}

async fn open_watcher(config: &KubernetesConfig) -> Result<ServiceWatcher, KubernetesClientError> {
    let port = config.port.as_ref().map(|port| match port {
        PodPort::Number(number) => ServicePort::Number(*number),
        PodPort::Name(name) => ServicePort::Name(name.clone()),
    });
    let is_pool = config.pool.is_some();
    let name = config.service.clone().or_else(|| config.pool.clone()).unwrap_or_default();
    let service = KubernetesService { name, is_pool, namespace: config.namespace.clone(), port };
    ServiceWatcher::new(service, config.server()).await
}
