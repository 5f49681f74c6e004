//! Checks the state of a running gateway and the trace collector.

use crate::facts::{DoctorFacts, GatewayFacts, GatherError};
use crate::finding::Remark;
use serde_json::Value;
use tokenweir_api::StatusCheck;

pub(super) fn gateway(facts: &DoctorFacts) -> Vec<Remark> {
    match &facts.gateway {
        None => Vec::new(),
        Some(Err(error)) => vec![gateway_unreachable(error)],
        Some(Ok(gateway)) => gateway_remarks(gateway, &facts.status_checks),
    }
}

fn gateway_unreachable(error: &GatherError) -> Remark {
    let remark = Remark::error(format!("the admin port of the gateway: {error}"));
    remark.because("The state of the gateway is unknown.").remedy(
        "give the URL of its admin port, http://127.0.0.1:9090 by default; the gateway prints it \
         at startup",
    )
}

fn gateway_remarks(gateway: &GatewayFacts, checks: &[StatusCheck]) -> Vec<Remark> {
    let status = match &gateway.status {
        Ok(status) => status,
        Err(problem) => {
            let remedy = if problem.contains("401") {
                "set TOKENWEIR_ADMIN_TOKEN to the token of access.admin_token"
            } else {
                "give the URL of the admin port of tokenweir"
            };
            let remark = Remark::error(format!("{} {problem}", gateway.url));
            return vec![
                remark
                    .because("The state of the gateway is unknown.")
                    .remedy(remedy),
            ];
        }
    };
    let mut remarks = Vec::new();
    if let Some(problem) = &gateway.config_problem {
        let remark = Remark::note(format!(
            "the configuration of the gateway cannot be read: {problem}"
        ));
        let reason = "The checks assumed the default configuration.";
        let remedy = "use the doctor of the same version as the gateway";
        remarks.push(remark.because(reason).remedy(remedy));
    }
    if status["ready"] == false {
        let remark = Remark::error(
            "the gateway is not ready: it has no available backend, or it shuts \
                           down",
        );
        remarks.push(remark.because("Clients get 503."));
    }
    if status["config_reloads"]["last_successful"] == false {
        let remark = Remark::warning("the last reload of the gateway's configuration failed");
        let reason = "The previous configuration stays active, and a restart would fail.";
        remarks.push(remark.because(reason).remedy("tokenweir check FILE"));
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
    let paths = backend["unserved"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str);
    let paths = paths.collect::<Vec<_>>().join(" ");
    if paths.is_empty() {
        return None;
    }
    let name = backend["backend"].as_str()?;
    let remark = Remark::note(format!("{name} lacks {paths}"));
    let reason = "Other backends serve these paths, and take all of their requests.";
    Some(
        remark
            .because(reason)
            .remedy("run one version and one front end on all backends"),
    )
}

/// The remark about trace spans that the gateway could not export. `None`: no export failed.
fn failed_spans_remark(status: &Value) -> Option<Remark> {
    let count = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let failed = count("/spans/failed");
    if failed == 0 {
        return None;
    }
    let observation = format!(
        "{failed} spans did not reach the collector, {} did",
        count("/spans/exported")
    );
    let reason = "Traces have gaps. The log of the gateway has the reason.";
    Some(
        Remark::warning(observation)
            .because(reason)
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
        let remark = Remark::warning(format!("the circuit breaker of {name} is {breaker}"));
        let reason = "Recent requests failed there. The gateway sends it few requests or none.";
        return Some(remark.because(reason).remedy("check the log of vLLM there"));
    }
    let error = backend["scrape_error"].as_str()?;
    let remark = Remark::warning(format!(
        "the gateway cannot use the metrics of {name}: {error}"
    ));
    Some(remark.because("The gateway routes by its own requests in flight there."))
}

pub(super) fn traces(facts: &DoctorFacts) -> Vec<Remark> {
    let Some(collector) = &facts.collector else {
        return Vec::new();
    };
    let endpoint = &collector.endpoint;
    if let Some(problem) = &collector.problem {
        let observation = format!(
            "the collector at {endpoint} does not take spans ({}): {problem}",
            collector.protocol
        );
        let reason = "Spans are lost. Port 4317 usually serves grpc, and 4318 http/protobuf.";
        let remedy = "correct tracing.endpoint or tracing.protocol, or start the collector";
        return vec![Remark::error(observation).because(reason).remedy(remedy)];
    }
    if !facts
        .backends
        .iter()
        .any(|backend| backend.is_vllm() && !backend.is_rust_front_end())
    {
        return Vec::new();
    }
    let remark = Remark::note("whether the engines send spans of their own cannot be seen");
    let reason = "With such spans, time in the queue and in prefill is part of the same trace.";
    vec![
        remark
            .because(reason)
            .remedy(format!("vllm serve --otlp-traces-endpoint {endpoint}")),
    ]
}

impl DoctorFacts {
    /// Whether the running gateway reports a backend as up.
    pub(super) fn gateway_reaches(&self, id: &str) -> bool {
        let gateway = self
            .gateway
            .as_ref()
            .and_then(|gateway| gateway.as_ref().ok());
        let status = gateway.and_then(|gateway| gateway.status.as_ref().ok());
        let backends = status.and_then(|status| status["backends"].as_array());
        let mut backends = backends.into_iter().flatten();
        backends.any(|backend| backend["backend"] == id && backend["health"] == "up")
    }
}
