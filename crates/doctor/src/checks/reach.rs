//! Whether a replica answers, what it is, and whether it lets the gateway in.

use crate::facts::{Facts, Key, Replica, Silence};
use crate::finding::{Remark, Severity};
use crate::sight::{GatewayPort, Version, is_refusal};
use http::StatusCode;
use tokenweir_core::dialect::Server;

/// The versions of vLLM that this gateway was tried with or knows the metrics of.
const OLDEST: Version = Version(0, 6);
const NEWEST: Version = Version(0, 33);
/// The first one whose engine and metrics are those of today.
const TODAY: Version = Version(0, 12);

pub(super) fn reachable(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    let Err(silence) = &replica.health else { return Vec::new() };
    if facts.gateway_reaches(&replica.id) {
        let remark =
            Remark::note(format!("does not answer here, but the gateway reaches it: {silence}"));
        let remark = remark.because("What could be seen of it from here is not known.");
        return vec![remark.change("run this where the gateway runs")];
    }
    let (why, change) = advice(replica, silence);
    vec![Remark::error(silence.to_string()).because(why).change(change)]
}

fn advice(replica: &Replica, silence: &Silence) -> (&'static str, String) {
    let (host, _) = replica.url.host_and_port();
    let authority = replica.url.authority();
    match silence {
        Silence::Tls(reason) if reason.contains("InvalidContentType") => {
            ("It does not speak TLS, and the URL says https.", format!("write http://{authority}"))
        }
        Silence::Tls(reason) if reason.contains("UnknownIssuer") => (
            "Nobody that this machine believes has signed its certificate.",
            "name the authority that has in backend_tls.ca, and give --config".to_owned(),
        ),
        Silence::Tls(_) => (
            "It cannot prove to be who the URL says, or both sides agree on no version.",
            "look at its certificate, and at backend_tls in the configuration".to_owned(),
        ),
        Silence::Closed(_) | Silence::NotHttp(_) if !replica.url.is_https() => (
            "It does not speak HTTP here: it may want TLS, or be another service.",
            format!("write https://{authority}, or the port of vLLM's HTTP server"),
        ),
        Silence::Connect(_) => (
            "Nobody listens there, or a name or a firewall is in the way.",
            format!(
                "start it with `vllm serve MODEL --host {host} --port {}`, or correct the URL",
                replica.url.host_and_port().1
            ),
        ),
        Silence::Timeout(_) => (
            "It accepts connections and says nothing: its process is stopped, still loads, or \
             waits for its engine.",
            "look at the log of vLLM; give more time with --timeout".to_owned(),
        ),
        _ => ("The gateway sends it nothing.", "look at the log of vLLM".to_owned()),
    }
}

pub(super) fn health(replica: &Replica, _: &Facts) -> Vec<Remark> {
    match &replica.health {
        // What has no such path may be no engine at all, which is said elsewhere.
        Ok(answer) if answer.status == StatusCode::NOT_FOUND && replica.server().is_none() => {
            Vec::new()
        }
        Ok(answer) if !answer.is_ok() => {
            let remark = Remark::error(format!("/health answers {}", answer.status));
            let why = "The gateway sends it nothing. vLLM answers 503 when its engine is dead.";
            vec![remark.because(why).change("look at the log of vLLM, and start it again")]
        }
        _ => Vec::new(),
    }
}

pub(super) fn server(replica: &Replica, _: &Facts) -> Vec<Remark> {
    if !replica.is_reached() {
        return Vec::new();
    }
    if let Some(port) = replica.gateway_port() {
        let (seen, change) = match port {
            GatewayPort::Clients => (
                "this is the port for clients of a tokenweir gateway",
                "give --admin with the URL of its admin port".to_owned(),
            ),
            GatewayPort::Admin => (
                "this is the admin port of a tokenweir gateway",
                format!("tokenweir doctor --admin {}", replica.url),
            ),
        };
        let why = "It is no replica; it tells of its own if it is asked as a gateway.";
        return vec![Remark::error(seen).because(why).change(change)];
    }
    match replica.server() {
        Some(Server::Vllm) => Vec::new(),
        Some(other) => {
            let remark = Remark::note(format!("is not vLLM but {}", name(other)));
            vec![
                remark
                    .because("The gateway speaks to it too. What only vLLM has was not looked at."),
            ]
        }
        // It may be one that wants a key.
        None if replica.wants_key() => Vec::new(),
        None => {
            let health = replica.health.as_ref().ok().filter(|answer| !answer.is_ok());
            let health = health.map(|answer| format!("; /health answers {}", answer.status));
            let remark = Remark::error(format!(
                "is not known for an inference server: it has neither models at /v1/models nor \
                 metrics that are understood{}",
                health.unwrap_or_default()
            ));
            let why = "Requests would fail there, if they were sent.";
            vec![remark.because(why).change("give the URL of vLLM, without a path")]
        }
    }
}

