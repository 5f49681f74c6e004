//! Rejects new requests while the gateway is overloaded, so that accepted requests can finish. The rejection
//! precedes the reading of the body.

use std::net::IpAddr;
use tokenweir_net::file_descriptors::{FileDescriptorPool, max_probe_descriptors};
use tokenweir_protocol::atomic::{AtomicCount, AtomicFlag};
use tokenweir_request::error::GatewayError;

/// The address of a client, and its number of open requests.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo {
    /// The address at the other end of the connection.
    pub ip: IpAddr,
    /// Number of open requests of this address (IPv6: of its /64 network) on all its connections, including the
    /// new request.
    pub open_requests: usize,
}

/// The limits above which the gateway rejects new requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OverloadLimits {
    /// Maximum number of open requests. `None`: only the limit on file descriptors applies.
    pub max_requests: Option<usize>,
    /// Maximum number of open requests of one client address. `None`: no limit.
    pub max_requests_per_client: Option<u32>,
    /// Maximum number of file descriptors for client connections and backend connections together.
    /// `None`: no limit.
    pub max_descriptors: Option<usize>,
}

/// Decides whether the gateway accepts a new request. The decision depends on the numbers of open requests and
/// connections, and on the memory of the process.
#[derive(Debug, Default)]
pub struct OverloadGuard {
    limits: OverloadLimits,
    /// The pool of file descriptors for client connections and backend connections.
    pub descriptors: FileDescriptorPool,
    /// Number of open client connections. The connection limiter updates this number.
    pub(crate) client_connections: AtomicCount,
    health_checkers: AtomicCount,
    /// Whether the memory of the process exceeds its limit.
    pub(crate) is_memory_full: AtomicFlag,
}

impl OverloadGuard {
    /// Creates a guard that rejects requests above these limits.
    pub fn new(limits: OverloadLimits) -> Self {
        Self {
            limits,
            descriptors: FileDescriptorPool::new(limits.max_descriptors),
            ..Self::default()
        }
    }

    /// Whether the memory of the process exceeds `limits.memory`.
    pub fn is_memory_full(&self) -> bool {
        self.is_memory_full.get()
    }

    /// Sets the number of backends with health checks. The guard reserves one file descriptor for each of them,
    /// up to a quarter of all descriptors.
    pub fn set_health_checkers(&self, count: usize) {
        self.health_checkers.set(count);
    }

    /// Maximum number of open requests of the gateway. `usize::MAX`: no limit.
    pub fn places(&self) -> usize {
        let OverloadLimits {
            max_requests,
            max_descriptors,
            ..
        } = self.limits;
        let checkers = self.health_checkers.get();
        let descriptors = max_descriptors.map_or(usize::MAX, |max| {
            max.saturating_sub(max_probe_descriptors(checkers, max))
        });
        max_requests.unwrap_or(usize::MAX).min(descriptors)
    }

    /// Whether the new request of a client exceeds the limit of open requests per client. `absent` returns the
    /// number of the client's requests that continue without a connection.
    pub(super) fn is_client_busy(&self, client: &ClientInfo, absent: impl Fn() -> usize) -> bool {
        let is_over = |max: u32| client.open_requests.saturating_add(absent()) > max as usize;
        self.limits.max_requests_per_client.is_some_and(is_over)
    }

    /// Checks the limits for a new request. Fails if a limit is exceeded. `open`: the number of open requests
    /// of all clients, including the new request.
    pub(super) fn check(&self, open: usize, client: &ClientInfo) -> Result<(), GatewayError> {
        if self.is_client_busy(client, || 0) {
            return Err(GatewayError::ClientBusy);
        }
        let connections = self.client_connections.get();
        let checkers = self.health_checkers.get();
        let used_by_connections = |max: usize| connections + max_probe_descriptors(checkers, max);
        let is_full = self.limits.max_requests.is_some_and(|max| open > max)
            || self
                .limits
                .max_descriptors
                .is_some_and(|max| open + used_by_connections(max) > max)
            || self.is_memory_full.get();
        if is_full {
            Err(GatewayError::Overloaded)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn client(open_requests: usize) -> ClientInfo {
        ClientInfo {
            ip: Ipv4Addr::LOCALHOST.into(),
            open_requests,
        }
    }

    #[test]
    fn each_set_limit_rejects_requests() {
        assert_eq!(
            OverloadGuard::default().check(1_000_000, &client(1_000_000)),
            Ok(())
        );
        let limits = OverloadLimits {
            max_requests: Some(2),
            max_requests_per_client: Some(1),
            max_descriptors: None,
        };
        let guard = OverloadGuard::new(limits);
        assert_eq!(guard.check(2, &client(1)), Ok(()));
        assert_eq!(guard.check(2, &client(2)), Err(GatewayError::ClientBusy));
        assert_eq!(guard.check(3, &client(1)), Err(GatewayError::Overloaded));
        let guard = OverloadGuard::new(OverloadLimits {
            max_descriptors: Some(10),
            ..OverloadLimits::default()
        });
        guard.client_connections.set(4);
        assert_eq!(guard.check(6, &client(1)), Ok(()));
        assert_eq!(guard.check(7, &client(1)), Err(GatewayError::Overloaded));
        guard.client_connections.set(3);
        assert_eq!(guard.check(7, &client(1)), Ok(()));
        guard.set_health_checkers(2);
        assert_eq!(guard.check(6, &client(1)), Err(GatewayError::Overloaded));
        assert_eq!(guard.check(5, &client(1)), Ok(()));
        guard.set_health_checkers(1_000);
        assert_eq!(
            guard.check(5, &client(1)),
            Ok(()),
            "health checks reserve a quarter at most"
        );
        guard.is_memory_full.set(true);
        assert_eq!(guard.check(1, &client(1)), Err(GatewayError::Overloaded));
    }
}
