//! The client of a request, as its connection knows it.

use crate::observe::Leash;
use std::net::IpAddr;

/// The client of a request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its requests that are open, on all of its connections, with this one.
    pub requests: u32,
    /// What ends the answer if it is not taken.
    pub leash: Leash,
}
