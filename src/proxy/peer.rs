//! The client of a request, as its connection knows it.

use std::net::IpAddr;

/// The client of a request.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its requests that are open, on all of its connections, with this one.
    pub requests: u32,
}
