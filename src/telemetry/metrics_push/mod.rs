//! Metrics push: sends the metrics of the metrics page to an OTLP collector at a fixed interval,
//! from a task of its own.
//!
//! Totals are cumulative. A later push therefore contains the data of a failed push, and nothing is
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
use super::cpu_time::{self, TelemetryPart};
use super::metrics_registry::Prometheus;
use super::otel::resource::resource;
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

/// The source of the pushed metrics.
pub struct MetricsPushSource {
    /// The telemetry whose metrics are pushed.
    pub telemetry: Arc<Telemetry>,
    /// Takes a snapshot of the state of the gateway. The function flushes batched records first, so
    /// that they are part of the pushed metrics.
    pub vitals: Box<dyn Fn() -> StatusSnapshot + Send + Sync>,
    /// Start of the cumulative totals.
    pub since: SystemTime,
}

/// A handle to the running push task.
#[derive(Debug)]
pub struct MetricsPusher {
    outbound: Arc<OutboundTls>,
    stop_sender: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Longest duration of the last push, which follows when the gateway shuts down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

struct MetricsPushTask {
    source: MetricsPushSource,
    stats: MetricsPushStats,
    resource: Resource,
    transport: MetricsPushTransport,
    timeout: Duration,
    /// Histograms have exponential buckets.
    is_exponential: bool,
}

// === impl MetricsPusher ===

impl MetricsPusher {
    /// Starts the push task. The first push follows after one interval. The collector need not be
    /// reachable yet. Must be called inside a tokio runtime.
    pub fn start(
        settings: &MetricsPushSettings,
        source: MetricsPushSource,
        stats: MetricsPushStats,
    ) -> Result<Self, MetricsPushStartError> {
        let outbound = collector_client::outbound(&settings.security, settings.protocol.alpn())?;
        let push_task = MetricsPushTask {
            source,
            stats,
            resource: Resource::from(&resource(&settings.service_name)),
            transport: MetricsPushTransport::new(settings, &outbound)?,
            timeout: settings.timeout,
            is_exponential: settings.is_exponential,
        };
        let (stop_sender, stop_receiver) = oneshot::channel();
        let task = tokio::spawn(push_task.run(settings.interval, stop_receiver));
        Ok(Self { outbound, stop_sender, task })
    }

    /// TLS of the connections to the collector.
    pub fn outbound(&self) -> &Arc<OutboundTls> {
        &self.outbound
    }

    /// Pushes the metrics once more and stops the task, within 2 s.
    pub async fn shutdown(self) {
        // Sending fails if the task has ended. Nothing can be pushed then.
        let _ = self.stop_sender.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "metrics push task failed: the metrics at the shutdown were not pushed");
        }
    }
}

// === impl MetricsPushTask ===

impl MetricsPushTask {
    /// Pushes after each `interval` until a stop is requested, and then once more.
    async fn run(self, interval: Duration, stop_receiver: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval_at((clock::now() + interval).into(), interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let push_repeatedly = async {
            loop {
                ticks.tick().await;
                self.push_once(self.timeout).await;
            }
        };
        // A stop may interrupt a push. The last push contains the data of the interrupted push.
        tokio::select! {
            () = push_repeatedly => {}
            _ = stop_receiver => {}
        }
        self.push_once(SHUTDOWN_TIMEOUT.min(self.timeout)).await;
    }

    async fn push_once(&self, timeout: Duration) {
        let sending = cpu_time::measure_future(TelemetryPart::MetricsPush, self.send_metrics());
        let push = tokio::time::timeout(timeout, sending);
        let result = supervise::catch_panic_async(BackgroundTask::MetricPush, push).await;
        let timed_out = |_| Err(MetricsPushError::Timeout(timeout));
        let result = result
            .map_or(Err(MetricsPushError::Panicked), |result| result.unwrap_or_else(timed_out));
        self.stats.record_result(result);
    }

    async fn send_metrics(&self) -> Result<(), MetricsPushError> {
        let time_range = PushTimeRange::new(self.source.since, clock::wall_time());
        let status = (self.source.vitals)();
        let metrics = self.source.telemetry.prometheus.iter();
        let build = |prometheus: &Arc<Prometheus>| {
            message::build_metrics(prometheus, &status, time_range, self.is_exponential)
        };
        let metrics = metrics.flat_map(build).collect();
        for request in message::build_requests(metrics, &self.resource) {
            self.transport.send(request).await?;
        }
        Ok(())
    }
}
