//! The sections about clients: listeners, access, limits and the identity of requests.

pub(crate) mod access;
pub(crate) mod identities;
pub(crate) mod limits;
pub(crate) mod listeners;
pub(crate) mod routes;
pub(crate) mod tiers;
pub(crate) mod tls;
