//! Checks the state of a running gateway and the trace collector.

use crate::facts::{DoctorFacts, GatewayFacts, GatherError};
use crate::finding::Remark;
use serde_json::Value;

pub(super) fn gateway(facts: &DoctorFacts) -> Vec<Remark> {
    match &facts.gateway {
        None => Vec::new(),
        Some(Err(error)) => vec![gateway_unreachable(error)],
        Some(Ok(gateway)) => gateway_remarks(gateway),
    }
}

fn gateway_unreachable(error: &GatherError) -> Remark {
    let remark = Remark::error(format!("the admin port of the gateway: {error}"));
    remark.because("The state of the gateway is unknown.").remedy(
        "give the URL of its admin port, http://127.0.0.1:9090 by default; the gateway prints it \
         at startup",
    )
}

fn gateway_remarks(gateway: &GatewayFacts) -> Vec<Remark> {
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
    let webhooks = status["webhooks"].as_array().into_iter().flatten();
    remarks.extend(webhooks.filter_map(webhook_remark));
    let backends = status["backends"].as_array().into_iter().flatten();
    remarks.extend(backends.clone().filter_map(backend_remark));
    remarks.extend(backends.filter_map(unserved_remark));
    let exporters = status["gpu_exporters"].as_array().into_iter().flatten();
    remarks.extend(exporters.flat_map(gpu_exporter_remarks));
    remarks
}

/// The remark about paths that a backend does not serve although other backends do. The gateway learned this
/// from responses to requests. `None`: the backend lacks no such path.
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

/// The remark about trace spans that the gateway could not export. `None`: every span was exported.
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

fn webhook_remark(webhook: &Value) -> Option<Remark> {
    let name = webhook["webhook"].as_str()?;
    let error = webhook["error"].as_str()?;
    let observation = format!("the webhook {name} has not accepted the last message: {error}");
    let reason = "The webhook does not get the start and the end of verdicts.";
    let remedy = "check the URL and the token in `webhooks`";
    Some(Remark::warning(observation).because(reason).remedy(remedy))
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

/// The remarks about a GPU exporter that the gateway cannot read, or that lacks values.
fn gpu_exporter_remarks(exporter: &Value) -> Vec<Remark> {
    let name = exporter["exporter"].as_str().unwrap_or("a GPU exporter");
    let mut remarks = Vec::new();
    if let Some(error) = exporter["scrape_error"].as_str() {
        let remark = Remark::warning(format!("the GPU exporter {name} cannot be read: {error}"));
        let reason = "The last values of its GPUs age; verdicts about them end.";
        let remedy = format!("curl http://{name}/metrics from the host of the gateway");
        remarks.push(remark.because(reason).remedy(remedy));
    }
    let texts = |key: &str| -> Vec<&str> {
        exporter[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let unassigned = texts("unassigned");
    if !unassigned.is_empty() {
        let observation = format!(
            "no backend owns the GPUs {} of {name}",
            unassigned.join(", ")
        );
        let reason = if exporter["is_ambiguous"] == true {
            "Several backends have the host of the exporter."
        } else {
            "No backend has the pod of the GPU, or the host of the exporter."
        };
        let remark = Remark::note(observation).because(reason);
        remarks.push(remark.remedy("name its backends and their GPUs in gpu.exporters"));
    }
    for missing in exporter["missing"].as_array().into_iter().flatten() {
        let text = |key: &str| missing[key].as_str().unwrap_or_default();
        let remark = Remark::note(format!(
            "{name} does not export {} of its GPUs",
            text("signal")
        ));
        let remedy = format!(
            "add {} to the counters file of dcgm-exporter",
            text("fields")
        );
        remarks.push(
            remark
                .because(format!("{}.", text("impact")))
                .remedy(remedy),
        );
    }
    remarks
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
