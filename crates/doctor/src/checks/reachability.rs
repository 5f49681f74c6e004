//! Checks whether a backend responds, which server it is, and whether the server accepts the gateway's key.

use crate::facts::{BackendFacts, DoctorFacts, TargetKey};
use crate::finding::Remark;
use crate::interpretation::{GatewayListener, VllmVersion, is_refusal};
use http::StatusCode;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_routing::resilience::DownKind;

/// The oldest version of vLLM whose metrics the gateway knows.
const OLDEST_SUPPORTED: VllmVersion = VllmVersion(0, 6);
/// The newest version of vLLM with which the gateway was tested.
const NEWEST_TESTED: VllmVersion = VllmVersion(0, 33);
/// The first version of vLLM with the current engine and the current metric names.
const CURRENT_METRICS_SINCE: VllmVersion = VllmVersion(0, 12);

pub(super) fn reachable(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let Err(error) = &backend.health else {
        return None;
    };
    if facts.gateway_reaches(&backend.id) {
        return Some(
            Remark::note(format!(
                "does not answer here, but the gateway reaches it: {error}"
            ))
            .because("This machine cannot check the backend.")
            .remedy("run the doctor on the machine of the gateway"),
        );
    }
    let error = error.to_string();
    let kind = DownKind::of_reason(&error);
    Some(down(error, kind))
}

/// The remark about a backend that is down, in the words of the verdict `backend_down`. `kind`: why the backend
/// is down. `None`: the reason is unknown.
fn down(observation: String, kind: Option<DownKind>) -> Remark {
    let remark = Remark::error(observation);
    match kind {
        Some(DownKind { cause, remedy, .. }) => remark
            .because(format!("The gateway sends it no requests: {cause}."))
            .remedy(remedy),
        None => remark
            .because("The gateway sends it no requests.")
            .remedy("Read the log of the backend."),
    }
}

pub(super) fn health(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let answer = backend.health.as_ref().ok()?;
    // A server without /health may not be an inference server. The check `server` reports such a server.
    let is_unknown = answer.status == StatusCode::NOT_FOUND && backend.server().is_none();
    if answer.is_ok() || is_unknown {
        return None;
    }
    let kind = DownKind::of_reason(&format!("answered {}", answer.status.as_u16()));
    Some(down(format!("/health answers {}", answer.status), kind))
}

pub(super) fn server(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if !backend.is_reached() {
        return None;
    }
    if let Some(listener) = backend.gateway_listener() {
        return Some(gateway(backend, listener));
    }
    match backend.server() {
        Some(EngineKind::Vllm) => None,
        Some(other) => {
            let remark = Remark::note(format!("is not vLLM but {}", server_name(other)));
            Some(remark.because("The gateway supports this server. Checks for vLLM were skipped."))
        }
        // A server that requires a key may be an inference server, and the check `key` reports it.
        None if backend.is_key_required() => None,
        None => {
            let health = match &backend.health {
                Ok(answer) if !answer.is_ok() => format!("; /health answers {}", answer.status),
                _ => String::new(),
            };
            Some(
                Remark::error(format!(
                    "is not recognised as an inference server: it has neither models at /v1/models nor \
                     metrics that are understood{health}"
                ))
                .because("Requests that are sent to it would fail.")
                .remedy("give the URL of vLLM, without a path"),
            )
        }
    }
}

/// The remark about a tokenweir gateway that responds at the URL of a backend.
fn gateway(backend: &BackendFacts, listener: GatewayListener) -> Remark {
    match listener {
        GatewayListener::Clients { has_metrics: true } => Remark::note("is a tokenweir gateway")
            .because("A separate run of the doctor checks the backends of that gateway.")
            .remedy("tokenweir doctor --admin with the URL of its admin port"),
        GatewayListener::Clients { has_metrics: false } => {
            Remark::warning("this is the client port of a tokenweir gateway")
                .because("As a backend it shows no load, because it has no metrics_url.")
                .remedy("give --admin with the URL of its admin port, or the backend a metrics_url")
        }
        GatewayListener::Admin => Remark::error("this is the admin port of a tokenweir gateway")
            .because(
                "It is no backend. With --admin, the doctor checks the backends of the gateway.",
            )
            .remedy(format!("tokenweir doctor --admin {}", backend.url)),
    }
}

