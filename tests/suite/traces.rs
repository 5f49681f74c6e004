//! Trace context over real sockets: what hostile callers send, what goes on to a replica, and what
//! the record makes of it.

use crate::support::fake::{Fake, json};
use crate::support::gateway::{Running, Setup, post, start_with, status};
use tokenweir::telemetry::otel::Settings;
use tokenweir_core::trace_context::{Formats, Parent, Propagation};

const CHAT: &str = "/v1/chat/completions";
const THEIRS: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;

/// A gateway of which nothing is recorded unless the caller has decided so.
async fn gateway(fake: &Fake, change: impl FnOnce(&mut Propagation)) -> Running {
    let mut propagation = Settings::default().propagation;
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

/// The values of a header in the request that the replica saw last.
fn seen(fake: &Fake, name: &str) -> Vec<String> {
    let seen = fake.seen();
    let head = &seen.last().unwrap().head;
    let prefix = format!("{name}: ");
    head.lines().filter_map(|line| line.strip_prefix(&prefix)).map(Into::into).collect()
}

#[tokio::test]
async fn hostile_trace_headers_break_no_request_and_begin_a_new_trace() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway = gateway(&fake, |propagation| {
        propagation.formats = Formats { b3: true, b3_multi: true, ..Formats::default() };
    })
    .await;
    let long = "a".repeat(8_000);
    for hostile in [
        format!("{THEIRS}{THEIRS}"),
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
        assert_eq!((trace.parent, trace.is_sampled, trace.state), (None, false, None), "{hostile}");
        let ours = format!("00-{:032x}-{:016x}-00", trace.trace_id, record.attempts[0].span);
        assert_eq!(seen(&fake, "traceparent"), [ours]);
        for gone in ["tracestate", "baggage", "b3", "x-b3-traceid", "x-b3-spanid"] {
            assert!(seen(&fake, gone).is_empty(), "{hostile} {gone}");
        }
    }
}

#[tokio::test]
async fn a_damaged_state_is_left_behind_and_the_trace_goes_on() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway = gateway(&fake, |_| {}).await;
    for (state, kept) in [
        ("tracestate: a=1\r\ntracestate: b=2\r\n".to_owned(), &["a=1,b=2"][..]),
        ("tracestate: a=1,a=2\r\n".to_owned(), &[]),
        (format!("tracestate: a={}\r\n", "v".repeat(9_000)), &[]),
    ] {
        assert_eq!(send(&gateway, &format!("{THEIRS}{state}")).await, 200);
        assert_eq!(gateway.record().await.trace.unwrap().trace_id, TRACE);
        assert_eq!(seen(&fake, "tracestate"), kept, "{state}");
    }
}

#[tokio::test]
async fn at_an_untrusted_edge_a_forged_flag_changes_nothing() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    for parent in [Parent::Link, Parent::Ignore] {
        let gateway = gateway(&fake, |propagation| {
            propagation.parent = parent;
            propagation.baggage = ["tenant".into()].into();
        })
        .await;
        let forged = format!("{THEIRS}tracestate: a=1\r\nbaggage: tenant=a\r\n");
        assert_eq!(send(&gateway, &forged).await, 200);
        let trace = gateway.record().await.trace.unwrap();
        assert!(trace.trace_id != TRACE && trace.parent.is_none() && !trace.is_sampled);
        assert_eq!(trace.link.map(|link| link.trace_id), (parent == Parent::Link).then_some(TRACE));
        assert!(seen(&fake, "traceparent")[0].ends_with("-00"));
        assert!(seen(&fake, "tracestate").is_empty() && seen(&fake, "baggage").is_empty());
    }
}

#[tokio::test]
async fn of_the_baggage_only_what_is_listed_goes_on() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway =
        gateway(&fake, |propagation| propagation.baggage = ["tenant".into()].into()).await;
    let baggage = "baggage: secret=1,tenant=a\r\nbaggage: tenant.x=2\r\n";
    assert_eq!(send(&gateway, &format!("{THEIRS}{baggage}")).await, 200);
    assert_eq!(seen(&fake, "baggage"), ["tenant=a"]);
}

#[tokio::test]
async fn a_trace_that_came_in_b3_goes_on_in_w3c() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let formats = Formats { b3: true, ..Formats::NONE };
    let gateway = gateway(&fake, |propagation| propagation.formats = formats).await;
    let b3 = "b3: 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1\r\n";
    assert_eq!(send(&gateway, b3).await, 200);
    let record = gateway.record().await;
    let span = record.attempts[0].span;
    let ours = format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01");
    assert_eq!(seen(&fake, "traceparent"), [ours]);
    assert!(seen(&fake, "b3").is_empty() && record.trace.unwrap().is_sampled);
}
