//! All certificates, keys and authorities of the gateway: looked at now and then, because whoever
//! renews them only writes files, and at once when somebody says so.

use super::fresh::Reload;
use super::{Acceptor, Outbound};
use crate::supervise::{self, Task};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use tokio::time::MissedTickBehavior;

/// Which side a certificate is shown to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Clients, and operators.
    Client,
    /// Replicas.
    Backend,
    /// Collectors.
    Collector,
}

/// All of them.
#[derive(Default)]
pub struct Credentials {
    acceptors: Mutex<Vec<Weak<dyn Reload>>>,
    outbounds: Mutex<Vec<(Side, Weak<Outbound>)>>,
    reloaded: AtomicU64,
    failed: AtomicU64,
}

/// What became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    /// When the first certificate for a side of [`Side::ALL`] ends, in seconds since 1970. `None`:
    /// there is none.
    pub expire: [Option<f64>; 3],
    /// Times that new files were taken.
    pub reloaded: u64,
    /// Times that they could not be used.
    pub failed: u64,
}

/// How often the files are read.
const LOOK_EVERY: Duration = Duration::from_secs(10);

impl Side {
    /// All of them.
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
    /// Looks after those of an acceptor, as long as it is there.
    pub fn keep_acceptor(&self, acceptor: &Acceptor) {
        lock(&self.acceptors).push(Arc::downgrade(&acceptor.reloading()));
    }

    /// Looks after those of connections to others, as long as there are any.
    pub fn keep_outbound(&self, side: Side, outbound: &Arc<Outbound>) {
        lock(&self.outbounds).push((side, Arc::downgrade(outbound)));
    }

    /// Makes anew whatever has new files. What cannot be used is logged, and the old one stays.
    /// Reads files, so it blocks.
    pub fn reload(&self) {
        for (side, each) in self.all() {
            let Some(result) = each.reload() else { continue };
            let (side, files) = (side.as_str(), each.files());
            let count = match result {
                Ok(()) => {
                    tracing::info!(side, files, "new certificates are in use");
                    &self.reloaded
                }
                Err(error) => {
                    tracing::error!(side, %error, "new certificates cannot be used; the old ones stay");
                    &self.failed
                }
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does so again and again, for ever.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let all = self.clone();
            if tokio::task::spawn_blocking(move || all.reload()).await.is_err() {
                supervise::report(Task::Certificates);
            }
        }
    }

    /// What became of them so far.
    pub fn counts(&self) -> Counts {
        let mut expire = [None; 3];
        for (side, each) in self.all() {
            let ends = each.expires().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            let earliest = &mut expire[side as usize];
            let sooner = |ends: f64| earliest.map_or(ends, |earliest: f64| earliest.min(ends));
            *earliest = ends.map(|ends| sooner(ends.as_secs_f64())).or(*earliest);
        }
        Counts {
            expire,
            reloaded: self.reloaded.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Those that are still there.
    fn all(&self) -> Vec<(Side, Arc<dyn Reload>)> {
        let mut acceptors = lock(&self.acceptors);
        acceptors.retain(|each| each.strong_count() > 0);
        let mut outbounds = lock(&self.outbounds);
        outbounds.retain(|(_, each)| each.strong_count() > 0);
        let inward = acceptors.iter().filter_map(|each| Some((Side::Client, each.upgrade()?)));
        let outward = outbounds.iter().filter_map(|(side, each)| Some((*side, each.upgrade()?)));
        let outward = outward
            .flat_map(|(side, each)| each.reloading().into_iter().map(move |each| (side, each)));
        inward.chain(outward).collect()
    }
}

fn lock<T>(list: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