const fn server_name(server: EngineKind) -> &'static str {
    match server {
        EngineKind::Vllm => "vLLM",
        EngineKind::Sglang => "SGLang",
        EngineKind::TensorRtLlm => "TensorRT-LLM",
        EngineKind::Tgi => "text-generation-inference",
        EngineKind::LlamaCpp => "llama.cpp",
        EngineKind::Gateway => "a gateway",
    }
}

pub(super) fn version(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if !backend.is_vllm() {
        return None;
    }
    let Some(text) = backend.version_text() else {
        let remark = Remark::note("does not report its version");
        return Some(remark.because("Its features are unknown."));
    };
    let Some(version) = backend.version_number() else {
        let observation = format!("has the version `{text}`, which is no version of vLLM");
        return Some(Remark::note(observation).because("Its features are unknown."));
    };
    let observation = format!("runs vLLM {text}");
    let upgrade = "pip install --upgrade vllm";
    if version < OLDEST_SUPPORTED {
        let reason = "This gateway was not tested with it, and may not understand its metrics.";
        return Some(Remark::warning(observation).because(reason).remedy(upgrade));
    }
    if version < CURRENT_METRICS_SINCE {
        let reason = "This version has fewer metrics, and some have names from before 0.12.";
        return Some(Remark::note(observation).because(reason).remedy(upgrade));
    }
    let reason = "It is newer than the newest tested version (0.33).";
    (version > NEWEST_TESTED).then(|| Remark::note(observation).because(reason))
}

pub(super) fn key(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    if backend.gateway_listener().is_some() {
        return None;
    }
    if let TargetKey::Missing(reason) = &backend.key {
        let remark = if facts.gateway.is_some() {
            Remark::note(format!("was checked without its key: {reason}"))
        } else {
            Remark::error(format!("its key cannot be read: {reason}"))
        };
        return Some(
            remark
                .because("Without the key, the backend refuses its model list and all requests.")
                .remedy("set the key where the doctor runs"),
        );
    }
    let has_key = matches!(backend.key, TargetKey::Known(_));
    let status = backend.models.as_ref().ok()?.status;
    if is_refusal(status) && has_key {
        return Some(
            Remark::error(format!("refuses the key: {status}"))
                .because("Every request through the gateway would be refused.")
                .remedy("give the key that vLLM was started with (--api-key)"),
        );
    }
    if is_refusal(status) {
        return Some(
            Remark::error(format!("requires a key: /v1/models answers {status}"))
                .because("The gateway cannot read its models, and has no key to send.")
                .remedy(
                    "set VLLM_API_KEY here; in the configuration, `api_key: { env: VLLM_API_KEY }` \
                     of this backend",
                ),
        );
    }
    if backend.is_key_required() || !backend.is_vllm() {
        return None;
    }
    let sent = if has_key {
        ", although one was sent"
    } else {
        ""
    };
    Some(
        Remark::note(format!("serves without a key{sent}"))
            .because("Any client that reaches its port can use it without the gateway.")
            .remedy("vllm serve --api-key KEY, or VLLM_API_KEY=KEY"),
    )
}

pub(super) fn models(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if backend.server().is_none() || backend.served().is_some_and(|models| !models.is_empty()) {
        return None;
    }
    let observation = match &backend.models {
        Err(error) => format!("/v1/models: {error}"),
        // The check `key` reports a missing or wrong key.
        Ok(answer) if is_refusal(answer.status) => return None,
        Ok(answer) if !answer.is_ok() => format!("/v1/models answers {}", answer.status),
        Ok(_) => "/v1/models lists no model".to_owned(),
    };
    let reason = "The gateway does not know its models, and sends it requests for any model.";
    Some(Remark::warning(observation).because(reason))
}
