//! Where replicas are found while the gateway runs. A source tells all that it has found, again
//! whenever that is another list than before. What it cannot find out changes nothing: the last good
//! list holds while a name server is down or answers nothing, a file is gone, or Kubernetes is away.

pub mod dns;
pub mod file;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod name;

use std::future::Future;
use tokenweir_core::address::Address;

/// Something that knows the addresses of replicas.
pub trait Source: Send {
    /// Waits until they are others than before, and gives all of them. Failures are waited out.
    fn changed(&mut self) -> impl Future<Output = Vec<Address>> + Send;
}
