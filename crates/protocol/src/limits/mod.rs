//! Limits of rates, of memory and of the lengths of lists.

pub mod memory_charge;
mod party;
pub mod rate_limiter;

pub use party::Party;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

/// Appends an item to a list of at most `max` items, which is at least 1. If the list is full, its first item
/// is removed and returned.
pub fn push_bounded<T>(list: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    let first = if list.len() >= max { list.pop_front() } else { None };
    list.push_back(item);
    first
}

/// The address by which limits count a client without a key: an IPv4 address unchanged, or the /64
/// network of an IPv6 address. One client usually has all addresses of a /64 network.
pub fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
        ip @ IpAddr::V4(_) => ip,
    }
}
