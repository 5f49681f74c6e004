//! Checks the state of a running gateway and the trace collector.

use crate::facts::{DoctorFacts, GatewayFacts, GatherError};
use crate::finding::Remark;
use serde_json::Value;
use tokenweir_api::StatusCheck;

pub(super) fn gateway(facts: &DoctorFacts) -> Vec<Remark> {
    match &facts.gateway {
        None => Vec::new(),
        Some(Err(error)) => vec![gateway_unreachable(error)],
        Some(Ok(gateway)) => match &gateway.status {
            Ok(status) => status_remarks(gateway, status, &facts.status_checks),
            Err(problem) => vec![status_unreadable(gateway, problem)],
        },
    }
}

fn gateway_unreachable(error: &GatherError) -> Remark {
    Remark::error(format!("the admin port of the gateway: {error}"))
        .because("The state of the gateway is unknown.")
        .remedy(
            "give the URL of its admin port, http://127.0.0.1:9090 by default; the gateway prints it \
             at startup",
        )
}

fn status_unreadable(gateway: &GatewayFacts, problem: &str) -> Remark {
    let remedy = if problem.contains("401") {
        "set TOKENWEIR_ADMIN_TOKEN to the token of access.admin_token"
    } else {
        "give the URL of the admin port of tokenweir"
    };
    Remark::error(format!("{} {problem}", gateway.url))
        .because("The state of the gateway is unknown.")
        .remedy(remedy)
}

fn status_remarks(gateway: &GatewayFacts, status: &Value, checks: &[StatusCheck]) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if let Some(problem) = &gateway.config_problem {
        remarks.push(
            Remark::note(format!(
                "the configuration of the gateway cannot be read: {problem}"
            ))
            .because("The checks assumed the default configuration.")
            .remedy("use the doctor of the same version as the gateway"),
        );
    }
    if status["ready"] == false {
        let problem = "the gateway is not ready: it has no available backend, or it shuts down";
        remarks.push(Remark::error(problem).because("Clients get 503."));
    }
    if status["config_reloads"]["last_successful"] == false {
        remarks.push(
            Remark::warning("the last reload of the gateway's configuration failed")
                .because("The previous configuration stays active, and a restart would fail.")
                .remedy("tokenweir check FILE"),
        );
    }
    remarks.extend(failed_spans_remark(status));
    let backends = status["backends"].as_array().into_iter().flatten();
    remarks.extend(backends.clone().filter_map(backend_remark));
    remarks.extend(backends.filter_map(unserved_remark));
    remarks.extend(checks.iter().flat_map(|check| check(status)));
    remarks
}

/// The remark about paths that other backends serve and this backend does not. The gateway learned them from
/// responses. `None`: the backend lacks no path.
fn unserved_remark(backend: &Value) -> Option<Remark> {
    let paths = backend["unserved"].as_array()?;
    let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
    if paths.is_empty() {
        return None;
    }
    let name = backend["backend"].as_str()?;
    Some(
        Remark::note(format!("{name} lacks {}", paths.join(" ")))
            .because("Other backends serve these paths, and take all of their requests.")
            .remedy("run one version and one front end on all backends"),
    )
}

/// The remark about trace spans that the gateway could not export. `None`: no export failed.
fn failed_spans_remark(status: &Value) -> Option<Remark> {
    let spans = &status["spans"];
    let failed = spans["failed"].as_u64().filter(|failed| *failed > 0)?;
    let exported = spans["exported"].as_u64().unwrap_or(0);
    Some(
        Remark::warning(format!(
            "{failed} spans did not reach the collector, {exported} did"
        ))
        .because("Traces have gaps. The log of the gateway has the reason.")
        .remedy("tokenweir doctor --config FILE"),
    )
}

fn backend_remark(backend: &Value) -> Option<Remark> {
    let name = backend["backend"].as_str()?;
    let health = backend["health"].as_str().unwrap_or("unknown");
    if health != "up" {
        let reason = backend["reason"].as_str().unwrap_or("no reason reported");
        let remark = Remark::error(format!("the gateway reports {name} as {health}: {reason}"));
        return Some(remark.because("The gateway sends no requests to this backend."));
    }
    let breaker = backend["breaker"].as_str().unwrap_or("closed");
    if breaker != "closed" {
        return Some(
            Remark::warning(format!("the circuit breaker of {name} is {breaker}"))
                .because("Recent requests failed there. The gateway sends it few requests or none.")
                .remedy("check the log of vLLM there"),
        );
    }
    let error = backend["scrape_error"].as_str()?;
    let observation = format!("the gateway cannot use the metrics of {name}: {error}");
    let reason = "The gateway routes by its own requests in flight there.";
    Some(Remark::warning(observation).because(reason))
}

pub(super) fn traces(facts: &DoctorFacts) -> Vec<Remark> {
    let Some(collector) = &facts.collector else {
        return Vec::new();
    };
    let endpoint = &collector.endpoint;
    if let Some(problem) = &collector.problem {
        let protocol = collector.protocol;
        return vec![
            Remark::error(format!(
                "the collector at {endpoint} does not take spans ({protocol}): {problem}"
            ))
            .because("Spans are lost. Port 4317 usually serves grpc, and 4318 http/protobuf.")
            .remedy("correct tracing.endpoint or tracing.protocol, or start the collector"),
        ];
    }
    let mut backends = facts.backends.iter();
    if !backends.any(|backend| backend.is_vllm() && !backend.is_rust_front_end()) {
        return Vec::new();
    }
    vec![
        Remark::note("whether the engines send spans of their own cannot be seen")
            .because("With such spans, time in the queue and in prefill is part of the same trace.")
            .remedy(format!("vllm serve --otlp-traces-endpoint {endpoint}")),
    ]
}

impl DoctorFacts {
    /// Whether the running gateway reports a backend as up.
    pub(super) fn gateway_reaches(&self, id: &str) -> bool {
        let Some(Ok(GatewayFacts {
            status: Ok(status), ..
        })) = &self.gateway
        else {
            return false;
        };
        let mut backends = status["backends"].as_array().into_iter().flatten();
        backends.any(|backend| backend["backend"] == id && backend["health"] == "up")
    }
}
