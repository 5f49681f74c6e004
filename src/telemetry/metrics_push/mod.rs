//! Metrics push: sends the metrics of the metrics page to an OTLP collector at a fixed interval,
//! from a task of its own.
//!
//! Totals are cumulative. A later push therefore contains the data of a failed one, and nothing is
//! counted twice.

mod message;
mod otlp_names;
mod settings;
mod stats;
mod transport;

#[cfg(test)]
mod tests;

pub use settings::{MetricsPushConfig, MetricsPushSettings};
pub use stats::{MetricsPushCounts, MetricsPushStats};
pub use transport::MetricsPushStartError;

use super::Telemetry;
use super::clients::collector_client;
use super::otel::export::resource;
use super::status::StatusSnapshot;
use message::PushTimeRange;
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokenweir_core::clock;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_net::tls::OutboundTls;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use transport::{MetricsPushError, MetricsPushTransport};

/// The data that is pushed.
pub struct MetricsPushSource {
    /// The metrics.
    pub telemetry: Arc<Telemetry>,
    /// Reads the state of the gateway. It flushes batched records first.
    pub vitals: Box<dyn Fn() -> StatusSnapshot + Send + Sync>,
    /// Start of the cumulative totals.
    pub since: SystemTime,
}

/// The running push task.
#[derive(Debug)]
pub struct MetricsPusher {
    outbound: Arc<OutboundTls>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Longest duration of the last push.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

struct MetricsPushTask {
    source: MetricsPushSource,
    stats: MetricsPushStats,
    resource: Resource,
    transport: MetricsPushTransport,
    timeout: Duration,
}

// === impl Push ===

impl MetricsPusher {
    /// Starts the push task. The first push follows after one interval. The collector need not be
    /// reachable yet. Must be called inside a tokio runtime.
    pub fn start(
        settings: &MetricsPushSettings,
        source: MetricsPushSource,
        counter: MetricsPushStats,
    ) -> Result<Self, MetricsPushStartError> {
        let outbound = collector_client::outbound(&settings.security, settings.protocol)?;
        let pusher = MetricsPushTask {
            source,
            stats: counter,
            resource: Resource::from(&resource(&settings.service_name)),
            transport: MetricsPushTransport::new(settings, &outbound)?,
            timeout: settings.timeout,
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(pusher.run(settings.interval, stopped));
        Ok(Self { outbound, stop, task })
    }

    /// TLS of the connections to the collector.
    pub fn outbound(&self) -> &Arc<OutboundTls> {
        &self.outbound
    }

    /// Pushes once more and stops, within 2 s.
    pub async fn shutdown(self) {
        // A task that has ended has nothing left to push.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "metrics push task failed: the last metrics were not pushed");
        }
    }
}

// === impl MetricsPushTask ===

impl MetricsPushTask {
    async fn run(self, interval: Duration, stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval_at((clock::now() + interval).into(), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let push_repeatedly = async {
            loop {
                ticks.tick().await;
                self.push_once(self.timeout).await;
            }
        };
        // The last push repeats the data of an interrupted push.
        tokio::select! {
            () = push_repeatedly => {}
            _ = stopped => {}
        }
        self.push_once(SHUTDOWN_TIMEOUT.min(self.timeout)).await;
    }

    async fn push_once(&self, timeout: Duration) {
        let push = tokio::time::timeout(timeout, self.send_metrics());
        let result = supervise::catch_panic_async(BackgroundTask::MetricPush, push).await;
        let timed_out = |_| Err(MetricsPushError::Timeout(timeout));
        let result = result
            .map_or(Err(MetricsPushError::Panicked), |result| result.unwrap_or_else(timed_out));
        self.stats.record_result(result);
    }

    async fn send_metrics(&self) -> Result<(), MetricsPushError> {
        let time_range = PushTimeRange::new(self.source.since, clock::wall_time());
        let vitals = (self.source.vitals)();
        let metrics = self.source.telemetry.prometheus.iter();
        let metrics = metrics
            .flat_map(|prometheus| message::build_metrics(prometheus, &vitals, time_range))
            .collect();
        for request in message::build_requests(metrics, &self.resource) {
            self.transport.send(request).await?;
        }
        Ok(())
    }
}
