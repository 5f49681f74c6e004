//! From a bucket to the request in it: exemplars, in the form that asks for them and in no other.

use crate::support::fake::{FINISH, Fake, ROLE, USAGE, WORD, stream_of};
use crate::support::gateway::{Running, Setup, post, start_with};
use std::collections::BTreeMap;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::otel;
use tokenweir_core::trace_context::{Propagation, Sampler};

const CHAT: &str = "/v1/chat/completions";
const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0;q=0.6,\
    application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
const KEPT: &str = "0af7651916cd43dd8448eb211c80319c";
const NOT_KEPT: &str = "11111111111111111111111111111111";

async fn gateway(fake: &Fake, promise: &str) -> Running {
    let sampler = Sampler { is_parent_based: true, ratio: 0.0 };
    let propagation = Some(Propagation { sampler, ..otel::Settings::default().propagation });
    let objective = tokenweir_core::slo::Objective {
        name: "chat".into(),
        model: Some("tiny".into()),
        tier: None,
        promise: promise.parse().unwrap(),
    };
    let slos = vec![objective];
    let buckets = Buckets::new(&BTreeMap::new(), &slos).unwrap();
    let mut setup = Setup { propagation, slos, ..Setup::default() };
    setup.observation.scales = buckets.scales();
    start_with(&[fake.addr], Setup { buckets, ..setup }).await
}

/// Sends a stream as a part of this trace, and takes its record.
async fn stream(
    gateway: &Running,
    trace: &str,
    flags: &str,
) -> tokenweir_core::record::RequestRecord {
    let parent = format!("host: g\r\ntraceparent: 00-{trace}-b7ad6b7169203331-{flags}");
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    gateway.raw(request.replace("host: gateway", &parent)).await;
    gateway.record().await
}

#[tokio::test]
async fn the_buckets_of_a_request_lead_to_its_trace_if_that_is_kept() {
    let fake = Fake::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    let gateway = gateway(&fake, "ttft < 1s for 99 %").await;
    let record = stream(&gateway, KEPT, "01").await;
    stream(&gateway, NOT_KEPT, "00").await;
    let page = gateway.admin_as("/metrics", OPEN_METRICS).await;
    assert!(
        page.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        )
    );
    assert!(page.ends_with("# EOF\n") && !page.contains(NOT_KEPT));
    let ids = format!(" # {{trace_id=\"{KEPT}\",span_id=\"{:016x}\"}} ", record.spans[1]);
    for metric in [
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_server_request_duration_seconds",
        "tokenweir_inter_chunk_seconds",
    ] {
        let bucket = format!("{metric}_bucket{{");
        let lines = page.lines().filter(|line| line.starts_with(&bucket) && line.contains(&ids));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines[..] else { panic!("{metric}: {lines:?}") };
        let bound = line.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
        let bound: f64 = bound.replace("+Inf", "inf").parse().unwrap();
        let value: f64 =
            line.split(&ids).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(value <= bound, "{line}");
    }
    let ttft = record.ttft().unwrap().as_secs_f64();
    assert!(page.contains(&format!("{ids}{ttft} ")), "the value is the request's own");
}

#[tokio::test]
async fn the_classic_page_has_no_exemplars_and_is_what_everyone_else_gets() {
    let fake = Fake::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    let gateway = gateway(&fake, "ttft < 1s for 99 %").await;
    stream(&gateway, KEPT, "01").await;
    for accept in ["*/*", "text/plain", "application/openmetrics-text;q=0", "nonsense"] {
        let page = gateway.admin_as("/metrics", accept).await;
        assert!(page.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
        assert!(!page.contains(KEPT) && !page.contains("# EOF"), "{accept}");
    }
}

#[tokio::test]
async fn limits_are_bounds_and_each_request_is_counted_once() {
    let fake = Fake::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    let gateway = gateway(&fake, "ttft < 1234ms and itl_p95 < 33ms for 99.5 %").await;
    stream(&gateway, KEPT, "00").await;
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
        ("tokenweir_inter_chunk_seconds", "0.033"),
        ("tokenweir_inter_token_seconds", "0.033"),
    ] {
        let is_bound =
            |line: &str| line.starts_with(metric) && line.contains(&format!("le=\"{bound}\""));
        assert!(page.lines().any(is_bound), "{metric} {bound}");
    }
    let count = |bound: &str| {
        let is_it = |line: &&str| {
            line.starts_with("tokenweir_inter_chunk_seconds_bucket{")
                && line.contains("\"tiny\"")
                && line.contains(&format!("le=\"{bound}\""))
        };
        page.lines().find(is_it).unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!([count("10.0"), count("+Inf")], ["1", "1"]);
}
