//! TLS on both sides, through real sockets, with certificates made in the test.

use crate::support::certificates::{Authority, Files, Pair, client, connect, terminator};
use crate::support::fake::{FINISH, Fake, ROLE, Step, USAGE, WORD, chunk, stream_head, stream_of};
use crate::support::gateway::{Running, Setup, body, post, start_with, status};
use crate::support::http2;
use rustls::version::{TLS12, TLS13};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokenweir::server::Tls;
use tokenweir_net::tls::{Acceptor, Alpn, ClientSettings, Credentials, Identity, Outbound, Side};
use tokenweir_net::tls::{ServerSettings, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CHAT: &str = "/v1/chat/completions";
const ANY: &[&rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];
const EVENTS: &[&str] = &[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"];

fn settings(files: &Files, pair: &Pair, client_ca: Option<&Authority>) -> ServerSettings {
    ServerSettings {
        cert: Some(files.write("cert.pem", &pair.cert)),
        key: Some(files.write("key.pem", &pair.key)),
        client_ca: client_ca.map(|authority| files.write("client-ca.pem", &authority.pem())),
        admin: true,
    }
}

/// What a gateway with these settings serves with.
fn tls(settings: &ServerSettings) -> Tls {
    let credentials = Arc::new(Credentials::default());
    let clients = Acceptor::for_clients(settings).unwrap();
    credentials.keep_acceptor(clients.as_ref().unwrap());
    Tls { clients, operators: Acceptor::for_operators(settings).unwrap(), credentials }
}

async fn serving(fake: &Fake, tls: Tls) -> Running {
    start_with(&[fake.addr], Setup { tls, ..Setup::default() }).await
}

/// Sends a request and reads until the gateway closes.
async fn ask(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    request: &str,
) -> std::io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

// === towards clients ===

#[tokio::test]
async fn clients_are_served_in_http_1_and_2_by_what_they_offer_and_in_tls_1_2_and_1_3() {
    let (files, authority) = (Files::new("alpn"), Authority::new());
    let pair = authority.signs("gateway.test", 2040);
    let fake = Fake::answering(stream_of(EVENTS)).await;
    let gateway = serving(&fake, tls(&settings(&files, &pair, None))).await;
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    let sent = format!("data: {}\n\n", EVENTS.join("\n\ndata: "));
    for versions in [&[&TLS12][..], &[&TLS13]] {
        for offered in [&[][..], &["http/1.1"]] {
            let client = client(&authority, None, offered, versions);
            let mut stream = connect(&client, gateway.addr, "gateway.test").await.unwrap();
            let answer = ask(&mut stream, &request).await.unwrap();
            assert_eq!(body(&answer), (sent.clone().into_bytes(), true));
        }
        let client = client(&authority, None, &["h2", "http/1.1"], versions);
        let stream = connect(&client, gateway.addr, "gateway.test").await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut sender = http2::handshake(stream).await;
        let answer = http2::post(&mut sender, CHAT, r#"{"model":"tiny","stream":true}"#).await;
        assert_eq!(http2::whole(answer).await, (200, sent.clone().into_bytes()));
    }
    // Without TLS there is nothing.
    assert!(gateway.raw(&request).await.starts_with(&[21]), "an alert of TLS");
}

#[tokio::test]
async fn a_client_without_a_certificate_of_the_authority_gets_nothing_where_one_is_wanted() {
    let (files, authority, other) = (Files::new("mutual"), Authority::new(), Authority::new());
    let pair = authority.signs("gateway.test", 2040);
    let fake = Fake::answering(stream_of(EVENTS)).await;
    let gateway = serving(&fake, tls(&settings(&files, &pair, Some(&authority)))).await;
    let request = post(CHAT, r#"{"model":"tiny","stream":true}"#);
    let known = authority.signs("client.test", 2040);
    let strangers =
        [None, Some(other.signs("client.test", 2040)), Some(authority.signs("c", 2021))];
    for own in &strangers {
        for versions in [&[&TLS12][..], &[&TLS13]] {
            let client = client(&authority, own.as_ref(), &[], versions);
            // In TLS 1.3 the client believes that it is through, and hears of it when it reads.
            let answer = match connect(&client, gateway.addr, "gateway.test").await {
                Ok(mut stream) => ask(&mut stream, &request).await,
                Err(error) => Err(error),
            };
            assert!(answer.is_err());
        }
    }
    let client = client(&authority, Some(&known), &[], ANY);
    let mut stream = connect(&client, gateway.addr, "gateway.test").await.unwrap();
    assert_eq!(status(&ask(&mut stream, &request).await.unwrap()), 200);
    assert_eq!(fake.seen().len(), 1);
    let page = operators(&gateway, &authority, "/metrics").await;
    assert!(page.contains("tokenweir_connections_refused_total{reason=\"tls\"} 6\n"), "{page}");
}

/// A page of the operators' port, which asks for no certificate.
async fn operators(gateway: &Running, authority: &Authority, path: &str) -> String {
    let client = client(authority, None, &[], ANY);
    let mut stream = connect(&client, gateway.admin, "gateway.test").await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    String::from_utf8(ask(&mut stream, &request).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_bad_one_for_nobody() {
    let (files, authority) = (Files::new("renewed"), Authority::new());
    let [first, second] = [2040, 2041].map(|until| authority.signs("gateway.test", until));
    let fake = Fake::start(|_| {
        vec![
            Step::Send([stream_head(), chunk(ROLE), chunk(WORD)].concat()),
            Step::Wait,
            Step::Send([chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat()),
        ]
    })
    .await;
    let tls = tls(&settings(&files, &first, None));
    let credentials = tls.credentials.clone();
    let gateway = serving(&fake, tls).await;
    let client = client(&authority, None, &[], ANY);
    let shown = async || {
        let stream = connect(&client, gateway.addr, "gateway.test").await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    assert_eq!(shown().await, first.der());
    let mut open = connect(&client, gateway.addr, "gateway.test").await.unwrap();
    open.write_all(post(CHAT, r#"{"model":"tiny","stream":true}"#).as_bytes()).await.unwrap();
    let mut answer = vec![0; 64];
    open.read_exact(&mut answer).await.unwrap();

    // A key that does not belong to the certificate, as between the writing of the two.
    files.write("cert.pem", &second.cert);
    credentials.reload();
    assert_eq!(shown().await, first.der());
    files.write("key.pem", &second.key);
    credentials.reload();
    assert_eq!(shown().await, second.der());
    files.write("cert.pem", "no certificate");
    credentials.reload();
    credentials.reload();
    assert_eq!(shown().await, second.der());
    let counts = credentials.counts();
    assert_eq!((counts.reloaded, counts.failed), (1, 2));
    // The end of 2041, by another clock: `date -u -d 2041-12-31 +%s`.
    assert_eq!(counts.expire, [Some(2_272_060_800.0), None, None]);

    fake.go();
    open.read_to_end(&mut answer).await.unwrap();
    assert!(body(&answer).1, "the open stream ended well");
    assert!(body(&answer).0.ends_with(b"data: [DONE]\n\n"));
}

#[test]
fn what_cannot_be_used_is_named() {
    let (files, authority) = (Files::new("unfit"), Authority::new());
    let (one, other) = (authority.signs("a.test", 2040), authority.signs("a.test", 2040));
    let fit = settings(&files, &one, None);
    let with_key = |key| ServerSettings { key: Some(key), ..fit.clone() };
    let error = |settings: ServerSettings| match Acceptor::for_clients(&settings) {
        Ok(_) => panic!("{settings:?}"),
        Err(error) => error,
    };
    assert!(matches!(error(with_key("absent.pem".into())), TlsError::Read { .. }));
    let no_key = files.write("no-key.pem", &one.cert);
    assert!(matches!(error(with_key(no_key)), TlsError::Missing { wanted: "private key", .. }));
    let other_key = files.write("other-key.pem", &other.key);
    assert!(matches!(error(with_key(other_key)), TlsError::Certificate { .. }));
    let client_ca = Some(files.write("empty.pem", ""));
    let error = error(ServerSettings { client_ca, ..fit }).to_string();
    assert!(error.ends_with("empty.pem has no certificate in PEM"), "{error}");
}

// === towards replicas ===

fn outbound(settings: &ClientSettings) -> Arc<Outbound> {
    Outbound::new(Identity::new(settings, Alpn::Http1).unwrap())
}

async fn in_front_of(replica: SocketAddr, settings: &ClientSettings) -> Running {
    let outbound = Some(outbound(settings));
    start_with(&[replica], Setup { outbound, ..Setup::default() }).await
}

fn believing(ca: PathBuf) -> ClientSettings {
    ClientSettings { ca: Some(ca), ..ClientSettings::default() }
}

#[tokio::test]
async fn a_replica_behind_tls_is_scraped_leased_and_streamed_byte_for_byte() {
    let (files, authority) = (Files::new("replica"), Authority::new());
    let (pair, own) =
        (authority.signs("replica.test", 2040), authority.signs("gateway.test", 2040));
    let fake = Fake::answering(stream_of(EVENTS)).await;
    let replica = terminator(fake.addr, &pair, Some(&authority), &["http/1.1"]).await;
    let settings = ClientSettings {
        client_cert: Some(files.write("own.pem", &own.cert)),
        client_key: Some(files.write("own-key.pem", &own.key)),
        server_name: Some("replica.test".into()),
        ..believing(files.write("ca.pem", &authority.pem()))
    };
    let gateway = in_front_of(replica, &settings).await;
    let sent = format!("data: {}\n\n", EVENTS.join("\n\ndata: "));
    for _ in 0..3 {
        let answer = gateway.post(CHAT, r#"{"model":"tiny","stream":true}"#).await;
        assert_eq!(body(&answer), (sent.clone().into_bytes(), true));
        assert_eq!(gateway.record().await.outcome.as_str(), "ok");
    }
    assert_eq!(fake.connections(), 1, "the connection is kept");
    let status = gateway.admin("/status").await;
    assert!(status.contains(&format!("\"url\":\"https://{replica}\"")), "{status}");
    assert!(status.contains("\"kv_usage\":0.25"), "its metrics are read: {status}");
}

#[tokio::test]
async fn a_replica_that_is_not_who_it_should_be_gets_no_request() {
    let (files, authority, other) = (Files::new("impostor"), Authority::new(), Authority::new());
    let ca = files.write("ca.pem", &authority.pem());
    let named =
        |name: &str| ClientSettings { server_name: Some(name.into()), ..believing(ca.clone()) };
    let fit = authority.signs("replica.test", 2040);
    for (pair, clients, settings, reason) in [
        (&other.signs("replica.test", 2040), None, named("replica.test"), "UnknownIssuer"),
        (&fit, None, named("another.test"), "not valid for name"),
        (&fit, None, believing(ca.clone()), "not valid for name"),
        (&authority.signs("replica.test", 2021), None, named("replica.test"), "expired"),
        (&fit, Some(&authority), named("replica.test"), ""),
    ] {
        let fake = Fake::answering(stream_of(EVENTS)).await;
        let replica = terminator(fake.addr, pair, clients, &[]).await;
        let gateway = in_front_of(replica, &settings).await;
        let answer = gateway.post(CHAT, r#"{"model":"tiny","stream":true}"#).await;
        assert_eq!(status(&answer), 503, "{reason}");
        let page = gateway.admin("/status").await;
        assert!(page.contains(reason), "{reason}: {page}");
        assert!(fake.seen().is_empty() && fake.looks() == [0, 0], "{reason}");
    }
}

#[tokio::test]
async fn a_replica_can_have_an_authority_of_its_own() {
    let (files, authority, other) = (Files::new("own"), Authority::new(), Authority::new());
    let pair = other.signs("127.0.0.1", 2040);
    let fake = Fake::answering(stream_of(EVENTS)).await;
    let replica = terminator(fake.addr, &pair, None, &[]).await;
    let outbound = outbound(&believing(files.write("all.pem", &authority.pem())));
    let own = believing(files.write("own.pem", &other.pem()));
    let own = Arc::new(Identity::new(&own, Alpn::Http1).unwrap());
    outbound.set_own([(replica.to_string(), own)]);
    let credentials = Credentials::default();
    credentials.keep_outbound(Side::Backend, &outbound);
    let setup = Setup { outbound: Some(outbound), ..Setup::default() };
    let gateway = start_with(&[replica], setup).await;
    let answer = gateway.post(CHAT, r#"{"model":"tiny","stream":true}"#).await;
    assert_eq!(status(&answer), 200);
    credentials.reload();
    assert_eq!(credentials.counts().reloaded, 0, "nothing has changed");
    files.write("own.pem", &Authority::new().pem());
    credentials.reload();
    assert_eq!(credentials.counts().reloaded, 1);
}
