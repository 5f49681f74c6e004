//! Creates the watcher of a Kubernetes Service from its configuration.

use crate::config::{KubernetesConfig, PodPort};
use crate::discovery::kubernetes::{
    KubernetesClientError, KubernetesService, ServicePort, ServiceWatcher,
};

pub(super) async fn open_watcher(
    config: &KubernetesConfig,
) -> Result<ServiceWatcher, KubernetesClientError> {
    let port = config.port.as_ref().map(|port| match port {
        PodPort::Number(number) => ServicePort::Number(*number),
        PodPort::Name(name) => ServicePort::Name(name.clone()),
    });
    let (name, namespace) = (config.service.clone(), config.namespace.clone());
    ServiceWatcher::new(KubernetesService { name, namespace, port }, config.server()).await
}
