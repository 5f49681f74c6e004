//! The properties of a client that its connection provides.

use std::net::IpAddr;

/// The client of a request.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo {
    /// Address of the client.
    pub ip: IpAddr,
    /// Open requests of this address on all of its connections, including this one.
    pub open_requests: u32,
}
