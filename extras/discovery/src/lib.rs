//! Discovers backends while the gateway runs: by DNS, from a file, or from a Kubernetes Service
//! or `InferencePool`.
//!
//! A discovery source reports its complete list of addresses whenever the list changes. A failure
//! changes nothing: the last valid list stays in use while a name server fails or returns no addresses,
//! a file is missing, or the Kubernetes API server is unreachable.

pub mod kubernetes_settings;

#[cfg(feature = "dns")]
pub mod dns;
#[cfg(feature = "dns")]
pub mod dns_watcher;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;

use tokenweir_engine::address::BackendAddress;

/// A backend that a discovery source found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredBackend {
    /// Scheme, host and port of the backend.
    pub address: BackendAddress,
    /// The name of the Kubernetes pod of the backend. `None`: not known.
    pub pod: Option<String>,
}

impl From<BackendAddress> for DiscoveredBackend {
    fn from(address: BackendAddress) -> Self {
        Self { address, pod: None }
    }
}

/// A change that a discovery source reports.
#[derive(Debug)]
pub enum DiscoveryChange {
    /// The complete new list of backends.
    Backends(Vec<DiscoveredBackend>),
    /// The error of a source that has failed twice in succession. `None`: the source works again.
    Problem(Option<String>),
}
