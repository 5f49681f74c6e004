//! What slices of endpoints say: which pods there are, at which address, and whether they are ready.

use super::Port;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::runtime::watcher::Event;
use std::collections::BTreeMap;
use tokenweir_core::address::Address;

/// The slices of a Service.
#[derive(Debug)]
pub(super) struct Slices {
    port: Option<Port>,
    /// By name.
    known: BTreeMap<String, Vec<Place>>,
    /// Those that a list which is not over has told.
    listed: BTreeMap<String, Vec<Place>>,
}

/// Where a pod is that does not end.
#[derive(Debug)]
struct Place {
    /// What is the same in the slices of both kinds of address.
    pod: String,
    family: Family,
    address: Address,
    is_ready: bool,
}

/// A kind of address, the one to prefer first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    Name,
}

/// Where the pods of a slice are spoken to.
struct Target {
    scheme: &'static str,
    port: u16,
    family: Family,
}

// === impl Slices ===

impl Slices {
    pub(super) fn new(port: Option<Port>) -> Self {
        Self { port, known: BTreeMap::new(), listed: BTreeMap::new() }
    }

    /// Takes what is told. `true`: the replicas may be others than before.
    pub(super) fn take(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                return false;
            }
            Event::InitApply(slice) => {
                let places = self.places(&slice);
                self.listed.insert(name(slice), places);
                return false;
            }
            Event::InitDone => self.known = std::mem::take(&mut self.listed),
            Event::Apply(slice) => {
                let places = self.places(&slice);
                self.known.insert(name(slice), places);
            }
            Event::Delete(slice) => drop(self.known.remove(&name(slice))),
        }
        true
    }

    /// The address of each pod that is ready, in an order that does not change. With none ready, of
    /// each: the gateway looks at their health itself.
    pub(super) fn replicas(&self) -> Vec<Address> {
        let places = || self.known.values().flatten();
        let is_any_ready = places().any(|place| place.is_ready);
        let mut pods: BTreeMap<&str, &Place> = BTreeMap::new();
        for place in places().filter(|place| place.is_ready || !is_any_ready) {
            let kept = pods.entry(&place.pod).or_insert(place);
            if place.family < kept.family {
                *kept = place;
            }
        }
        let mut found: Vec<Address> = pods.values().map(|place| place.address.clone()).collect();
        found.sort_by_key(Address::to_string);
        found.dedup();
        found
    }

    fn places(&self, slice: &EndpointSlice) -> Vec<Place> {
        let mut endpoints = slice.endpoints.iter().flatten().peekable();
        let target = Target::of(slice, self.port.as_ref());
        if target.is_none() && endpoints.peek().is_some() {
            let (slice, port) = (slice.metadata.name.as_deref(), &self.port);
            tracing::warn!(slice, ?port, "these pods have no such port, or several: name one");
        }
        let place = |endpoint| target.as_ref().and_then(|target| target.place(endpoint));
        endpoints.filter_map(place).collect()
    }
}

fn name(slice: EndpointSlice) -> String {
    slice.metadata.name.unwrap_or_default()
}

// === impl Target ===

impl Target {
    fn of(slice: &EndpointSlice, wanted: Option<&Port>) -> Option<Self> {
        let is_tcp = |port: &&EndpointPort| port.protocol.as_deref().unwrap_or("TCP") == "TCP";
        let mut ports = slice.ports.iter().flatten().filter(is_tcp);
        let number = |port: &EndpointPort| port.port.and_then(|number| number.try_into().ok());
        let (port, known) = match wanted {
            Some(Port::Number(wanted)) => {
                (*wanted, ports.find(|port| number(port) == Some(*wanted)))
            }
            Some(Port::Name(wanted)) => {
                let known = ports.find(|port| port.name.as_ref() == Some(wanted))?;
                (number(known)?, Some(known))
            }
            None => {
                let known = ports.next().filter(|_| ports.next().is_none())?;
                (number(known)?, Some(known))
            }
        };
        let protocol = known.and_then(|port| port.app_protocol.as_deref());
        let scheme = if protocol == Some("https") { "https" } else { "http" };
        let family = match slice.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            _ => Family::Name,
        };
        Some(Self { scheme, port, family })
    }

    /// Where a pod is. `None`: it ends, or has no address that can be used.
    fn place(&self, endpoint: &Endpoint) -> Option<Place> {
        let conditions = endpoint.conditions.as_ref();
        if conditions.is_some_and(|conditions| conditions.terminating == Some(true)) {
            return None;
        }
        // What is not said is so.
        let is_ready = conditions.is_none_or(|conditions| conditions.ready != Some(false));
        // Only the first has a meaning.
        let host = endpoint.addresses.first()?;
        let Self { scheme, port, family } = *self;
        let url = match family {
            Family::V6 => format!("{scheme}://[{host}]:{port}"),
            Family::V4 | Family::Name => format!("{scheme}://{host}:{port}"),
        };
        let address = Address::parse(&url).ok()?;
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref());
        Some(Place { pod: pod.unwrap_or(host).clone(), family, address, is_ready })
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
