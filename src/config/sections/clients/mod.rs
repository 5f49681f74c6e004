//! The sections about clients: listeners, access, limits and the identity of requests.

pub(in crate::config) mod access;
pub(in crate::config) mod identities;
pub(in crate::config) mod limits;
pub(in crate::config) mod listeners;
pub(in crate::config) mod routes;
pub(in crate::config) mod tiers;
pub(in crate::config) mod tls;
