//! TLS on connections from clients and to backends, over real sockets. The tests generate the certificates.

use crate::support::certificates::{Authority, Files, Pair, client, connect, start_tls_terminator};
use crate::support::http2_client;
use crate::support::process::GatewayProcess;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, USAGE, WORD, paused, stream_of,
};
use crate::support::test_gateway::{CHAT, Running, Setup, body, get, post, start_with, status};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokenweir_gateway::server::{ServerLimits, ServerTls};
use tokenweir_net::tls::{
    Acceptor, Alpn, Credentials, OutboundTls, TlsClientContext, TlsClientSettings, TlsPeer,
};
use tokenweir_net::tls::{TlsError, TlsServerSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::version::{TLS12, TLS13};

const ANY: &[&tokio_rustls::rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];
const EVENTS: &[&str] = &[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"];

fn settings(files: &Files, pair: &Pair, client_ca: Option<&Authority>) -> TlsServerSettings {
    TlsServerSettings {
        cert: Some(files.write("cert.pem", &pair.cert)),
        key: Some(files.write("key.pem", &pair.key)),
        client_ca: client_ca.map(|authority| files.write("client-ca.pem", &authority.pem())),
        admin: true,
    }
}

/// Builds the TLS configuration of both listeners of a gateway with these settings.
fn tls(settings: &TlsServerSettings) -> ServerTls {
    let credentials = Arc::new(Credentials::default());
    let clients = Acceptor::for_client_listener(settings).unwrap();
    credentials.register_acceptor(clients.as_ref().unwrap());
    ServerTls {
        client_acceptor: clients,
        admin_acceptor: Acceptor::for_admin_listener(settings).unwrap(),
        credentials,
    }
}

async fn serving(fake: &ScriptedBackend, tls: ServerTls) -> Running {
    start_with(
        &[fake.addr],
        Setup {
            tls,
            ..Setup::default()
        },
    )
    .await
}

/// Sends a request and reads until the gateway closes the connection. Returns the bytes that were read.
async fn ask(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    request: &str,
) -> std::io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

// === connections from clients ===

#[tokio::test]
async fn both_listeners_serve_alpn_over_tls() {
    let (files, authority) = (Files::new("alpn"), Authority::new());
    let pair = authority.signs("gateway.test", 2040);
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let gateway = serving(&fake, tls(&settings(&files, &pair, None))).await;
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    let sent = format!("data: {}\n\n", EVENTS.join("\n\ndata: "));
    for versions in [&[&TLS12][..], &[&TLS13]] {
        for offered in [&[][..], &["http/1.1"]] {
            let client = client(&authority, None, offered, versions);
            let mut stream = connect(&client, gateway.addr, "gateway.test")
                .await
                .unwrap();
            let answer = ask(&mut stream, &request).await.unwrap();
            assert_eq!(body(&answer), (sent.clone().into_bytes(), true));
        }
        let client = client(&authority, None, &["h2", "http/1.1"], versions);
        let stream = connect(&client, gateway.addr, "gateway.test")
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = http2_client::handshake(stream).await;
        let answer =
            http2_client::post(&mut sender, CHAT, r#"{"model":"tiny","stream":true}"#).await;
        assert_eq!(
            http2_client::whole(answer).await,
            (200, sent.clone().into_bytes())
        );
        let stream = connect(&client, gateway.admin, "gateway.test")
            .await
            .unwrap();
        let mut sender = http2_client::handshake(stream).await;
        let answer = http2_client::post(&mut sender, "/unknown", "{}").await;
        assert_eq!(http2_client::whole(answer).await.0, 404);
    }
    // The gateway answers a request without TLS only with a TLS alert.
    assert!(
        gateway.raw(&request).await.starts_with(&[21]),
        "a TLS alert"
    );
}

#[tokio::test]
async fn unfinished_tls_handshakes_do_not_keep_clients_out() {
    let (files, authority) = (Files::new("unfinished"), Authority::new());
    let pair = authority.signs("gateway.test", 2040);
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let limits = ServerLimits {
        max_connections: 1,
        ..ServerLimits::default()
    };
    let tls = tls(&settings(&files, &pair, None));
    let gateway = start_with(
        &[fake.addr],
        Setup {
            limits,
            tls,
            ..Setup::default()
        },
    )
    .await;
    let client = client(&authority, None, &[], ANY);
    let mut held = gateway.send([22, 3, 1, 2, 0]).await;
    wait_until!(connect(&client, gateway.addr, "gateway.test").await.is_ok());
    assert_eq!(held.read(&mut [0]).await.unwrap_or(0), 0, "it is closed");
}

#[tokio::test]
async fn mutual_tls_rejects_untrusted_clients() {
    let (files, authority, other_authority) =
        (Files::new("mutual"), Authority::new(), Authority::new());
    let pair = authority.signs("gateway.test", 2040);
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let gateway = serving(&fake, tls(&settings(&files, &pair, Some(&authority)))).await;
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    let known = authority.signs("client.test", 2040);
    let strangers = [
        None,
        Some(other_authority.signs("client.test", 2040)),
        Some(authority.signs("c", 2021)),
    ];
    for own in &strangers {
        for versions in [&[&TLS12][..], &[&TLS13]] {
            let client = client(&authority, own.as_ref(), &[], versions);
            // In TLS 1.3, the handshake ends successfully for the client. The alert comes when the client
            // reads.
            let answer = match connect(&client, gateway.addr, "gateway.test").await {
                Ok(mut stream) => ask(&mut stream, &request).await,
                Err(error) => Err(error),
            };
            assert!(answer.is_err());
        }
    }
    let client = client(&authority, Some(&known), &[], ANY);
    let mut stream = connect(&client, gateway.addr, "gateway.test")
        .await
        .unwrap();
    assert_eq!(status(&ask(&mut stream, &request).await.unwrap()), 200);
    assert_eq!(fake.seen().len(), 1);
    // The admin listener requires no certificate of its clients.
    let client = self::client(&authority, None, &[], ANY);
    let mut stream = connect(&client, gateway.admin, "gateway.test")
        .await
        .unwrap();
    let page = String::from_utf8(ask(&mut stream, &get("/metrics")).await.unwrap()).unwrap();
    assert!(
        page.contains("tokenweir_connections_refused_total{reason=\"tls\"} 6\n"),
        "{page}"
    );
}

#[tokio::test]
async fn a_renewed_certificate_is_used() {
    let (files, authority) = (Files::new("renewed"), Authority::new());
    let [first, second] = [2040, 2041].map(|until| authority.signs("gateway.test", until));
    let fake = ScriptedBackend::start(|_| paused(&[ROLE, WORD], &[FINISH, "[DONE]"])).await;
    let tls = tls(&settings(&files, &first, None));
    let credentials = tls.credentials.clone();
    let gateway = serving(&fake, tls).await;
    let client = client(&authority, None, &[], ANY);
    let shown = async || {
        let stream = connect(&client, gateway.addr, "gateway.test")
            .await
            .unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    assert_eq!(shown().await, first.der());
    let mut open = connect(&client, gateway.addr, "gateway.test")
        .await
        .unwrap();
    open.write_all(post(CHAT, r#"{"model":"tiny","stream":true}"#).as_bytes())
        .await
        .unwrap();
    let mut answer = vec![0; 64];
    open.read_exact(&mut answer).await.unwrap();

    // The test has replaced only the first of two files, so the key does not belong to the certificate. The
    // gateway continues to use the old pair.
    files.write("cert.pem", &second.cert);
    credentials.reload_changed_files();
    assert_eq!(shown().await, first.der());
    files.write("key.pem", &second.key);
    credentials.reload_changed_files();
    assert_eq!(shown().await, second.der());
    files.write("cert.pem", "no certificate");
    credentials.reload_changed_files();
    credentials.reload_changed_files();
    assert_eq!(shown().await, second.der());
    let counts = credentials.counts();
    assert_eq!((counts.reloaded, counts.failed), (1, 2));
    // The end of the year 2041, from `date -u -d 2041-12-31 +%s`.
    assert_eq!(counts.expire, [Some(2_272_060_800.0), None, None]);

    fake.go();
    open.read_to_end(&mut answer).await.unwrap();
    assert!(body(&answer).1, "the open stream is complete");
    assert!(body(&answer).0.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn errors_name_the_unusable_file() {
    let (files, authority) = (Files::new("unfit"), Authority::new());
    let (first_pair, second_pair) = (
        authority.signs("a.test", 2040),
        authority.signs("a.test", 2040),
    );
    let fit = settings(&files, &first_pair, None);
    let with_key = |key| TlsServerSettings {
        key: Some(key),
        ..fit.clone()
    };
    let error = |settings: TlsServerSettings| match Acceptor::for_client_listener(&settings) {
        Ok(_) => panic!("{settings:?}"),
        Err(error) => error,
    };
    assert!(matches!(
        error(with_key("absent.pem".into())),
        TlsError::ReadFile { .. }
    ));
    let no_key = files.write("no-key.pem", &first_pair.cert);
    assert!(matches!(
        error(with_key(no_key)),
        TlsError::MissingPemItem {
            wanted: "private key",
            ..
        }
    ));
    let other_key = files.write("other-key.pem", &second_pair.key);
    assert!(matches!(
        error(with_key(other_key)),
        TlsError::InvalidCertificate { .. }
    ));
    let client_ca = Some(files.write("empty.pem", ""));
    let error = error(TlsServerSettings { client_ca, ..fit }).to_string();
    assert!(
        error.ends_with("empty.pem has no valid certificate in PEM format"),
        "{error}"
    );
}

// === connections to backends ===

fn outbound(settings: &TlsClientSettings) -> Arc<OutboundTls> {
    OutboundTls::new(TlsClientContext::new(settings, Alpn::Http1).unwrap())
}

async fn in_front_of(backend: SocketAddr, settings: &TlsClientSettings) -> Running {
    let outbound = Some(outbound(settings));
    start_with(
        &[backend],
        Setup {
            outbound,
            ..Setup::default()
        },
    )
    .await
}

fn trusting(ca: PathBuf) -> TlsClientSettings {
    TlsClientSettings {
        ca: Some(ca),
        ..TlsClientSettings::default()
    }
}

#[tokio::test]
async fn a_tls_backend_is_scraped_and_served() {
    let (files, authority) = (Files::new("backend"), Authority::new());
    let (pair, own) = (
        authority.signs("backend.test", 2040),
        authority.signs("gateway.test", 2040),
    );
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let backend = start_tls_terminator(fake.addr, &pair, Some(&authority), &["http/1.1"]).await;
    let settings = TlsClientSettings {
        client_cert: Some(files.write("own.pem", &own.cert)),
        client_key: Some(files.write("own-key.pem", &own.key)),
        server_name: Some("backend.test".into()),
        ..trusting(files.write("ca.pem", &authority.pem()))
    };
    let gateway = in_front_of(backend, &settings).await;
    let sent = format!("data: {}\n\n", EVENTS.join("\n\ndata: "));
    for _ in 0..3 {
        let answer = gateway
            .post(CHAT, r#"{"model":"tiny","stream":true}"#)
            .await;
        assert_eq!(body(&answer), (sent.clone().into_bytes(), true));
        assert_eq!(gateway.record().await.outcome.as_str(), "ok");
    }
    assert_eq!(fake.connections(), 1, "the connection is reused");
    let status = gateway.admin("/status").await;
    assert!(
        status.contains(&format!("\"url\":\"https://{backend}\"")),
        "{status}"
    );
    assert!(
        status.contains("\"kv_usage\":0.25"),
        "the backend is scraped: {status}"
    );
}

#[tokio::test]
async fn an_untrusted_backend_gets_no_request() {
    let (files, authority, other_authority) =
        (Files::new("impostor"), Authority::new(), Authority::new());
    let ca = files.write("ca.pem", &authority.pem());
    let named = |name: &str| TlsClientSettings {
        server_name: Some(name.into()),
        ..trusting(ca.clone())
    };
    let fit = authority.signs("backend.test", 2040);
    for (pair, clients, settings, reason) in [
        (
            &other_authority.signs("backend.test", 2040),
            None,
            named("backend.test"),
            "UnknownIssuer",
        ),
        (&fit, None, named("another.test"), "not valid for name"),
        (&fit, None, trusting(ca.clone()), "not valid for name"),
        (
            &authority.signs("backend.test", 2021),
            None,
            named("backend.test"),
            "expired",
        ),
        (&fit, Some(&authority), named("backend.test"), ""),
    ] {
        let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
        let backend = start_tls_terminator(fake.addr, pair, clients, &[]).await;
        let gateway = in_front_of(backend, &settings).await;
        let answer = gateway
            .post(CHAT, r#"{"model":"tiny","stream":true}"#)
            .await;
        assert_eq!(status(&answer), 503, "{reason}");
        let page = gateway.admin("/status").await;
        assert!(page.contains(reason), "{reason}: {page}");
        assert!(fake.seen().is_empty() && fake.looks() == [0, 0], "{reason}");
    }
}

/// The first health check of a new backend already trusts the authority of the backend.
#[tokio::test(flavor = "multi_thread")]
async fn a_reloaded_backend_is_trusted_at_once() {
    let files = Files::new("reloaded");
    let authority = Authority::new();
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let pair = authority.signs("127.0.0.1", 2040);
    let backend = start_tls_terminator(fake.addr, &pair, None, &[]).await;
    let ca = files.write("ca.pem", &authority.pem());
    let write = |entry: &str| {
        let text = format!("listen: 127.0.0.1:0\nbackends: [{{ {entry} }}]\n");
        files.write("gateway.yaml", &text)
    };
    let config = write(&format!("url: 'http://{}'", fake.addr));
    let gateway = GatewayProcess::start(&config).await;
    write(&format!(
        "url: 'https://{backend}', tls: {{ ca: '{}' }}",
        ca.display()
    ));
    let answer = gateway.reload().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    wait_until!(gateway.log().matches("backend is up").count() == 2);
    assert!(!gateway.log().contains("backend is down"));
}

#[tokio::test]
async fn a_backend_can_have_its_own_certificate_authority() {
    let (files, authority, other_authority) =
        (Files::new("own"), Authority::new(), Authority::new());
    let pair = other_authority.signs("127.0.0.1", 2040);
    let fake = ScriptedBackend::answering(stream_of(EVENTS)).await;
    let backend = start_tls_terminator(fake.addr, &pair, None, &[]).await;
    let outbound = outbound(&trusting(files.write("all.pem", &authority.pem())));
    let own = trusting(files.write("own.pem", &other_authority.pem()));
    let own = Arc::new(TlsClientContext::new(&own, Alpn::Http1).unwrap());
    outbound.set_host_contexts([(backend.to_string(), own)]);
    let credentials = Credentials::default();
    credentials.register_outbound(TlsPeer::Backend, &outbound);
    let setup = Setup {
        outbound: Some(outbound),
        ..Setup::default()
    };
    let gateway = start_with(&[backend], setup).await;
    let answer = gateway
        .post(CHAT, r#"{"model":"tiny","stream":true}"#)
        .await;
    assert_eq!(status(&answer), 200);
    credentials.reload_changed_files();
    assert_eq!(
        credentials.counts().reloaded,
        0,
        "no certificate was reloaded"
    );
    files.write("own.pem", &Authority::new().pem());
    credentials.reload_changed_files();
    assert_eq!(credentials.counts().reloaded, 1);
}
