//! The background tasks of the backends besides their health checks. They use the backends and the pool.
//! The backends and the pool do not use them.

pub mod peer_exchange;
