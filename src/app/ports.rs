//! The two ports, and how much may come in by them.

use super::assembly::AssemblyError;
use super::files::Files;
use super::parts::{gate, limits};
use crate::config::Config;
use crate::proxy::Gate;
use crate::server::{self, Connections, Limits, Reserved, Tls};
use crate::tls::{Acceptor, Credentials, TlsError};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The ports, bound.
pub(super) struct Ports {
    pub(super) clients: Reserved,
    pub(super) operators: TcpListener,
    /// How the files that may be open are shared out.
    pub(super) files: Files,
    pub(super) gate: Arc<Gate>,
    pub(super) limits: Limits,
    pub(super) connections: Arc<Connections>,
    pub(super) tls: Tls,
}

impl Ports {
    /// Binds both, and reads their certificates.
    pub(super) fn bind(config: &Config) -> Result<Self, AssemblyError> {
        let clients = server::reserve(config.listen, "for clients", config.listen_reuse_port)?;
        let operators = server::bind(config.admin, "for operators")?;
        let (limit, backends) = (raise_file_limit(), config.backends.len());
        let files = Files::of(limit);
        files.warn_if_few(limit, backends);
        let gate = Arc::new(gate(config, files));
        gate.set_watchers(backends);
        let limits = limits(config, files, backends);
        let connections = Connections::new(&limits, gate.clone());
        let tls = tls(config)?;
        Ok(Self { clients, operators, files, gate, limits, connections, tls })
    }

    /// Where operators connect.
    pub(super) fn operators(&self, configured: SocketAddr) -> SocketAddr {
        self.operators.local_addr().unwrap_or(configured)
    }

    /// Whether clients and operators speak TLS.
    pub(super) fn is_https(&self) -> [bool; 2] {
        [&self.tls.clients, &self.tls.operators].map(Option::is_some)
    }
}

/// Every stream takes two descriptors, so the soft limit is raised as far as the system allows.
/// Gives the limit. `None`: it is not known.
pub(super) fn raise_file_limit() -> Option<usize> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    match raised.or_else(|error| {
        tracing::warn!(%error, "the limit of open files cannot be raised");
        rlimit::getrlimit(rlimit::Resource::NOFILE).map(|(soft, _)| soft)
    }) {
        Ok(limit) => {
            tracing::debug!(limit, "open files");
            usize::try_from(limit).ok()
        }
        Err(_) => None,
    }
}

/// The certificates of both ports.
fn tls(config: &Config) -> Result<Tls, TlsError> {
    let credentials = Arc::new(Credentials::default());
    let clients = Acceptor::for_clients(&config.tls)?;
    let operators = Acceptor::for_operators(&config.tls)?;
    [&clients, &operators].into_iter().flatten().for_each(|it| credentials.keep_acceptor(it));
    Ok(Tls { clients, operators, credentials })
}
