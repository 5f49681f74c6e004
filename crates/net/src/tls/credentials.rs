//! Reloads the certificates, keys and certificate authorities of the gateway when their files change. The files
//! are checked on request and at an interval. The interval is necessary because tools that renew certificates
//! do not notify the gateway.

use super::acceptor::Acceptor;
use super::connector::OutboundTls;
use super::file_backed::Reloadable;
use crate::file_watcher::READ_LIMIT;
use crate::supervise::{self, BackgroundTask};
use serde::Serialize;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::named_enum;
use tokio::time::MissedTickBehavior;

named_enum! {
    /// The other side of a TLS connection in which the gateway presents a certificate.
    pub enum TlsPeer {
        /// Clients of the client listener and operators of the admin listener.
        Client = "client",
        /// Backends to which the gateway presents a client certificate.
        Backend = "backend",
        /// Trace collectors to which the gateway presents a client certificate.
        Collector = "collector",
    }
}

/// All certificates, keys and authorities of the gateway that are reloaded. The references are weak, so that
/// dropped acceptors and outbound contexts leave the list.
#[derive(Default)]
pub struct Credentials {
    acceptors: Mutex<Vec<Weak<dyn Reloadable>>>,
    outbounds: Mutex<Vec<(TlsPeer, Weak<OutboundTls>)>>,
    /// The counts of reloads. The expiry times in this value are unused.
    counts: Mutex<CertificateCounts>,
}

/// The expiry times of the gateway's certificates, and the counts of reloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CertificateCounts {
    /// For each peer, in the order of [`TlsPeer::ALL`]: the earliest expiry of the certificates
    /// that the gateway presents, in seconds since 1970. `None`: the gateway presents no
    /// certificate.
    pub expire: [Option<f64>; 3],
    /// Number of successful reloads since the start.
    pub reloaded: u64,
    /// Number of failed reloads since the start.
    pub failed: u64,
}

/// Time between two checks of the files for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

impl Credentials {
    /// Registers an acceptor, so that its files are reloaded until the acceptor is dropped.
    pub fn register_acceptor(&self, acceptor: &Acceptor) {
        let acceptor: Arc<dyn Reloadable> = acceptor.0.clone();
        lock(&self.acceptors).push(Arc::downgrade(&acceptor));
    }

    /// Registers the contexts of outbound connections, so that their files are reloaded until the
    /// contexts are dropped.
    pub fn register_outbound(&self, peer: TlsPeer, outbound: &Arc<OutboundTls>) {
        lock(&self.outbounds).push((peer, Arc::downgrade(outbound)));
    }

    /// Reloads the credentials whose files have changed. Invalid files are logged and counted, and
    /// the previous credentials stay in use. Blocks on file reads.
    pub fn reload_changed_files(&self) {
        for (peer, reloadable) in self.reloadables() {
            let Some(result) = reloadable.reload_if_changed() else {
                continue;
            };
            let side = peer.as_str();
            let files = reloadable.describe_files();
            match result {
                Ok(()) => {
                    tracing::info!(side, files, "reloaded certificate files");
                    lock(&self.counts).reloaded += 1;
                }
                Err(error) => {
                    tracing::error!(
                        side,
                        %error,
                        "cannot reload certificate files: keeping the previous certificates"
                    );
                    lock(&self.counts).failed += 1;
                }
            }
        }
    }

    /// Reloads changed certificate files at once, and again every 10 s. The future never ends. It catches and
    /// counts panics of reloads.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_late = false;
        loop {
            ticks.tick().await;
            let credentials = self.clone();
            let reload = tokio::task::spawn_blocking(move || credentials.reload_changed_files());
            let result = tokio::time::timeout(READ_LIMIT, reload).await;
            if let Ok(Err(_)) = result {
                supervise::record_panic(BackgroundTask::CERTIFICATES);
            }
            let is_late = result.is_err();
            if is_late && !was_late {
                lock(&self.counts).failed += 1;
                tracing::error!(
                    "reading certificate files takes longer than {READ_LIMIT:?}: their file system does \
                     not respond; the previous certificates stay in use"
                );
            }
            was_late = is_late;
        }
    }

    /// Reads the current expiry times and reload counts.
    pub fn counts(&self) -> CertificateCounts {
        let mut expire = [None; 3];
        for (peer, reloadable) in self.reloadables() {
            let expires_at = reloadable.expires_at();
            let expiry = expires_at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            let earliest = &mut expire[peer as usize];
            let minimum = |expiry: f64| earliest.map_or(expiry, |other: f64| other.min(expiry));
            *earliest = expiry
                .map(|expiry| minimum(expiry.as_secs_f64()))
                .or(*earliest);
        }
        CertificateCounts {
            expire,
            ..*lock(&self.counts)
        }
    }

    /// All registered values that still exist, with the peers of their connections. Removes the entries of
    /// dropped values.
    fn reloadables(&self) -> Vec<(TlsPeer, Arc<dyn Reloadable>)> {
        let mut acceptors = lock(&self.acceptors);
        acceptors.retain(|acceptor| acceptor.strong_count() > 0);
        let mut outbounds = lock(&self.outbounds);
        outbounds.retain(|(_, outbound)| outbound.strong_count() > 0);
        let inbound = acceptors
            .iter()
            .filter_map(|acceptor| Some((TlsPeer::Client, acceptor.upgrade()?)));
        let outbound = outbounds
            .iter()
            .filter_map(|(peer, outbound)| Some((*peer, outbound.upgrade()?)))
            .flat_map(|(peer, outbound)| {
                outbound
                    .reloadables()
                    .into_iter()
                    .map(move |reloadable| (peer, reloadable))
            });
        inbound.chain(outbound).collect()
    }
}
