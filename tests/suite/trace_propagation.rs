//! Trace context over real sockets: malicious trace headers, the headers that a backend receives,
//! and the trace fields of the record.

use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{CHAT, Running, Setup, post, start_with, status};
use tokenweir::telemetry::otel::TracingSettings;
use tokenweir_core::trace_context::{Propagation, PropagationFormats, TraceParentMode};

const CLIENT_TRACEPARENT: &str =
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
const CLIENT_TRACE_ID: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;

/// A gateway that samples no trace unless the client has sampled it.
async fn gateway(fake: &ScriptedBackend, change: impl FnOnce(&mut Propagation)) -> Running {
    let mut propagation = TracingSettings::default().propagation;
    propagation.sampler.ratio = 0.0;
    change(&mut propagation);
    let setup = Setup { propagation: Some(propagation), ..Setup::default() };
    start_with(&[fake.addr], setup).await
}

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
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let gateway = gateway(&fake, |propagation| {
        propagation.formats =
            PropagationFormats { b3: true, b3_multi: true, ..PropagationFormats::default() };
    })
    .await;
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

#[tokio::test]
async fn an_invalid_tracestate_is_dropped_and_the_trace_continues() {
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let gateway = gateway(&fake, |_| {}).await;
    for (state, forwarded) in [
        ("tracestate: a=1\r\ntracestate: b=2\r\n".to_owned(), &["a=1,b=2"][..]),
        ("tracestate: a=1,a=2\r\n".to_owned(), &[]),
        (format!("tracestate: a={}\r\n", "v".repeat(9_000)), &[]),
    ] {
        assert_eq!(send(&gateway, &format!("{CLIENT_TRACEPARENT}{state}")).await, 200);
        assert_eq!(gateway.record().await.trace.unwrap().trace_id, CLIENT_TRACE_ID);
        assert_eq!(received_header(&fake, "tracestate"), forwarded, "{state}");
    }
}

#[tokio::test]
async fn at_an_untrusted_edge_the_sampled_flag_of_a_client_has_no_effect() {
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    for parent in [TraceParentMode::Link, TraceParentMode::Ignore] {
        let gateway = gateway(&fake, |propagation| {
            propagation.parent_mode = parent;
            propagation.baggage = ["tenant".into()].into();
        })
        .await;
        let forged = format!("{CLIENT_TRACEPARENT}tracestate: a=1\r\nbaggage: tenant=a\r\n");
        assert_eq!(send(&gateway, &forged).await, 200);
        let trace = gateway.record().await.trace.unwrap();
        assert!(
            trace.trace_id != CLIENT_TRACE_ID
                && trace.parent_span_id.is_none()
                && !trace.is_sampled
        );
        assert_eq!(
            trace.linked_parent.map(|link| link.trace_id),
            (parent == TraceParentMode::Link).then_some(CLIENT_TRACE_ID)
        );
        assert!(received_header(&fake, "traceparent")[0].ends_with("-00"));
        assert!(
            received_header(&fake, "tracestate").is_empty()
                && received_header(&fake, "baggage").is_empty()
        );
    }
}

#[tokio::test]
async fn only_listed_baggage_keys_are_forwarded() {
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let gateway =
        gateway(&fake, |propagation| propagation.baggage = ["tenant".into()].into()).await;
    let baggage = "baggage: secret=1,tenant=a\r\nbaggage: tenant.x=2\r\n";
    assert_eq!(send(&gateway, &format!("{CLIENT_TRACEPARENT}{baggage}")).await, 200);
    assert_eq!(received_header(&fake, "baggage"), ["tenant=a"]);
}

#[tokio::test]
async fn a_trace_received_in_b3_is_forwarded_in_w3c() {
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let formats = PropagationFormats { b3: true, ..PropagationFormats::NONE };
    let gateway = gateway(&fake, |propagation| propagation.formats = formats).await;
    let b3 = "b3: 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1\r\n";
    assert_eq!(send(&gateway, b3).await, 200);
    let record = gateway.record().await;
    let span = record.attempts[0].span_id;
    let ours = format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01");
    assert_eq!(received_header(&fake, "traceparent"), [ours]);
    assert!(received_header(&fake, "b3").is_empty() && record.trace.unwrap().is_sampled);
}
