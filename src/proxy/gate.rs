//! The gate before all work: what is over a limit is refused at once, before its body is read, so
//! that what has been let in can finish.

use super::Peer;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokenweir_core::error::Error;
use tokenweir_net::descriptors::{Descriptors, for_watching};

/// How much work is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateLimits {
    /// Most requests in flight. `None`: no limit but that of open files.
    pub requests: Option<usize>,
    /// Most of one client.
    pub requests_per_client: Option<u32>,
    /// File descriptors for connections of clients and connections to backends together. `None`: no
    /// limit.
    pub descriptors: Option<usize>,
}

/// Whether new work is taken.
#[derive(Debug)]
pub struct Gate {
    limits: GateLimits,
    descriptors: Descriptors,
    connections: AtomicUsize,
    watchers: AtomicUsize,
    is_memory_full: AtomicBool,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(GateLimits::default())
    }
}

impl Gate {
    /// Open, up to these limits.
    pub fn new(limits: GateLimits) -> Self {
        Self {
            limits,
            descriptors: Descriptors::new(limits.descriptors),
            connections: AtomicUsize::new(0),
            watchers: AtomicUsize::new(0),
            is_memory_full: AtomicBool::new(false),
        }
    }

    /// The file descriptors that are left for connections of clients and to backends.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// How many backends are watched, each over a connection of its own.
    pub fn set_watchers(&self, watchers: usize) {
        self.watchers.store(watchers, Ordering::Relaxed);
    }

    /// Connections of clients that are open now.
    pub fn set_connections(&self, open: usize) {
        self.connections.store(open, Ordering::Relaxed);
    }

    /// Whether the process has more memory than it may.
    pub fn set_memory_full(&self, is_full: bool) {
        self.is_memory_full.store(is_full, Ordering::Relaxed);
    }

    /// Whether it has.
    pub fn is_memory_full(&self) -> bool {
        self.is_memory_full.load(Ordering::Relaxed)
    }

    /// Lets a request of `peer` in, if there is room for it among `open`, in which it is counted.
    pub(super) fn pass(&self, open: usize, peer: &Peer) -> Result<(), Error> {
        if self.limits.requests_per_client.is_some_and(|most| peer.requests > most) {
            return Err(Error::ClientBusy);
        }
        let connections = self.connections.load(Ordering::Relaxed);
        let watchers = self.watchers.load(Ordering::Relaxed);
        let taken = |most: usize| connections + for_watching(watchers, most);
        let is_full = self.limits.requests.is_some_and(|most| open > most)
            || self.limits.descriptors.is_some_and(|most| open + taken(most) > most)
            || self.is_memory_full();
        if is_full { Err(Error::Overloaded) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(requests: u32) -> Peer {
        Peer { ip: Ipv4Addr::LOCALHOST.into(), requests }
    }

    #[test]
    fn each_limit_closes_the_gate_and_none_is_no_limit() {
        assert_eq!(Gate::default().pass(1_000_000, &peer(1_000_000)), Ok(()));
        let limits =
            GateLimits { requests: Some(2), requests_per_client: Some(1), descriptors: None };
        let gate = Gate::new(limits);
        assert_eq!(gate.pass(2, &peer(1)), Ok(()));
        assert_eq!(gate.pass(2, &peer(2)), Err(Error::ClientBusy));
        assert_eq!(gate.pass(3, &peer(1)), Err(Error::Overloaded));
        let gate = Gate::new(GateLimits { descriptors: Some(10), ..GateLimits::default() });
        gate.set_connections(4);
        assert_eq!(gate.pass(6, &peer(1)), Ok(()));
        assert_eq!(gate.pass(7, &peer(1)), Err(Error::Overloaded));
        gate.set_connections(3);
        assert_eq!(gate.pass(7, &peer(1)), Ok(()));
        gate.set_watchers(2);
        assert_eq!(gate.pass(6, &peer(1)), Err(Error::Overloaded));
        assert_eq!(gate.pass(5, &peer(1)), Ok(()));
        gate.set_watchers(1_000);
        assert_eq!(gate.pass(5, &peer(1)), Ok(()), "watchers have a quarter at most");
        gate.set_memory_full(true);
        assert_eq!(gate.pass(1, &peer(1)), Err(Error::Overloaded));
    }
}
