//! Derives the addresses of ready pods from the `EndpointSlices` of a Service.

use crate::DiscoveredBackend;
use crate::kubernetes_settings::PodPort;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::runtime::watcher::Event;
use std::collections::BTreeMap;
use tokenweir_engine::address::BackendAddress;

#[derive(Debug)]
pub(super) struct EndpointSlices {
    /// The configured port of the pods. `None`: the only port of each slice.
    port: Option<PodPort>,
    current: BTreeMap<String, Vec<PodEndpoint>>,
    /// The pods of each slice of a list that is not complete yet. The complete list replaces
    /// `current`.
    pending: BTreeMap<String, Vec<PodEndpoint>>,
}

/// An endpoint of a slice: the address and the readiness of a pod that is not terminating.
#[derive(Debug)]
struct PodEndpoint {
    /// Name of the pod, or the address of an endpoint that is no pod. The name is the same in the
    /// IPv4 and the IPv6 slice of a dual-stack Service.
    pod: String,
    family: AddressFamily,
    address: BackendAddress,
    is_ready: bool,
}

/// Address type of a slice, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressFamily {
    V4,
    V6,
    Fqdn,
}

/// Scheme, port and address type that the pods of a slice share.
struct SliceTarget {
    scheme: &'static str,
    port: u16,
    family: AddressFamily,
}

impl EndpointSlices {
    pub(super) fn new(port: Option<PodPort>) -> Self {
        Self {
            port,
            current: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Applies a watch event. Returns whether the addresses may have changed.
    pub(super) fn apply(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Init => {
                self.pending.clear();
                return false;
            }
            Event::InitApply(slice) => {
                let endpoints = self.pod_endpoints(&slice);
                self.pending.insert(slice_name(slice), endpoints);
                return false;
            }
            Event::InitDone => self.current = std::mem::take(&mut self.pending),
            Event::Apply(slice) => {
                let endpoints = self.pod_endpoints(&slice);
                self.current.insert(slice_name(slice), endpoints);
            }
            Event::Delete(slice) => drop(self.current.remove(&slice_name(slice))),
        }
        true
    }

    /// All ready pods, sorted by address, with one address per pod. If no pod is ready, the result is all pods
    /// that are not terminating. The health checks of the gateway then decide which of them get requests.
    pub(super) fn backends(&self) -> Vec<DiscoveredBackend> {
        let endpoints = || self.current.values().flatten();
        let is_any_ready = endpoints().any(|endpoint| endpoint.is_ready);
        let mut pods: BTreeMap<&str, &PodEndpoint> = BTreeMap::new();
        for endpoint in endpoints().filter(|endpoint| endpoint.is_ready || !is_any_ready) {
            let preferred = pods.entry(&endpoint.pod).or_insert(endpoint);
            if endpoint.family < preferred.family {
                *preferred = endpoint;
            }
        }
        let backend = |(pod, endpoint): (&&str, &&PodEndpoint)| DiscoveredBackend {
            address: endpoint.address.clone(),
            pod: Some((*pod).to_owned()),
        };
        let mut backends: Vec<DiscoveredBackend> = pods.iter().map(backend).collect();
        backends.sort_by_key(|backend| backend.address.to_string());
        backends.dedup_by(|a, b| a.address == b.address);
        backends
    }

    /// The pods of a slice that are not terminating. Empty if the slice has no usable port.
    fn pod_endpoints(&self, slice: &EndpointSlice) -> Vec<PodEndpoint> {
        let mut endpoints = slice.endpoints.iter().flatten().peekable();
        let target = SliceTarget::from_slice(slice, self.port.as_ref());
        if target.is_none() && endpoints.peek().is_some() {
            tracing::warn!(
                slice = slice.metadata.name.as_deref(),
                port = ?self.port,
                "the pods of an EndpointSlice do not have the configured port, or have several \
                 ports and none is configured: ignoring these pods"
            );
        }
        let to_pod = |endpoint| {
            target
                .as_ref()
                .and_then(|target| target.pod_endpoint(endpoint))
        };
        endpoints.filter_map(to_pod).collect()
    }
}

fn slice_name(slice: EndpointSlice) -> String {
    slice.metadata.name.unwrap_or_default()
}

impl SliceTarget {
    /// The target of a slice. `None`: the slice does not have the `selected` port, or no port is
    /// selected and the slice does not have exactly one port.
    fn from_slice(slice: &EndpointSlice, selected: Option<&PodPort>) -> Option<Self> {
        let is_tcp = |port: &&EndpointPort| port.protocol.as_deref().unwrap_or("TCP") == "TCP";
        let mut ports = slice.ports.iter().flatten().filter(is_tcp);
        let number = |port: &EndpointPort| port.port.and_then(|number| number.try_into().ok());
        let matched = match selected {
            Some(PodPort::Number(selected)) => ports.find(|port| number(port) == Some(*selected)),
            Some(PodPort::Name(name)) => ports.find(|port| port.name.as_ref() == Some(name)),
            None => {
                let first = ports.next();
                if ports.next().is_some() {
                    return None;
                }
                first
            }
        };
        // The Service need not list a port that is selected by its number.
        let port = match selected {
            Some(PodPort::Number(selected)) => *selected,
            _ => number(matched?)?,
        };
        let protocol = matched.and_then(|port| port.app_protocol.as_deref());
        let scheme = if protocol == Some("https") {
            "https"
        } else {
            "http"
        };
        let family = match slice.address_type.as_str() {
            "IPv4" => AddressFamily::V4,
            "IPv6" => AddressFamily::V6,
            _ => AddressFamily::Fqdn,
        };
        Some(Self {
            scheme,
            port,
            family,
        })
    }

    /// The address of a pod. `None`: the pod is terminating, or has no valid address.
    fn pod_endpoint(&self, endpoint: &Endpoint) -> Option<PodEndpoint> {
        let conditions = endpoint.conditions.as_ref();
        if conditions.is_some_and(|conditions| conditions.terminating == Some(true)) {
            return None;
        }
        // An unset condition means ready (EndpointConditions of discovery.k8s.io/v1).
        let is_ready = conditions.is_none_or(|conditions| conditions.ready != Some(false));
        // All addresses of an endpoint are equivalent, so the first one is used.
        let host = endpoint.addresses.first()?;
        let Self {
            scheme,
            port,
            family,
        } = *self;
        let url = match family {
            AddressFamily::V6 => format!("{scheme}://[{host}]:{port}"),
            AddressFamily::V4 | AddressFamily::Fqdn => format!("{scheme}://{host}:{port}"),
        };
        let address = BackendAddress::parse(&url).ok()?;
        let pod = endpoint
            .target_ref
            .as_ref()
            .and_then(|target| target.name.as_ref());
        Some(PodEndpoint {
            pod: pod.unwrap_or(host).clone(),
            family,
            address,
            is_ready,
        })
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
