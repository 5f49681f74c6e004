//! The sections of the backends: their list, the TLS of connections to them, and the usage that the gateway
//! requests, and the discovery of further backends.

pub(super) mod client_tls;
pub(super) mod discovery;
pub(super) mod section;
pub(super) mod usage;
