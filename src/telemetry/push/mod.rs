//! The metrics pushed to a collector by OTLP: the families of the page, told again after each
//! interval by a task of its own. Totals are cumulative, so a push that fails loses nothing that
//! the next one does not carry, and none is sent twice.

mod message;
mod names;
mod settings;
mod transport;

#[cfg(test)]
mod tests;

pub use settings::{Configured, Settings};

use super::Telemetry;
use super::collector;
use super::otel::export::resource;
use super::vitals::Vitals;
use message::Span;
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokenweir_core::clock;
use tokenweir_net::supervise::{self, Task};
use tokenweir_net::tls::{Outbound, TlsError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use transport::{PushError, Transport};

/// What is pushed.
pub struct Source {
    /// The metrics.
    pub telemetry: Arc<Telemetry>,
    /// The state of the gateway now, with what has ended settled.
    pub vitals: Box<dyn Fn() -> Vitals + Send + Sync>,
    /// Since when totals are counted.
    pub since: SystemTime,
}

/// How pushes went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The collector took all of it.
    pub ok: u64,
    /// It did not, or not in time.
    pub failed: u64,
}

/// Counts pushes. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<Tally>);

#[derive(Debug, Default)]
struct Tally {
    ok: AtomicU64,
    failed: AtomicU64,
    is_failing: AtomicBool,
}

/// The task that pushes.
#[derive(Debug)]
pub struct Push {
    outbound: Arc<Outbound>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Why metrics cannot be pushed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It is no URL that can be spoken to.
    #[error("the endpoint of the metrics is not a URL")]
    Endpoint(#[from] http::uri::InvalidUri),
    /// The files of TLS cannot be used.
    #[error("the TLS of the metrics cannot be set up")]
    Tls(#[from] TlsError),
}

/// How long the last push may take.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

struct Pusher {
    source: Source,
    counter: Counter,
    resource: Resource,
    transport: Transport,
    timeout: Duration,
}

// === impl Push ===

impl Push {
    /// Starts to push, first after one interval. The collector need not answer yet. Must be called
    /// inside a tokio runtime.
    pub fn start(
        settings: &Settings,
        source: Source,
        counter: Counter,
    ) -> Result<Self, StartError> {
        let outbound = collector::outbound(&settings.security, settings.protocol)?;
        let pusher = Pusher {
            source,
            counter,
            resource: Resource::from(&resource(&settings.service_name)),
            transport: Transport::new(settings, &outbound)?,
            timeout: settings.timeout,
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(pusher.run(settings.interval, stopped));
        Ok(Self { outbound, stop, task })
    }

    /// Whom the gateway is, and believes, at the collector.
    pub fn outbound(&self) -> &Arc<Outbound> {
        &self.outbound
    }

    /// Pushes once more and stops, within 2 s.
    pub async fn shutdown(self) {
        // A task that has ended already has nothing left to push.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the push of the metrics failed");
        }
    }
}

// === impl Pusher ===

impl Pusher {
    async fn run(self, interval: Duration, stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval_at((clock::now() + interval).into(), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let again_and_again = async {
            loop {
                ticks.tick().await;
                self.push(self.timeout).await;
            }
        };
        // A push that is cut is told again by the last one.
        tokio::select! {
            () = again_and_again => {}
            _ = stopped => {}
        }
        self.push(SHUTDOWN_LIMIT.min(self.timeout)).await;
    }

    async fn push(&self, limit: Duration) {
        let sending = tokio::time::timeout(limit, self.send());
        let sent = supervise::catch_async(Task::MetricPush, sending).await;
        let timeout = |_| Err(PushError::Timeout(limit));
        let sent = sent.map_or(Err(PushError::Panicked), |sent| sent.unwrap_or_else(timeout));
        self.counter.count(sent);
    }

    async fn send(&self) -> Result<(), PushError> {
        let span = Span::new(self.source.since, clock::wall());
        let vitals = (self.source.vitals)();
        let metrics = self.source.telemetry.prometheus.iter();
        let metrics = metrics.flat_map(|it| message::metrics(it, &vitals, span)).collect();
        for request in message::requests(metrics, &self.resource) {
            self.transport.send(request).await?;
        }
        Ok(())
    }
}

// === impl Counter ===

impl Counter {
    /// So far.
    pub fn counts(&self) -> Counts {
        let Tally { ok, failed, .. } = &*self.0;
        Counts { ok: ok.load(Ordering::Relaxed), failed: failed.load(Ordering::Relaxed) }
    }

    /// Tells once when pushes begin to fail and when they have recovered.
    fn count(&self, sent: Result<(), PushError>) {
        let Tally { ok, failed, is_failing } = &*self.0;
        let was_failing = is_failing.swap(sent.is_err(), Ordering::Relaxed);
        match sent {
            Ok(()) => {
                ok.fetch_add(1, Ordering::Relaxed);
                if was_failing {
                    tracing::info!("metrics are pushed again");
                }
            }
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                if !was_failing {
                    tracing::warn!(%error, "metrics cannot be pushed");
                }
            }
        }
    }
}
