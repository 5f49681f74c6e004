//! The party to which a shared resource is charged.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

/// A tenant, or the network of a client without a tenant. One party may use only a part of a resource that all
/// parties share, such as memory or the queue.
///
/// A party never depends on a header that the gateway has not verified, because a client could choose another
/// value for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Party(u64);

/// The address by which limits count a client without a key: an IPv4 address unchanged, or the /64 network of
/// an IPv6 address, because one client usually has all addresses of a /64 network.
pub fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// The clients that occur most often in a list, such as the list of the owners of open connections. At a limit,
/// the gateway closes a connection of one of them, so that one client cannot displace the others.
pub fn busiest<C: Copy + Eq + Hash>(clients: impl Iterator<Item = C>) -> HashSet<C> {
    let mut counts: HashMap<C, usize> = HashMap::new();
    for client in clients {
        *counts.entry(client).or_default() += 1;
    }
    let most = counts.values().max().copied();
    counts.retain(|_, count| Some(*count) == most);
    counts.into_keys().collect()
}

impl Party {
    /// The party of a request. `tenant`: the tenant of the API key. `None`: the request has no tenant.
    pub fn new(tenant: Option<&str>, client: IpAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        match (tenant, client_network(client)) {
            (Some(tenant), _) => tenant.hash(&mut hasher),
            (None, IpAddr::V4(address)) => return Self(address.to_bits().into()),
            (None, IpAddr::V6(network)) => network.hash(&mut hasher),
        }
        Self(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_party_without_tenants() {
        let party = |address: &str| Party::new(None, address.parse().unwrap());
        assert_eq!(party("2001:db8::1"), party("2001:db8::2"));
        assert_ne!(party("2001:db8::1"), party("2001:db8:0:1::1"));
        assert_eq!(party("::ffff:10.0.0.1"), party("10.0.0.1"));
        assert_ne!(party("10.0.0.1"), party("10.0.0.2"));
        let tenant = |name, address: &str| Party::new(Some(name), address.parse().unwrap());
        assert_eq!(tenant("a", "10.0.0.1"), tenant("a", "10.0.0.2"));
        assert_ne!(tenant("a", "10.0.0.1"), tenant("b", "10.0.0.1"));
    }
}
