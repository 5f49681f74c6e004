//! Exemplars: they link a bucket of a histogram to the trace of a request, and appear only on metrics pages
//! in the OpenMetrics format.

use crate::metrics::sum;
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use crate::support::test_gateway::{
    CHAT, Running, Setup, gateway_answering_with, post, with_lines,
};
use std::collections::BTreeMap;
use tokenweir_gateway::telemetry::metrics_registry::BucketOverrides;
use tokenweir_gateway::telemetry::otel;
use tokenweir_protocol::trace_context::{Propagation, Sampler};
use tokenweir_request::record::RequestRecord;
use tokenweir_request::slo::Objective;

const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0;q=0.6,\
    application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
const SAMPLED_TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const UNSAMPLED_TRACE_ID: &str = "11111111111111111111111111111111";

/// Starts a backend, and a gateway with this objective. The gateway samples the trace of a request only if
/// its client does.
async fn start(objective: &str) -> (ScriptedBackend, Running) {
    let sampler = Sampler {
        is_parent_based: true,
        ratio: 0.0,
    };
    let propagation = Some(Propagation {
        sampler,
        ..otel::TracingSettings::default().propagation
    });
    let objective = Objective {
        name: "chat".into(),
        model: Some("tiny".into()),
        tier: None,
        definition: objective.parse().unwrap(),
    };
    let slos = vec![objective];
    let buckets = BucketOverrides::new(&BTreeMap::new(), &slos).unwrap();
    let mut setup = Setup {
        propagation,
        slos,
        ..Setup::default()
    };
    setup.observation.scales = buckets.scales();
    let stream = stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"]);
    gateway_answering_with(Setup { buckets, ..setup }, stream).await
}

/// Sends a streaming request with this trace id and these flags in `traceparent`. Returns its record.
async fn stream(gateway: &Running, trace: &str, flags: &str) -> RequestRecord {
    let parent = format!("traceparent: 00-{trace}-b7ad6b7169203331-{flags}");
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    gateway.raw(with_lines(&request, &parent)).await;
    gateway.record().await
}

#[tokio::test]
async fn buckets_of_sampled_requests_have_their_trace() {
    let (_fake, gateway) = start("ttft < 1s for 99 %").await;
    let record = stream(&gateway, SAMPLED_TRACE_ID, "01").await;
    stream(&gateway, UNSAMPLED_TRACE_ID, "00").await;
    let page = gateway.get_admin_page_as("/metrics", OPEN_METRICS).await;
    assert!(
        page.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        )
    );
    assert!(page.ends_with("# EOF\n") && !page.contains(UNSAMPLED_TRACE_ID));
    let ids = format!(
        " # {{trace_id=\"{SAMPLED_TRACE_ID}\",span_id=\"{:016x}\"}} ",
        record.spans.inference
    );
    for metric in [
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_server_request_duration_seconds",
        "tokenweir_inter_chunk_latency_seconds",
    ] {
        let bucket = format!("{metric}_bucket{{");
        let lines = page
            .lines()
            .filter(|line| line.starts_with(&bucket) && line.contains(&ids));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines[..] else {
            panic!("{metric}: {lines:?}")
        };
        let bound = line
            .split("le=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let bound: f64 = bound.replace("+Inf", "inf").parse().unwrap();
        let value: f64 = line
            .split(&ids)
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(value <= bound, "{line}");
    }
    let ttft = record.ttft().unwrap().as_secs_f64();
    assert!(
        page.contains(&format!("{ids}{ttft} ")),
        "the exemplar has the value of the request"
    );
}

#[tokio::test]
async fn objectives_become_bounds_and_requests_count_once() {
    let (_fake, gateway) = start("ttft < 1234ms and itl_p95 < 33ms for 99.5 %").await;
    stream(&gateway, SAMPLED_TRACE_ID, "00").await;
    gateway.post(CHAT, r#"{"model":"tiny""#).await;
    gateway.record().await;
    let page = gateway.admin("/metrics").await;
    let labels = "gen_ai_request_model=\"tiny\",result=";
    for expected in [
        format!("tokenweir_slo_requests_total{{{labels}\"good\",slo=\"chat\"}} 1\n"),
        format!("tokenweir_slo_requests_total{{{labels}\"bad\",slo=\"chat\"}} 0\n"),
        "tokenweir_slo_objective_ratio{slo=\"chat\"} 0.995\n".to_owned(),
    ] {
        assert!(page.contains(&expected), "{expected} in\n{page}");
    }
    for (metric, bound) in [
        ("gen_ai_server_time_to_first_token_seconds", "1.234"),
        ("tokenweir_inter_chunk_latency_seconds", "0.033"),
    ] {
        let is_bound =
            |line: &str| line.starts_with(metric) && line.contains(&format!("le=\"{bound}\""));
        assert!(page.lines().any(is_bound), "{metric} {bound}");
    }
    for bound in ["10.0", "+Inf"] {
        let labels = ["\"tiny\"", &format!("le=\"{bound}\"")];
        let count = sum(
            &page,
            "tokenweir_inter_chunk_latency_seconds_bucket",
            &labels,
        );
        assert!((count - 1.0).abs() < 1e-9, "{bound}: {count}");
    }
}
