//! API paths that the gateway answers itself, and the error for a path that it does not serve.

use crate::access::{KEY, access, tenant};
use crate::support::http2_client;
use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{
    ASK, CHAT, Setup, body, body_json, gateway_answering, gateway_answering_with, get, post,
    read_until, start, start_with, status, with_lines,
};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::Value;
use tokenweir_request::access::TenantEntry;

fn answer() -> Vec<u8> {
    json("200 OK", r#"{"object":"x"}"#)
}

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: g\r\n{headers}connection: close\r\n\r\n")
}

fn text(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).into_owned()
}

#[tokio::test]
async fn a_model_is_retrieved_by_its_id() {
    let fake = ScriptedBackend::answering(answer()).await;
    fake.set_models(&["tiny", "org/Big-Model", "a%20b"]);
    let gateway = start(&[fake.addr]).await;
    let list = body_json(&gateway.raw(get("/v1/models")).await);
    for (path, id) in [
        ("tiny", "tiny"),
        ("org%2FBig-Model", "org/Big-Model"),
        ("org/Big-Model", "org/Big-Model"),
        ("a%2520b", "a%20b"),
    ] {
        let path = format!("/v1/models/{path}");
        let answer = gateway.raw(request("GET", &path, "")).await;
        let entry = body_json(&answer);
        assert_eq!(
            (status(&answer), &entry["id"]),
            (200, &Value::from(id)),
            "{path}"
        );
        assert!(list["data"].as_array().unwrap().contains(&entry), "{path}");
        let head = gateway.raw(request("HEAD", &path, "")).await;
        assert_eq!((status(&head), body(&head).0), (200, Vec::new()), "{path}");
    }
    for path in ["none", "org", "a%20b", "tiny/", "%ff", "../tiny"] {
        let answer = gateway
            .raw(request("GET", &format!("/v1/models/{path}"), ""))
            .await;
        let error = body_json(&answer);
        let seen = (status(&answer), &error["error"]["code"]);
        assert_eq!(seen, (404, &Value::from("model_not_found")), "{path}");
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_forbidden_model_gets_404() {
    let fake = ScriptedBackend::answering(answer()).await;
    fake.set_models(&["tiny", "secret"]);
    let restricted = TenantEntry {
        models: Some(vec!["tiny".into()]),
        ..tenant()
    };
    let setup = Setup {
        access: access(restricted),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    for (model, expected) in [("tiny", 200), ("secret", 404)] {
        let path = format!("/v1/models/{model}");
        assert_eq!(
            status(&gateway.raw(request("GET", &path, "")).await),
            401,
            "{model}"
        );
        let key = format!("authorization: Bearer {KEY}\r\n");
        let answer = gateway.raw(request("GET", &path, &key)).await;
        assert_eq!(status(&answer), expected, "{model}");
        assert!(!text(&answer).contains("secret`,"), "{}", text(&answer));
    }
}

#[tokio::test]
async fn wrong_upgrades_get_426_and_methods_405() {
    let (fake, gateway) = gateway_answering(answer()).await;
    let socket = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                  sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for (path, headers, expected) in [
        ("/v1/responses", socket, 426),
        (
            CHAT,
            "upgrade: other/1\r\nconnection: keep-alive, Upgrade\r\n",
            426,
        ),
        (CHAT, "upgrade: h2c\r\nconnection: upgrade\r\n", 405),
        (CHAT, "upgrade: websocket\r\n", 405),
        ("/v1/responses", "", 405),
        ("/v1/nothing", socket, 404),
        ("/v1/models", socket, 200),
    ] {
        // The request has no `connection` header besides those in `headers`.
        let request = format!("GET {path} HTTP/1.1\r\nhost: g\r\n{headers}\r\n");
        let mut client = gateway.send(request).await;
        let answer = text(&read_until(&mut client, "\r\n\r\n").await);
        assert_eq!(status(answer.as_bytes()), expected, "{path} {headers}");
        assert_eq!(
            answer.contains("\r\nupgrade: HTTP/1.1\r\n"),
            expected == 426,
            "{answer}"
        );
        let has_allow = answer.contains("\r\nallow: POST\r\n");
        assert_eq!(has_allow, matches!(expected, 405 | 426), "{answer}");
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn an_unknown_path_gets_a_suggestion() {
    let (fake, gateway) = gateway_answering(answer()).await;
    for (path, hint) in [
        ("/chat/completions", "did you mean `/v1/chat/completions`?"),
        ("/sleep", "serves inference APIs only"),
    ] {
        let answer = gateway.raw(post(path, ASK)).await;
        assert_eq!(status(&answer), 404, "{path}");
        assert!(text(&answer).contains(hint), "{}", text(&answer));
    }
    assert!(fake.seen().is_empty());
}

/// Checks of load balancers and monitors with their default settings, as they are on the wire.
const PROBES: [(&str, &str); 22] = [
    ("HAProxy, option httpchk", "OPTIONS / HTTP/1.0\r\n\r\n"),
    ("HAProxy, a path", "OPTIONS /health HTTP/1.0\r\n\r\n"),
    (
        "HAProxy, a version and a host",
        "OPTIONS / HTTP/1.1\r\nhost: g\r\n\r\n",
    ),
    (
        "HAProxy, http-check send",
        "GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n",
    ),
    ("BIG-IP, http 1.0", "GET / HTTP/1.0\r\n\r\n"),
    (
        "BIG-IP, http 1.1",
        "GET / HTTP/1.1\r\nHost: \r\nConnection: Close\r\n\r\n",
    ),
    (
        "BIG-IP, HEAD",
        "HEAD / HTTP/1.1\r\nHost:\r\nConnection: Close\r\n\r\n",
    ),
    (
        "AWS ALB",
        "GET / HTTP/1.1\r\nHost: 10.0.0.7:8080\r\nConnection: close\r\n\
         User-Agent: ELB-HealthChecker/2.0\r\nAccept-Encoding: gzip, compressed\r\n\r\n",
    ),
    (
        "Google Cloud",
        "GET / HTTP/1.1\r\nHost: 10.0.0.7\r\nUser-Agent: GoogleHC/1.0\r\n\
         Connection: Keep-alive\r\n\r\n",
    ),
    (
        "Azure",
        "GET / HTTP/1.1\r\nHost: 10.0.0.7\r\nUser-Agent: Load Balancer Agent\r\n\r\n",
    ),
    (
        "Nagios check_http",
        "GET / HTTP/1.0\r\nUser-Agent: check_http/v2.3 (nagios-plugins)\r\n\
         Connection: close\r\n\r\n",
    ),
    (
        "Kubernetes",
        "GET /health HTTP/1.1\r\nHost: 10.0.0.7:8080\r\nUser-Agent: kube-probe/1.33\r\n\
         Accept: */*\r\nConnection: close\r\n\r\n",
    ),
    (
        "Varnish",
        "GET / HTTP/1.1\r\nHost: 10.0.0.7\r\nConnection: close\r\n\r\n",
    ),
    (
        "nginx",
        "GET / HTTP/1.0\r\nHost: upstream\r\nConnection: close\r\n\r\n",
    ),
    (
        "Keepalived",
        "GET / HTTP/1.0\r\nUser-Agent: KeepAliveClient\r\nHost: 10.0.0.7:8080\r\n\r\n",
    ),
    (
        "Squid",
        "GET http://10.0.0.7:8080/ HTTP/1.1\r\nHost: 10.0.0.7:8080\r\n\r\n",
    ),
    ("HEAD, HTTP/1.0", "HEAD / HTTP/1.0\r\n\r\n"),
    (
        "HEAD, kept open",
        "HEAD /ping HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
    ),
    ("HEAD, HTTP/1.1", "HEAD /health HTTP/1.1\r\nHost: g\r\n\r\n"),
    (
        "curl -X OPTIONS",
        "OPTIONS / HTTP/1.1\r\nHost: g\r\nAccept: */*\r\n\r\n",
    ),
    (
        "curl --request-target",
        "OPTIONS * HTTP/1.1\r\nHost: g\r\nAccept: */*\r\n\r\n",
    ),
    (
        "a probe behind an empty line",
        "\r\nOPTIONS * HTTP/1.0\r\n\r\n",
    ),
];

#[tokio::test]
async fn load_balancers_and_monitors_see_the_health() {
    let setup = Setup {
        access: access(tenant()),
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, answer()).await;
    let probe = async |name: &str, request: &str| {
        let mut client = gateway.send(request).await;
        let answer = text(&read_until(&mut client, "\r\n\r\n").await);
        let is_http11 = request.contains(" HTTP/1.1\r\n");
        let is_kept = request.contains("Keep-") || (is_http11 && !request.contains("lose\r\n"));
        assert_eq!(
            !answer.contains("\r\nconnection: close"),
            is_kept,
            "{name}: {answer}"
        );
        let is_options = request.contains("OPTIONS");
        assert_eq!(
            answer.contains("\r\nallow: GET"),
            is_options,
            "{name}: {answer}"
        );
        status(answer.as_bytes())
    };
    for (name, request) in PROBES {
        assert_eq!(probe(name, request).await, 200, "{name}");
    }
    fake.set_healthy(false);
    gateway.pool.backends()[0].mark_down("refused");
    for (name, request) in PROBES {
        assert_eq!(probe(name, request).await, 503, "{name}");
    }
}

#[tokio::test]
async fn a_missing_or_invalid_host_gets_400() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    for (hosts, expected) in [
        ("host: g\r\n", 200),
        ("host:\r\n", 200),
        ("", 400),
        ("host: g\r\nhost: g\r\n", 400),
        ("host:\r\nhost:\r\n", 400),
        ("host: a b\r\n", 400),
        ("host: http://g\r\n", 400),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        assert_eq!(status(&gateway.raw(request).await), expected, "{hosts:?}");
    }
}

#[tokio::test]
async fn http2_reaches_the_backend_as_http1() {
    let (fake, gateway) = gateway_answering(answer()).await;
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let ask = |fields: &[(&str, &str)]| {
        let builder = Request::post(format!("http://gateway{CHAT}"));
        let builder = fields.iter().fold(builder, |builder, (name, value)| {
            builder.header(*name, *value)
        });
        builder.body(Full::new(Bytes::from(ASK))).unwrap()
    };
    sender.ready().await.unwrap();
    let fields = [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    let answer = sender.send_request(ask(&fields)).await.unwrap();
    assert_eq!(http2_client::whole(answer).await.0, 200);
    let head = fake.seen().pop().unwrap().head.to_ascii_lowercase();
    assert_eq!(head.matches("cookie:").count(), 1, "{head}");
    assert!(head.contains("\r\ncookie: a=1; b=2\r\n"), "{head}");
    assert!(
        head.contains("\r\nx-forwarded-for: 192.0.2.1, 127.0.0.1\r\n"),
        "{head}"
    );
    // The gateway limits the number of header fields, as it does for HTTP/1.1.
    let names: Vec<String> = (0..101).map(|number| format!("x-h{number}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    sender.ready().await.unwrap();
    let answer = sender.send_request(ask(&many)).await.unwrap();
    assert_eq!(answer.headers()["x-gateway-error"], "head_too_large");
    assert_eq!(http2_client::whole(answer).await.0, 431);
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn a_compressed_request_body_is_forwarded_decoded() {
    let (fake, gateway) = gateway_answering(answer()).await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, ASK.as_bytes()).unwrap();
    let body = encoder.finish().unwrap();
    let head = |more: &str| {
        let length = body.len();
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n{more}content-length: {length}\r\n\r\n"
        )
    };
    let request = |more: &str| [head(more).as_bytes(), &body].concat();
    assert_eq!(status(&gateway.raw(request("")).await), 200);
    let seen = fake.seen().remove(0);
    assert_eq!(seen.body, ASK.as_bytes());
    assert!(!seen.head.contains("content-encoding"), "{}", seen.head);
    assert_eq!(gateway.record().await.bytes_in as usize, body.len());
    // The digest is that of the encoded body.
    let digest = "content-digest: sha-256=:AAAA:\r\n";
    assert_eq!(status(&gateway.raw(request(digest)).await), 415);
}

#[tokio::test]
async fn identity_coding_passes_and_others_get_415() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    let encoded =
        |coding: &str| with_lines(&post(CHAT, ASK), &format!("content-encoding: {coding}"));
    for coding in ["identity", "Identity", "identity, identity", ""] {
        assert_eq!(status(&gateway.raw(encoded(coding)).await), 200, "{coding}");
    }
    for coding in ["gzip", "deflate", "br", "zstd", "identity, GZIP"] {
        let answer = gateway.raw(encoded(coding)).await;
        assert_eq!(status(&answer), 415, "{coding}");
        let answer = text(&answer);
        assert!(
            answer.contains("\r\naccept-encoding: gzip, deflate, zstd, identity\r\n"),
            "{answer}"
        );
        assert!(answer.contains("(gzip, deflate or zstd)"), "{answer}");
    }
}