const fn name(server: Server) -> &'static str {
    match server {
        Server::Vllm => "vLLM",
        Server::Sglang => "SGLang",
        Server::TensorRtLlm => "TensorRT-LLM",
        Server::Tgi => "text-generation-inference",
        Server::LlamaCpp => "llama.cpp",
    }
}

pub(super) fn version(replica: &Replica, _: &Facts) -> Vec<Remark> {
    if !replica.is_vllm() {
        return Vec::new();
    }
    let Some(text) = replica.version_text() else {
        let remark = Remark::note("does not tell its version");
        return vec![remark.because("What it can be asked for is not known.")];
    };
    let Some(version) = replica.version_number() else {
        let remark = Remark::note(format!("has the version `{text}`, which is not like vLLM's"));
        return vec![remark.because("What it can be asked for is not known.")];
    };
    let (severity, why) = if version < OLDEST {
        (
            Severity::Warning,
            "This gateway was not tried with it, and may not understand its metrics.",
        )
    } else if version < TODAY {
        (Severity::Note, "It has fewer metrics, some under names that are gone since 0.12.")
    } else if version > NEWEST {
        (Severity::Note, "It is newer than those that this gateway was tried with (0.33).")
    } else {
        return Vec::new();
    };
    let remark = Remark::new(severity, format!("runs vLLM {text}")).because(why);
    vec![if version < TODAY { remark.change("pip install --upgrade vllm") } else { remark }]
}

pub(super) fn key(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    if replica.gateway_port().is_some() {
        return Vec::new();
    }
    if let Key::Missing(reason) = &replica.key {
        let remark = if facts.gateway.is_some() {
            Remark::note(format!("was asked without its key: {reason}"))
        } else {
            Remark::error(format!("its key cannot be had: {reason}"))
        };
        let why = "Without it, models and requests are refused.";
        return vec![remark.because(why).change("set it where this runs")];
    }
    let Ok(models) = &replica.models else { return Vec::new() };
    match (&replica.key, is_refusal(models.status)) {
        (Key::Known(_), true) => {
            let remark = Remark::error(format!("refuses the key: {}", models.status));
            let why = "Every request through the gateway would be refused.";
            vec![remark.because(why).change("give the key that vLLM was started with (--api-key)")]
        }
        (_, true) => {
            let remark =
                Remark::error(format!("wants a key: /v1/models answers {}", models.status));
            let why = "The gateway does not learn its models, and has no key of its own to send.";
            let change = "set VLLM_API_KEY here; in the configuration, \
                          `api_key: { env: VLLM_API_KEY }` of this backend";
            vec![remark.because(why).change(change)]
        }
        (key @ (Key::Known(_) | Key::None), false) if !replica.wants_key() && replica.is_vllm() => {
            let sent = if matches!(key, Key::Known(_)) { ", though one was sent" } else { "" };
            let remark = Remark::note(format!("serves without a key{sent}"));
            let why = "Whoever reaches its port can use it past the gateway.";
            vec![remark.because(why).change("vllm serve --api-key KEY, or VLLM_API_KEY=KEY")]
        }
        _ => Vec::new(),
    }
}

pub(super) fn models(replica: &Replica, _: &Facts) -> Vec<Remark> {
    if replica.server().is_none() || replica.served().is_some_and(|models| !models.is_empty()) {
        return Vec::new();
    }
    let seen = match &replica.models {
        Err(silence) => format!("/v1/models: {silence}"),
        // That is of its key.
        Ok(answer) if is_refusal(answer.status) => return Vec::new(),
        Ok(answer) if !answer.is_ok() => format!("/v1/models answers {}", answer.status),
        Ok(_) => "/v1/models lists no model".to_owned(),
    };
    let why = "The gateway does not know what it serves, and sends it requests for any model.";
    vec![Remark::warning(seen).because(why)]
}
