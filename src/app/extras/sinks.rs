//! The sinks of options, and what they sample and write.

use super::{payload_log, quality, trace_capture, usage_log};
use crate::app::error::{ApplicationError, in_part};
use crate::config::Config;
use payload_log::PayloadLog;
use quality::QualityMonitor;
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use tokenweir_gateway::proxy::{TextSample, TextSampling};
use tokenweir_gateway::status::StatusSource;
use tokenweir_gateway::telemetry::otel::resource::host_name;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::TextConsumer;
use tokenweir_settings::Environment;
use trace_capture::TraceCapture;
use usage_log::UsageLog;

/// The consumers of sampled prompts and responses.
const PAYLOAD_LOG: TextConsumer = TextConsumer::new(0);
const QUALITY: TextConsumer = TextConsumer::new(1);

/// The sinks that have been started, each with its counts and its worker.
#[derive(Default)]
pub(in crate::app) struct Sinks {
    /// The sinks that get records in batches.
    pub(in crate::app) batched: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record when its request ends.
    pub(in crate::app) immediate: Vec<Arc<dyn Sink>>,
    /// The guards of their workers.
    pub(in crate::app) guards: Vec<Box<dyn Any + Send>>,
    /// What a shutdown waits for.
    pub(in crate::app) ends: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(in crate::app) status_sources: Vec<StatusSource>,
    /// The consumers of prompts and responses, each with its sample.
    samples: Vec<TextSample>,
}

impl Sinks {
    /// Starts the configured sinks of options. `of_requests`: those of the options of requests, which run already.
    pub(in crate::app) fn add_options(
        &mut self,
        config: &Config,
        of_requests: Vec<Arc<dyn Sink>>,
        env: impl Environment,
    ) -> Result<(), ApplicationError> {
        self.batched.extend(of_requests);
        self.add_trace_capture(config)?;
        self.add_payload_log(config)?;
        self.add_quality(config)?;
        self.add_usage_log(config, env)
    }

    /// Returns the sampling of prompts and responses. `None`: no text is sampled.
    pub(in crate::app) fn text_sampling(&self, config: &Config) -> Option<TextSampling> {
        if self.samples.is_empty() {
            return None;
        }
        let max_text_bytes = config.log.payloads.excerpt_bytes();
        Some(TextSampling {
            samples: self.samples.clone(),
            max_text_bytes,
        })
    }

    /// Adds the trace capture. It starts only if a file is configured.
    fn add_trace_capture(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.trace_capture;
        let mut running = None;
        if let Some(file) = &settings.file {
            let problem = format!(
                "cannot write the capture file {} (trace_capture.file)",
                file.display()
            );
            let max_bytes = config.log.max_file_bytes as u64;
            let started = TraceCapture::start(file, max_bytes, settings.sample);
            let (capture, guard) = started.map_err(in_part(problem))?;
            running = Some(self.add(capture, guard));
        }
        self.status_sources
            .push(trace_capture::rows::status_source(running));
        Ok(())
    }

    /// Adds the payload log. It starts only if it is enabled.
    fn add_payload_log(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.log.payloads;
        let max_bytes = config.log.max_file_bytes as u64;
        let started = PayloadLog::start(settings, max_bytes, PAYLOAD_LOG);
        let started = started.map_err(in_part("cannot start the payload log (log.payloads)"))?;
        let Some((payload_log, guard)) = started else {
            return Ok(());
        };
        let payload_log = self.add(payload_log, guard);
        self.status_sources
            .push(payload_log::rows::status_source(payload_log));
        let share = settings.sample;
        self.samples.push(TextSample {
            consumer: PAYLOAD_LOG,
            share,
            is_by_trace: false,
        });
        Ok(())
    }

    /// Adds quality monitoring. It starts only if it is enabled.
    fn add_quality(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.quality;
        let max_bytes = config.log.max_file_bytes as u64;
        let redaction = config.log.payloads.redaction();
        let started = QualityMonitor::start(settings, &redaction, max_bytes, QUALITY);
        let started = started.map_err(in_part("cannot start the quality samples (quality)"))?;
        let mut running = None;
        if let Some((quality, guard)) = started {
            if guard.is_some() {
                let share = settings.share();
                self.samples.push(TextSample {
                    consumer: QUALITY,
                    share,
                    is_by_trace: true,
                });
            }
            running = Some(self.add(quality, guard));
        }
        self.status_sources
            .push(quality::rows::status_source(running));
        Ok(())
    }

    /// Adds the usage log. It starts only if a file is configured.
    fn add_usage_log(
        &mut self,
        config: &Config,
        env: impl Environment,
    ) -> Result<(), ApplicationError> {
        let mut running = None;
        if let Some(settings) = config.usage_log.settings(&host_name(), env)? {
            let file = settings.file.display();
            let problem = format!("cannot write the usage log {file} (usage_log.file)");
            let (log, guard) = UsageLog::start(settings).map_err(in_part(problem))?;
            let log = Arc::new(log);
            self.immediate.push(log.clone());
            self.ends.push(Box::pin(guard.shutdown()));
            running = Some(log);
        }
        self.status_sources
            .push(usage_log::rows::status_source(running));
        Ok(())
    }

    /// Adds a sink and the guard of its worker. Returns the sink.
    fn add<S: Sink + 'static>(&mut self, sink: S, guard: impl Any + Send) -> Arc<S> {
        let sink = Arc::new(sink);
        self.batched.push(sink.clone());
        self.guards.push(Box::new(guard));
        sink
    }
}
