//! The two ports, and how much may come in by them.

use super::assembly::AssemblyError;
use super::files::Files;
use super::parts::{gate, limits};
use crate::config::Config;
use crate::proxy::Gate;
use crate::server::{self, Connections, Limits, Reserved, Tls};
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_net::tls::{Acceptor, Credentials, TlsError};
use tokio::net::TcpListener;

/// The ports, bound.
pub(crate) struct Ports {
    pub(crate) clients: Reserved,
    pub(crate) operators: TcpListener,
    /// How the files that may be open are shared out.
    pub(crate) files: Files,
    pub(crate) gate: Arc<Gate>,
    pub(crate) limits: Limits,
    pub(crate) connections: Arc<Connections>,
    pub(crate) tls: Tls,
}

impl Ports {
    /// Binds both, and reads their certificates.
    pub(crate) fn bind(config: &Config) -> Result<Self, AssemblyError> {
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
    pub(crate) fn operators(&self, configured: SocketAddr) -> SocketAddr {
        self.operators.local_addr().unwrap_or(configured)
    }

    /// Whether clients and operators speak TLS.
    pub(crate) fn is_https(&self) -> [bool; 2] {
        [&self.tls.clients, &self.tls.operators].map(Option::is_some)
    }
}

/// Every stream takes two descriptors, so the soft limit is raised as far as the system allows.
/// Gives the limit. `None`: it is not known.
pub(crate) fn raise_file_limit() -> Option<usize> {
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
