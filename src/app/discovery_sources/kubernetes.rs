//! Watches the Kubernetes Service or the `InferencePool` that a `discovery` entry of the configuration
//! names.

use super::discovered_backends::DiscoveredBackends;
use super::result_publisher::{publish, retry_until_open};
use tokenweir_discovery::kubernetes::ServiceWatcher;
use tokenweir_discovery::kubernetes_settings::KubernetesConfig;

/// Publishes the backends of a Service or `InferencePool` after each change, until the future is dropped.
pub(super) async fn watch(config: &KubernetesConfig, discovered: &DiscoveredBackends) {
    let message = "cannot use the Kubernetes API server: no backends discovered, retrying";
    let open = || ServiceWatcher::new(config.clone());
    let mut watcher = retry_until_open(message, discovered, open).await;
    loop {
        publish(watcher.changed().await, discovered);
    }
}
