//! The sections of the configuration that no other module defines, and the rules that concern a
//! single section.

pub(super) mod access;
pub(super) mod backends;
pub(super) mod discovery;
pub(super) mod identities;
pub(super) mod limits;
pub(super) mod peer_exchange;
pub(super) mod routes;
pub(super) mod secret;
pub(super) mod settings;
pub(super) mod webhooks;
