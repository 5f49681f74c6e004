//! Discovers backends while the gateway runs: by DNS, from a file, or from a Kubernetes Service.
//!
//! A source reports its complete list of addresses whenever the list changes. A failure changes
//! nothing: the last valid list stays in use while a name server fails or returns no addresses, a
//! file is missing, or the Kubernetes API server is unreachable.

pub mod dns;
pub mod dns_watcher;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;

use std::future::Future;
use tokenweir_core::address::BackendAddress;

/// A source of backend addresses.
pub trait DiscoverySource: Send {
    /// Waits until the list of addresses differs from the list that was returned last, and returns
    /// the complete new list. Failures are logged and retried.
    fn changed(&mut self) -> impl Future<Output = Vec<BackendAddress>> + Send;
}
