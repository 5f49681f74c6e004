//! Resolves the backends of a DNS name: its addresses (A, else AAAA) with one port, or the hosts
//! and ports of a service (SRV).
//!
//! Responses are not cached, so the TTL of a record has no effect: the configured interval decides
//! how often the name is resolved.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::{RData, RecordType};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;

/// A DNS resolver without a cache.
#[derive(Clone)]
pub struct DnsResolver(TokioResolver);

/// A DNS name whose records are backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsQuery {
    /// Each address of a host is a backend.
    Host {
        /// The name whose A or AAAA records are resolved.
        name: String,
        /// Port of the backends. All addresses have the same port.
        port: u16,
    },
    /// Each host and port of a service (SRV) is a backend.
    Service {
        /// Name of the service, such as `_http._tcp.vllm.default.svc.cluster.local`.
        name: String,
    },
}

/// Why a DNS query has no result.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// No name server is configured, or the query failed.
    #[error("{0}")]
    Resolver(#[from] NetError),
    /// The response has no address.
    #[error("the DNS response has no addresses")]
    NoAddresses,
}

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

impl DnsResolver {
    /// Uses the name servers of this machine (`/etc/resolv.conf`). Must be called inside a Tokio
    /// runtime.
    pub fn from_system_config() -> Result<Self, DnsError> {
        let mut builder = TokioResolver::builder_tokio()?;
        configure(builder.options_mut());
        Ok(Self(builder.build()?))
    }

    /// Resolves a query to addresses, sorted and without duplicates. Fails if there are no
    /// addresses.
    pub async fn resolve(&self, query: &DnsQuery) -> Result<Vec<BackendAddress>, DnsError> {
        let mut addresses = match query {
            DnsQuery::Host { name, port } => self.resolve_host(name, *port).await?,
            DnsQuery::Service { name } => self.resolve_service(name).await?,
        };
        addresses.sort_by_key(BackendAddress::to_string);
        addresses.dedup();
        if addresses.is_empty() {
            Err(DnsError::NoAddresses)
        } else {
            Ok(addresses)
        }
    }

    async fn resolve_host(&self, name: &str, port: u16) -> Result<Vec<BackendAddress>, DnsError> {
        let response = self.0.lookup_ip(name).await?;
        let address =
            |ip: IpAddr| BackendAddress::parse(&format!("http://{}", SocketAddr::new(ip, port)));
        Ok(response.iter().filter_map(|ip| address(ip).ok()).collect())
    }

    async fn resolve_service(&self, name: &str) -> Result<Vec<BackendAddress>, DnsError> {
        let response = self.0.lookup(name, RecordType::SRV).await?;
        let address = |data: &RData| {
            let RData::SRV(service) = data else {
                return None;
            };
            let target = service.target.to_utf8();
            let host = target.trim_end_matches('.');
            BackendAddress::parse(&format!("http://{host}:{}", service.port)).ok()
        };
        Ok(response
            .answers()
            .iter()
            .filter_map(|record| address(&record.data))
            .collect())
    }
}

/// Disables the cache and limits the time and the attempts of a query.
fn configure(options: &mut ResolverOpts) {
    options.cache_size = 0;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = 1;
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
}

impl fmt::Display for DnsQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { name, port } => write!(f, "{name}:{port}"),
            Self::Service { name } => f.write_str(name),
        }
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
