//! The sections of the backends: their list, the TLS of connections to them, and the usage that the gateway
//! requests. Discovery uses their types too.

pub(super) mod client_tls;
pub(super) mod section;
pub(super) mod usage;
