//! Malicious trace headers over real sockets. Unit tests of `trace_context` state each rule.

use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{CHAT, Running, Setup, gateway_answering_with, post, status};
use tokenweir::telemetry::otel::TracingSettings;
use tokenweir_protocol::trace_context::PropagationFormats;

const CLIENT_TRACEPARENT: &str =
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";

async fn send(gateway: &Running, headers: &str) -> u16 {
    let request = post(CHAT, r#"{"model":"tiny"}"#);
    let request = request.replace("host: gateway\r\n", &format!("host: gateway\r\n{headers}"));
    status(&gateway.raw(request).await)
}

/// The values of a header in the last request that the backend received.
fn received_header(fake: &ScriptedBackend, name: &str) -> Vec<String> {
    let requests = fake.seen();
    let head = &requests.last().unwrap().head;
    let prefix = format!("{name}: ");
    head.lines().filter_map(|line| line.strip_prefix(&prefix)).map(Into::into).collect()
}

#[tokio::test]
async fn malicious_trace_headers_break_no_request_and_begin_a_new_trace() {
    let mut propagation = TracingSettings::default().propagation;
    propagation.sampler.ratio = 0.0;
    propagation.formats =
        PropagationFormats { b3: true, b3_multi: true, ..PropagationFormats::default() };
    let setup = Setup { propagation: Some(propagation), ..Setup::default() };
    let (fake, gateway) = gateway_answering_with(setup, json("200 OK", "{}")).await;
    let long = "a".repeat(8_000);
    for hostile in [
        format!("{CLIENT_TRACEPARENT}{CLIENT_TRACEPARENT}"),
        format!("traceparent: {long}\r\n"),
        "traceparent: \r\n".to_owned(),
        "traceparent: 00-zaf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n".to_owned(),
        "traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01\r\n".to_owned(),
        "traceparent: \u{e9}\r\n".to_owned(),
        format!("b3: {long}\r\n"),
        "b3: 1-1-1-1-1-1\r\n".to_owned(),
        "x-b3-traceid: 1\r\nx-b3-spanid: 2\r\n".to_owned(),
        format!("tracestate: {long}\r\nbaggage: {long}\r\n"),
    ] {
        assert_eq!(send(&gateway, &hostile).await, 200, "{hostile}");
        let record = gateway.record().await;
        let trace = record.trace.unwrap();
        assert_eq!(
            (trace.parent_span_id, trace.is_sampled, trace.trace_state),
            (None, false, None),
            "{hostile}"
        );
        let ours = format!("00-{:032x}-{:016x}-00", trace.trace_id, record.attempts[0].span_id);
        assert_eq!(received_header(&fake, "traceparent"), [ours]);
        for gone in ["tracestate", "baggage", "b3", "x-b3-traceid", "x-b3-spanid"] {
            assert!(received_header(&fake, gone).is_empty(), "{hostile} {gone}");
        }
    }
}
