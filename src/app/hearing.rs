//! Who hears of every request, and what of it ends when the gateway does.

use super::assembly::AssemblyError;
use super::logs::Logs;
use super::parts::{capture, later, log_counts, telemetry};
use crate::backend::pool::Pool;
use crate::config::Config;
use crate::proxy::KeptText;
use crate::proxy::access::Access;
use crate::telemetry::Telemetry;
use crate::telemetry::buckets::Buckets;
use crate::telemetry::capture::{self, Capture};
use crate::telemetry::content::{self, Content};
use crate::telemetry::explain::Explanations;
use crate::telemetry::otel::{self, Otel};
use crate::telemetry::quality::{self, Quality};
use crate::telemetry::recent::Recent;
use crate::telemetry::teller::Telling;
use crate::telemetry::vitals::LogCounts;
use std::sync::Arc;
use tokenweir_core::clock;
use tokenweir_core::observe::Sink;
use tokenweir_diagnose::Tallies;

/// Who hears of every request.
pub(crate) struct Hearing {
    pub(crate) telemetry: Arc<Telemetry>,
    /// Tells what is left when it is dropped.
    pub(crate) telling: Telling,
    pub(crate) explanations: Arc<Explanations>,
    pub(crate) tallies: Arc<Tallies>,
    pub(crate) recent: Arc<Recent>,
    pub(crate) buckets: Buckets,
    pub(crate) otel: Option<Otel>,
    pub(crate) captured: Option<capture::Counter>,
    /// Writes what is left of the capture when it is dropped.
    pub(crate) capturing: Option<capture::Running>,
    /// As well.
    pub(crate) keeping: Option<content::Running>,
    pub(crate) quality: Option<Quality>,
    /// As well.
    pub(crate) sampling: Option<quality::Running>,
    pub(crate) logs: Arc<dyn Fn() -> LogCounts + Send + Sync>,
}

impl Hearing {
    /// Starts all that the configuration asks for.
    pub(crate) fn start(
        config: &Config,
        spans: &otel::Settings,
        logs: &Logs,
        pool: &Arc<Pool>,
        access: &Arc<Access>,
    ) -> Result<Self, AssemblyError> {
        let otel = spans.endpoint.is_some().then(|| Otel::start(spans)).transpose()?;
        let explanations = Arc::new(Explanations::new(config.routing.explain_ring));
        let (capture, capturing) = capture(config)?.unzip();
        let captured = capture.as_ref().map(Capture::counter);
        let access_log = logs.access_log();
        let (content, keeping) = Content::start(&config.log.content)?.unzip();
        let logs = log_counts(logs, access_log.as_ref(), content.as_ref());
        let quality = Quality::start(&config.quality, &config.log.content);
        let (quality, sampling) = quality.map_err(AssemblyError::Quality)?.unzip();
        let at_once: Vec<Arc<dyn Sink>> = vec![pool.clone(), explanations.clone(), access.clone()];
        let tallies = Arc::<Tallies>::default();
        let mut later = later(access_log, otel.as_ref(), capture);
        let recent = Arc::new(Recent::new(clock::now()));
        later.push(recent.clone());
        later.extend(content.map(|content| Arc::new(content) as Arc<dyn Sink>));
        later.extend(quality.clone().map(|quality| Arc::new(quality) as Arc<dyn Sink>));
        later.push(tallies.clone());
        let buckets = Buckets::new(&config.metrics.buckets, &config.slos)?;
        let (telemetry, telling) = telemetry(pool, config, &buckets, at_once, later);
        let telemetry = Arc::new(telemetry);
        Ok(Self {
            telemetry,
            telling,
            explanations,
            tallies,
            recent,
            buckets,
            otel,
            captured,
            capturing,
            keeping,
            quality,
            sampling: sampling.flatten(),
            logs,
        })
    }

    /// The share of requests that a capture keeps.
    pub(crate) fn captured_share(&self, config: &Config) -> f64 {
        self.capturing.as_ref().map_or(0.0, |_| config.capture.sample)
    }

    /// Whose text is kept.
    pub(crate) fn kept_text(&self, config: &Config) -> Option<KeptText> {
        let content = &config.log.content;
        let log = self.keeping.as_ref().map_or(0.0, |_| content.sample);
        let quality = self.sampling.as_ref().map_or(0.0, |_| config.quality.share());
        let is_kept = log > 0.0 || quality > 0.0;
        is_kept.then(|| KeptText { log, quality, bytes: content.room() })
    }
}
