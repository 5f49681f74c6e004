//! What a running gateway says of itself, and whether traces arrive.

use crate::facts::{Facts, Gateway, Silence};
use crate::finding::Remark;
use serde_json::Value;

pub(super) fn gateway(facts: &Facts) -> Vec<Remark> {
    match &facts.gateway {
        None => Vec::new(),
        Some(Err(silence)) => vec![unreachable(silence)],
        Some(Ok(gateway)) => told(gateway),
    }
}

fn unreachable(silence: &Silence) -> Remark {
    let remark = Remark::error(format!("the admin port of the gateway: {silence}"));
    remark.because("What it says of itself is not known.").change(
        "give the URL of its admin port, http://127.0.0.1:9090 by default; it is in the banner",
    )
}

fn told(gateway: &Gateway) -> Vec<Remark> {
    let status = match &gateway.status {
        Ok(status) => status,
        Err(problem) => {
            let change = if problem.contains("401") {
                "set TOKENWEIR_ADMIN_TOKEN to the token of access.admin_token"
            } else {
                "give the URL of the admin port of tokenweir"
            };
            let remark = Remark::error(format!("{} {problem}", gateway.url));
            return vec![remark.because("What it says of itself is not known.").change(change)];
        }
    };
    let mut remarks = Vec::new();
    if let Some(problem) = &gateway.config_problem {
        let remark = Remark::note(format!("its configuration cannot be read: {problem}"));
        let why = "It was judged as if it had the defaults.";
        remarks.push(remark.because(why).change("use the doctor of the gateway's own version"));
    }
    if status["ready"] == false {
        let remark = Remark::error("the gateway is not ready: it has no replica, or it ends");
        remarks.push(remark.because("Clients get a 503."));
    }
    if status["config_reloads"]["last_successful"] == false {
        let remark = Remark::warning("its configuration has a mistake since it was last changed");
        let why = "The one before holds on, and a restart would fail.";
        remarks.push(remark.because(why).change("tokenweir check FILE"));
    }
    let count = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let failed = count("/spans/failed");
    if failed > 0 {
        let seen =
            format!("{failed} spans did not reach the collector, {} did", count("/spans/exported"));
        let why = "Traces have gaps. The log of the gateway says why.";
        remarks.push(Remark::warning(seen).because(why).change("tokenweir doctor --config FILE"));
    }
    let backends = status["backends"].as_array().into_iter().flatten();
    remarks.extend(backends.filter_map(backend));
    remarks
}

fn backend(backend: &Value) -> Option<Remark> {
    let name = backend["backend"].as_str()?;
    let health = backend["health"].as_str().unwrap_or("unknown");
    if health != "up" {
        let reason = backend["reason"].as_str().unwrap_or("it has not said why");
        let remark = Remark::error(format!("the gateway finds {name} {health}: {reason}"));
        return Some(remark.because("It sends it nothing."));
    }
    let breaker = backend["breaker"].as_str().unwrap_or("closed");
    if breaker != "closed" {
        let remark = Remark::warning(format!("the circuit breaker of {name} is {breaker}"));
        let why = "It failed requests lately, and gets few or none.";
        return Some(remark.because(why).change("look at the log of vLLM there"));
    }
    let error = backend["metrics_error"].as_str()?;
    let remark = Remark::warning(format!("the gateway cannot use the metrics of {name}: {error}"));
    Some(remark.because("It routes there by the requests in flight."))
}

pub(super) fn traces(facts: &Facts) -> Vec<Remark> {
    let Some(collector) = &facts.collector else {
        // What variables a gateway elsewhere has is not known.
        if !facts.is_configured || facts.gateway.is_some() {
            return Vec::new();
        }
        let remark = Remark::note("there are no traces");
        let why = "Why one request was slow is then known only from its log line.";
        let change = "tracing.endpoint: http://127.0.0.1:4317, or OTEL_EXPORTER_OTLP_ENDPOINT";
        return vec![remark.because(why).change(change)];
    };
    let endpoint = &collector.endpoint;
    if let Some(problem) = &collector.problem {
        let seen = format!(
            "the collector at {endpoint} does not take spans ({}): {problem}",
            collector.protocol
        );
        let why = "Spans are lost. Port 4317 usually speaks grpc, and 4318 http/protobuf.";
        let change = "correct tracing.endpoint or tracing.protocol, or start the collector";
        return vec![Remark::error(seen).because(why).change(change)];
    }
    if !facts.replicas.iter().any(|replica| replica.is_vllm() && !replica.is_rust_front_end()) {
        return Vec::new();
    }
    let remark = Remark::note("whether the engines send spans of their own cannot be seen");
    let why = "With them, time in the queue and in prefill stands in the same trace.";
    vec![remark.because(why).change(format!("vllm serve --otlp-traces-endpoint {endpoint}"))]
}

impl Facts {
    /// Whether the gateway that runs finds a replica well.
    pub(super) fn gateway_reaches(&self, id: &str) -> bool {
        let gateway = self.gateway.as_ref().and_then(|gateway| gateway.as_ref().ok());
        let status = gateway.and_then(|gateway| gateway.status.as_ref().ok());
        let backends = status.and_then(|status| status["backends"].as_array());
        let mut backends = backends.into_iter().flatten();
        backends.any(|backend| backend["backend"] == id && backend["health"] == "up")
    }
}
