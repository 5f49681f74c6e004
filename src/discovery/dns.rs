//! Replicas by a name: its addresses (A, else AAAA), all at one port, or the hosts and ports of a
//! service (SRV). The system's name servers are asked anew each time: how long an answer may be kept
//! is the configuration's to say.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokenweir_core::address::Address;

/// Who is asked.
#[derive(Clone)]
pub struct Dns(TokioResolver);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The addresses of a host.
    Host {
        /// Its name.
        name: String,
        /// The port at all of them.
        port: u16,
    },
    /// The hosts of a service, with their ports.
    Service {
        /// Its name, such as `_http._tcp.vllm.default.svc.cluster.local`.
        name: String,
    },
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// Nobody to ask, or no usable answer.
    #[error("{0}")]
    Net(#[from] NetError),
    /// The answer has no address.
    #[error("the answer is empty")]
    Empty,
}

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

// === impl Dns ===

impl Dns {
    /// Asks whom this machine asks (`/etc/resolv.conf`). Must be called inside a runtime.
    pub fn of_system() -> Result<Self, DnsError> {
        let mut builder = TokioResolver::builder_tokio()?;
        set(builder.options_mut());
        Ok(Self(builder.build()?))
    }

    /// Asks this server, over UDP. Must be called inside a runtime.
    pub fn at(server: SocketAddr) -> Result<Self, DnsError> {
        let mut name_server = NameServerConfig::udp(server.ip());
        for connection in &mut name_server.connections {
            connection.port = server.port();
        }
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(config, provider);
        set(builder.options_mut());
        Ok(Self(builder.build()?))
    }

    /// All that there is to a question, each once, in an order that does not change.
    pub async fn ask(&self, question: &Question) -> Result<Vec<Address>, DnsError> {
        let mut found = match question {
            Question::Host { name, port } => self.addresses(name, *port).await?,
            Question::Service { name } => self.hosts(name).await?,
        };
        found.sort_by_key(Address::to_string);
        found.dedup();
        if found.is_empty() { Err(DnsError::Empty) } else { Ok(found) }
    }

    async fn addresses(&self, name: &str, port: u16) -> Result<Vec<Address>, DnsError> {
        let found = self.0.lookup_ip(name).await?;
        let address = |ip: IpAddr| Address::parse(&format!("http://{}", SocketAddr::new(ip, port)));
        Ok(found.iter().filter_map(|ip| address(ip).ok()).collect())
    }

    async fn hosts(&self, name: &str) -> Result<Vec<Address>, DnsError> {
        let found = self.0.lookup(name, RecordType::SRV).await?;
        let address = |data: &RData| {
            let RData::SRV(service) = data else { return None };
            let target = service.target.to_utf8();
            let host = target.trim_end_matches('.');
            Address::parse(&format!("http://{host}:{}", service.port)).ok()
        };
        Ok(found.answers().iter().filter_map(|record| address(&record.data)).collect())
    }
}

fn set(options: &mut ResolverOpts) {
    options.cache_size = 0;
    options.timeout = TIMEOUT;
    options.attempts = 1;
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
}

impl fmt::Display for Question {
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
