//! Reloads the certificates, keys and certificate authorities of the gateway when their files
//! change: at an interval, because renewal tools only write files, and on request.

use super::acceptor::Acceptor;
use super::connector::OutboundTls;
use super::file_backed::Reloadable;
use crate::supervise::{self, BackgroundTask};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use tokio::time::MissedTickBehavior;

/// The peers of TLS connections. A certificate is presented to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPeer {
    /// Clients and operators.
    Client,
    /// Backends.
    Backend,
    /// Collectors.
    Collector,
}

/// All certificates, keys and authorities of the gateway. They are held weakly: the values of
/// dropped acceptors and outbound contexts are forgotten.
#[derive(Default)]
pub struct Credentials {
    acceptors: Mutex<Vec<Weak<dyn Reloadable>>>,
    outbounds: Mutex<Vec<(TlsPeer, Weak<OutboundTls>)>>,
    reload_count: AtomicU64,
    failure_count: AtomicU64,
}

/// Expiry times and reload counts of certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CertificateCounts {
    /// Earliest expiry of the certificates for reloadable peer of [`TlsPeer::ALL`], in seconds
    /// since
    /// 1970. `None`: no certificate.
    pub expire: [Option<f64>; 3],
    /// Number of successful reloads.
    pub reloaded: u64,
    /// Number of failed reloads.
    pub failed: u64,
}

/// Time between two checks of the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

impl TlsPeer {
    /// All peers, in declaration order.
    pub const ALL: [Self; 3] = [Self::Client, Self::Backend, Self::Collector];

    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
            Self::Collector => "collector",
        }
    }
}

impl Credentials {
    /// Reloads the files of an acceptor until the acceptor is dropped.
    pub fn register_acceptor(&self, acceptor: &Acceptor) {
        lock(&self.acceptors).push(Arc::downgrade(&acceptor.reloadable()));
    }

    /// Reloads the files of outbound contexts until they are dropped.
    pub fn register_outbound(&self, side: TlsPeer, outbound: &Arc<OutboundTls>) {
        lock(&self.outbounds).push((side, Arc::downgrade(outbound)));
    }

    /// Reloads the credentials whose files have changed. Invalid files are logged and counted, and
    /// the previous credentials stay in use. Blocks on file reads.
    pub fn reload_changed_files(&self) {
        for (side, reloadable) in self.reloadables() {
            let Some(result) = reloadable.reload_if_changed() else { continue };
            let (side, files) = (side.as_str(), reloadable.describe_files());
            let count = match result {
                Ok(()) => {
                    tracing::info!(side, files, "reloaded certificate files");
                    &self.reload_count
                }
                Err(error) => {
                    tracing::error!(
                        side,
                        %error,
                        "cannot reload certificate files: keeping the previous certificates"
                    );
                    &self.failure_count
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls [`reload_changed_files`](Self::reload_changed_files) every `RELOAD_INTERVAL`,
    /// without end.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let credentials = self.clone();
            let reload = tokio::task::spawn_blocking(move || credentials.reload_changed_files());
            if reload.await.is_err() {
                supervise::record_panic(BackgroundTask::Certificates);
            }
        }
    }

    /// The current expiry times and reload counts.
    pub fn counts(&self) -> CertificateCounts {
        let mut expire = [None; 3];
        for (side, reloadable) in self.reloadables() {
            let expires_at = reloadable.expires_at();
            let expiry = expires_at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            let earliest = &mut expire[side as usize];
            let minimum = |expiry: f64| earliest.map_or(expiry, |other: f64| other.min(expiry));
            *earliest = expiry.map(|expiry| minimum(expiry.as_secs_f64())).or(*earliest);
        }
        CertificateCounts {
            expire,
            reloaded: self.reload_count.load(Ordering::Relaxed),
            failed: self.failure_count.load(Ordering::Relaxed),
        }
    }

    /// All registered values that were not dropped.
    fn reloadables(&self) -> Vec<(TlsPeer, Arc<dyn Reloadable>)> {
        let mut acceptors = lock(&self.acceptors);
        acceptors.retain(|acceptor| acceptor.strong_count() > 0);
        let mut outbounds = lock(&self.outbounds);
        outbounds.retain(|(_, outbound)| outbound.strong_count() > 0);
        let inbound =
            acceptors.iter().filter_map(|acceptor| Some((TlsPeer::Client, acceptor.upgrade()?)));
        let outbound = outbounds
            .iter()
            .filter_map(|(side, outbound)| Some((*side, outbound.upgrade()?)))
            .flat_map(|(side, outbound)| {
                outbound.reloadables().into_iter().map(move |reloadable| (side, reloadable))
            });
        inbound.chain(outbound).collect()
    }
}

fn lock<T>(list: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
