//! The sections of the backends: their list, TLS of the connections to them, the usage that the gateway
//! requests, and the discovery of further backends.

pub(super) mod client_tls;
pub(super) mod discovery;
pub(super) mod section;
pub(super) mod usage;
