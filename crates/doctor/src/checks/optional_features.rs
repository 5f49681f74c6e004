//! Checks optional features of vLLM that add information to responses.

use crate::facts::{BackendFacts, DoctorFacts, StreamProbe};
use crate::finding::Remark;
use crate::gather::REQUEST_ID_HEADER;
use crate::interpretation::VllmVersion;

/// The first version of vLLM that can report the engine times of a request.
const ENGINE_TIMES_SINCE: VllmVersion = VllmVersion(0, 25);
/// The command that starts vLLM with KV events.
const PUBLISH_EVENTS: &str = "vllm serve --kv-events-config with an endpoint such as tcp://*:5557";
/// The reason that remarks state about KV events that the gateway does not receive.
const WITHOUT_EVENTS: &str = "Without events, the gateway estimates the cached prefixes of this backend from its own requests.";

pub(super) fn request_id(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let answer = backend.version.as_ref().ok()?;
    if !backend.is_vllm() || !answer.is_ok() || answer.headers.contains_key(REQUEST_ID_HEADER) {
        return None;
    }
    Some(
        Remark::note("its responses do not carry the request id")
            .because(
                "The gateway sends x-request-id and adds it to responses itself. Clients that \
                 connect to the backend directly cannot match a request to a log line.",
            )
            .remedy("vllm serve --enable-request-id-headers"),
    )
}

pub(super) fn cached_tokens(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let usage = &backend.completed_probe()?.observed.usage;
    // If no token of the prompt was cached, the Rust front end omits the field for cached tokens.
    if usage.cached.is_some() || backend.is_rust_front_end() || usage.output.is_none() {
        return None;
    }
    Some(
        Remark::note("its usage does not report cached prompt tokens")
            .because(
                "The gateway can only estimate how long a prefix stays in the cache, and cached \
                 tokens are missing from its metrics, spans and log.",
            )
            .remedy("vllm serve --enable-prompt-tokens-details"),
    )
}

pub(super) fn engine_times(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let probe = backend.completed_probe()?;
    if backend.version_number()? < ENGINE_TIMES_SINCE || probe.observed.engine_times.is_some() {
        return None;
    }
    Some(
        Remark::note("its responses do not report how long the engine took")
            .because(
                "Time in its queue and in prefill is known as a mean of all requests, not of each \
                 slow one. Reporting them costs some CPU at high concurrency.",
            )
            .remedy("vllm serve --enable-per-request-metrics"),
    )
}

/// Reports whether the gateway receives the KV events of a backend, and the reason if it does not.
pub(super) fn kv_events(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let setting = facts.config.kv_events_of(&backend.id);
    let endpoints = backend.event_endpoints();
    let Some(first) = endpoints.first() else {
        return (setting == Some(true)).then(|| {
            Remark::warning("its /kv_event_sources lists no publishers of KV events")
                .because(format!("kv_events.enabled is set. {WITHOUT_EVENTS}"))
                .remedy(format!(
                    "{PUBLISH_EVENTS}; before vLLM 0.32 also kv_events.port"
                ))
        });
    };
    let is_local =
        |endpoint: &&String| endpoint.contains("127.0.0.1") || endpoint.contains("localhost");
    let unused = Remark::note("it publishes KV events, which the gateway does not use");
    Some(if setting == Some(false) {
        unused.because(format!("kv_events.enabled is false. {WITHOUT_EVENTS}"))
    } else if setting.is_none() && backend.url.is_https() {
        let reason = "Its URL is https, and events are not encrypted.";
        unused
            .because(format!("{reason} {WITHOUT_EVENTS}"))
            .remedy("kv_events.enabled, if the network to the engine is private")
    } else if let Some(endpoint) = endpoints.iter().find(is_local) {
        Remark::warning(format!("its KV events are not published at {endpoint}"))
            .because(
                "vLLM binds an address only if it contains `*`. To any other address it connects \
                 as a client, and nothing listens there.",
            )
            .remedy(PUBLISH_EVENTS)
    } else if backend.publisher_answers == Some(false) {
        Remark::warning(format!("its KV events at {first} cannot be reached"))
            .because(WITHOUT_EVENTS)
            .remedy("let the gateway reach these ports of the engine")
    } else {
        Remark::note(format!("the gateway uses its KV events ({first})"))
            .because("They show which prompts its prefix cache contains.")
    })
}

/// Reports that vLLM adds `usage` to every event of a stream. The probe requests usage only at the end.
pub(super) fn forced_usage(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let observed = &backend.completed_probe()?.observed;
    if observed.output_events < 2 || observed.counted_event_tokens == 0 {
        return None;
    }
    Some(
        Remark::note("it adds usage to every event of every stream")
            .because(
                "Clients that did not request usage get an event without choices, which some \
                 cannot parse, and every event is about 90 bytes longer. The gateway gets its \
                 counts without this flag.",
            )
            .remedy("start vLLM without --enable-force-include-usage"),
    )
}

pub(super) fn not_probed(facts: &DoctorFacts) -> Vec<Remark> {
    let is_unprobed = |backend: &BackendFacts| {
        backend.is_vllm() && backend.is_backend() && backend.probe.is_none()
    };
    if !facts.backends.iter().any(is_unprobed) {
        return Vec::new();
    }
    vec![
        Remark::note("no probe request was sent")
            .because(
                "Only a probe of 16 tokens shows whether streams arrive token by token, and what \
                 usage contains.",
            )
            .remedy("tokenweir doctor --probe …"),
    ]
}

impl BackendFacts {
    /// The probe of a vLLM server. `None`: no probe was sent, the server is not vLLM, or the stream was not
    /// complete.
    fn completed_probe(&self) -> Option<&StreamProbe> {
        let probe = self.probe.as_ref()?.as_ref().ok()?;
        let is_complete = probe.observed.is_stream && probe.observed.is_complete;
        (self.is_vllm() && probe.status.is_success() && is_complete).then_some(probe)
    }
}
