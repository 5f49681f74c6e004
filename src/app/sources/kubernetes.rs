//! From what is configured of Kubernetes to who watches it.

use crate::config::{Kubernetes, PodPort};
use crate::discovery::kubernetes::{ConnectError, Port, Service, WatchedService};

pub(super) async fn watched(pods: &Kubernetes) -> Result<WatchedService, ConnectError> {
    let port = pods.port.as_ref().map(|port| match port {
        PodPort::Number(number) => Port::Number(*number),
        PodPort::Name(name) => Port::Name(name.clone()),
    });
    let (name, namespace) = (pods.service.clone(), pods.namespace.clone());
    WatchedService::new(Service { name, namespace, port }, pods.server()).await
}
