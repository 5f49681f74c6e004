//! The list of the options. The configuration sections, the metrics and the status of the options, and their
//! place on the path of a request, follow from this list.
//!
//! The order of the list is the order of the steps on the path of a request, and of the entries in `/metrics`,
//! in `/status` and in the start banner. An option can use values that earlier options share.

/// Calls a macro with the content of the braces and with the list. An entry has the key of the option, which is
/// also the key of its section, and the type of the option, a `GatewayOption`. Then come:
///
/// - the description of its section, or the settings as `reads` takes them from other sections, or neither
/// - `facet`: the part of the option that belongs to one backend, if that part needs settings of the backend
#[cfg(feature = "options")]
macro_rules! with_options {
    ($callback:ident $before:tt) => {
        $callback! {
            $before
            ranks: tokenweir_ranks::RankProbes,
                facet |config, _| Box::new(tokenweir_ranks::RankFacet::new(config.routing.data_parallel_ranks));
            canary: tokenweir_canary::CanaryRequests, "Canary requests to backends without traffic.";
            sleep: tokenweir_sleep::SleepMode, "Sleep mode of vLLM: when engines are woken and put to sleep.";
            kv_events: tokenweir_kv_event_routing::KvEventsOption,
                "KV events of backends: the contents of their prefix caches, for routing.",
                facet |config, entry| Box::new(tokenweir_kv_event_routing::KvEventsFacet::new(
                    entry.kv_events.as_ref(), &config.kv_events, &entry.url));
            cost: tokenweir_gpu::Cost, "Cost of the GPUs, for metrics.";
            gpu: tokenweir_gpu::GpuMonitor, "GPUs of the backends, from DCGM exporters.",
                facet |config, entry| Box::new(tokenweir_gpu::GpuFacet::new(
                    config.cost.of_backend(entry.gpus, entry.gpu_hour_price)));
            webhooks: tokenweir_webhooks::WebhookNotifier,
                "Webhooks that get a message when a verdict begins and when it ends, up to 10.";
            peer_exchange: tokenweir_peer_exchange::ExchangeOption,
                "Exchange with other gateways before the same backends, for routing.";
            trace_capture: tokenweir_trace_capture::TraceCaptureOption,
                "Capture of the traffic to a file, without texts of prompts and responses.";
            payload_log: tokenweir_payload_log::PayloadLogOption, reads |config| config.log.payloads.clone();
            quality: tokenweir_quality::QualityOption, "Monitoring of the quality of responses.";
            usage_log: tokenweir_usage_log::UsageLogOption,
                "What each request used, in a file and pushed to a receiver.";
            resume: tokenweir_resume::Resumption, reads |config| config.streams.resume.settings();
            prefill_legs: tokenweir_prefill_legs::PrefillLegs;
            continuation: tokenweir_continuation::ContinuationStreams,
                reads |config| tokenweir_continuation::ContinuationSettings {
                    mode: config.streams.continuation,
                    is_greedy_only: config.streams.continuation_greedy_only,
                    memory_bytes: config.limits.continuation_memory,
                };
            model_split: tokenweir_model_split::ModelSplits,
                reads |config| tokenweir_model_split::SplitSettings {
                    models: config.models.clone(),
                    objectives: config.slos.clone(),
                };
            sessions: tokenweir_sessions::SessionsOption,
                "Admission by live sessions: while the contexts of the sessions in progress do not fit into the KV caches of\nthe backends, new sessions wait in the admission queue.";
            jwt: tokenweir_jwt::JwtOption,
                "Access of clients by signed tokens (JWT) of issuers, in addition to keys.";
            shared_limits: tokenweir_shared_limits::SharedLimitsOption,
                "Limits of tenants over restarts. Gateways with a `peer_exchange` count limits together.";
        }
    };
}

#[cfg(not(feature = "options"))]
macro_rules! with_options {
    ($callback:ident $before:tt) => {
        $callback! { $before }
    };
}

pub(crate) use with_options;
