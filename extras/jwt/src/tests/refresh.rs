//! Tests of how the keys of an issuer are read: hostile servers, key rotation, and an unreachable issuer.

use super::signer::Signer;
use super::{ISSUER, NOW, at, claims, claims_with, context, jwks, keys, settings};
use crate::issuer::{MIN_REFRESH_INTERVAL, client};
use crate::signature::Algorithm;
use crate::{ApiKeys, JwtConfig, JwtIssuerConfig, Refusal, TokenVerifier};
use http::Uri;
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_net::testing::TempFolder;
use tokenweir_net::tls::SimulatedStream;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::sleep;

/// The reaction of the server of an issuer to a request.
#[derive(Clone)]
enum Reply {
    Document(Value),
    Raw(String),
    /// The connection is refused.
    Away,
    Silence,
}

/// The simulated servers. All hosts answer in the same way.
struct Servers {
    reply: Box<dyn Fn(&str) -> Reply + Send + Sync>,
    /// Replies that replace those of `reply` from now on. `None`: `reply` applies.
    other: Mutex<Option<Reply>>,
    /// The URLs that were requested.
    requested: Mutex<Vec<String>>,
}

impl Servers {
    fn new(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            reply: Box::new(reply),
            other: Mutex::default(),
            requested: Mutex::default(),
        })
    }

    /// An issuer with a discovery document and these keys.
    fn of_keys(keys: Value) -> Arc<Self> {
        Self::new(move |path| match path {
            "/.well-known/openid-configuration" => Reply::Document(discovery()),
            _ => Reply::Document(keys.clone()),
        })
    }

    fn set(&self, reply: Reply) {
        *lock(&self.other) = Some(reply);
    }

    fn requests(&self) -> Vec<String> {
        lock(&self.requested).clone()
    }

    async fn serve(self: Arc<Self>, host: String, mut stream: DuplexStream) -> io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap();
        lock(&self.requested).push(format!("{host}{path}"));
        let other = lock(&self.other).clone();
        let response = match other.unwrap_or_else(|| (self.reply)(path)) {
            Reply::Document(document) => whole(&document.to_string()),
            Reply::Raw(response) => response,
            Reply::Away => return Ok(()),
            Reply::Silence => return std::future::pending().await,
        };
        stream.write_all(response.as_bytes()).await
    }
}

fn whole(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn discovery() -> Value {
    json!({ "issuer": ISSUER, "jwks_uri": "https://keys.test/jwks" })
}

/// A gateway that trusts an issuer with simulated servers.
struct Gateway {
    verifier: Arc<TokenVerifier>,
    keys: Arc<ApiKeys>,
}

impl Gateway {
    /// Starts the gateway. `jwks_url`: `None` for discovery.
    fn start(servers: &Arc<Servers>, jwks_url: Option<&str>) -> Self {
        let settings = json!({
            "issuer": ISSUER, "audiences": ["tokenweir"], "jwks_url": jwks_url,
        });
        Self::with(servers, serde_json::from_value(settings).unwrap())
    }

    fn with(servers: &Arc<Servers>, settings: JwtIssuerConfig) -> Self {
        let servers = servers.clone();
        let dial = Arc::new(move |uri: &Uri| {
            let servers = servers.clone();
            let host = uri.authority().unwrap().to_string();
            let is_away = matches!(&*lock(&servers.other), Some(Reply::Away));
            let stream = async move {
                if is_away {
                    lock(&servers.requested).push(host);
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                let (stream, server) = tokio::io::duplex(1 << 20);
                tokio::spawn(servers.serve(host, server));
                Ok(Box::new(stream) as Box<dyn SimulatedStream>)
            };
            Box::pin(stream) as _
        });
        let config = JwtConfig {
            issuers: vec![settings],
            ..JwtConfig::default()
        };
        let client = client().with_dial(dial);
        let verifier = TokenVerifier::start_with(&config, context(), &client);
        Self {
            verifier: verifier.unwrap().unwrap(),
            keys: keys(),
        }
    }

    fn check_at(&self, token: &str, now: u64) -> Result<(), Refusal> {
        let result = self.verifier.check(token.as_bytes(), &self.keys, at(now));
        result.unwrap().map(drop)
    }

    fn check(&self, token: &str) -> Result<(), Refusal> {
        self.check_at(token, NOW)
    }

    fn status(&self) -> crate::IssuerStatus {
        self.verifier.issuer_statuses(clock::now()).remove(0)
    }
}

/// Lets all tasks run until they wait.
async fn settle() {
    sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn discovery_leads_to_the_keys() {
    let signer = Signer::new(Algorithm::ES256);
    let servers = Servers::of_keys(jwks(&[&signer]));
    let gateway = Gateway::start(&servers, None);
    let token = signer.token(&claims());
    assert_eq!(gateway.check(&token), Err(Refusal::NoKeys), "not read yet");
    settle().await;
    assert_eq!(gateway.check(&token), Ok(()));
    let requests = servers.requests();
    let expected = [
        "issuer.test/.well-known/openid-configuration",
        "keys.test/jwks",
    ];
    assert_eq!(requests, expected);
    let status = gateway.status();
    assert_eq!((status.keys, status.error), (1, None));
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_issuer_refuses_no_valid_token() {
    let signer = Signer::new(Algorithm::ES256);
    let servers = Servers::of_keys(jwks(&[&signer]));
    let gateway = Gateway::start(&servers, None);
    settle().await;
    servers.set(Reply::Away);
    for minute in 0..=60 {
        let now = NOW + minute * 60;
        let token = signer.token(&claims_with(&json!({ "exp": now + 90, "iat": now })));
        assert_eq!(gateway.check_at(&token, now), Ok(()), "minute {minute}");
        sleep(Duration::from_mins(1)).await;
    }
    let status = gateway.status();
    assert!(status.keys_age_seconds.unwrap() >= 3_600.0, "{status:?}");
    assert!(status.error.is_some(), "{status:?}");
    let requests = servers.requests().len();
    assert!((300..400).contains(&requests), "every 10 s: {requests}");
}

#[tokio::test(start_paused = true)]
async fn a_removed_key_is_gone_after_a_refresh() {
    let first = Signer::with_id(Algorithm::ES256, "1");
    let second = Signer::with_id(Algorithm::ES256, "2");
    let servers = Servers::of_keys(jwks(&[&first]));
    let gateway = Gateway::start(&servers, Some("https://issuer.test/jwks"));
    settle().await;
    let token = first.token(&claims());
    assert_eq!(
        (gateway.check(&token), gateway.check(&token)),
        (Ok(()), Ok(()))
    );
    servers.set(Reply::Document(jwks(&[&second])));
    let started = clock::now();
    while gateway.check(&token).is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(clock::now() - started <= Duration::from_secs(301));
    assert_eq!(gateway.check(&token), Err(Refusal::UnknownKey));
    assert_eq!(gateway.check(&second.token(&claims())), Ok(()));
    servers.set(Reply::Document(json!({ "keys": [] })));
    sleep(Duration::from_mins(6)).await;
    assert_eq!(
        gateway.check(&second.token(&claims())),
        Err(Refusal::UnknownKey)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_read_in_the_background() {
    let first = Signer::with_id(Algorithm::ES256, "1");
    let second = Signer::with_id(Algorithm::ES256, "2");
    let servers = Servers::of_keys(jwks(&[&first]));
    let gateway = Gateway::start(&servers, Some("https://issuer.test/jwks"));
    sleep(MIN_REFRESH_INTERVAL).await;
    servers.set(Reply::Document(jwks(&[&first, &second])));
    let token = second.token(&claims());
    assert_eq!(gateway.check(&token), Err(Refusal::UnknownKey), "at once");
    settle().await;
    assert_eq!(gateway.check(&token), Ok(()));
    sleep(MIN_REFRESH_INTERVAL).await;
    let third = Signer::with_id(Algorithm::ES256, "2");
    servers.set(Reply::Document(jwks(&[&third])));
    let token = third.token(&claims());
    assert_eq!(
        gateway.check(&token),
        Err(Refusal::Signature),
        "the same id"
    );
    settle().await;
    assert_eq!(gateway.check(&token), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_cause_one_read_each_10_s() {
    let signer = Signer::new(Algorithm::ES256);
    let servers = Servers::of_keys(jwks(&[&signer]));
    let gateway = Gateway::start(&servers, Some("https://issuer.test/jwks"));
    let ask = || {
        for number in 0..1_000 {
            let header = json!({ "alg": "ES256", "kid": format!("unknown-{number}") });
            let token = signer.with_header(&header, &claims());
            assert_eq!(gateway.check(&token), Err(Refusal::UnknownKey));
        }
    };
    settle().await;
    ask();
    settle().await;
    assert_eq!(
        servers.requests().len(),
        1,
        "the first read was just before"
    );
    sleep(MIN_REFRESH_INTERVAL).await;
    // While the read takes long, more tokens arrive.
    servers.set(Reply::Silence);
    ask();
    settle().await;
    ask();
    settle().await;
    assert_eq!(servers.requests().len(), 2);
    assert_eq!(
        gateway.check(&signer.token(&claims())),
        Ok(()),
        "nobody waits"
    );
}

#[tokio::test(start_paused = true)]
async fn hostile_documents_give_no_keys() {
    let signer = Signer::new(Algorithm::ES256);
    let token = signer.token(&claims());
    let document = jwks(&[&signer]);
    let at_discovery = |name: &'static str, found: Value| {
        let document = document.clone();
        let servers = Servers::new(move |path| match path {
            "/jwks" => Reply::Document(document.clone()),
            _ => Reply::Document(found.clone()),
        });
        (name, servers)
    };
    let at_both = |name: &'static str, reply: Reply| (name, Servers::new(move |_| reply.clone()));
    let redirect = |to: &str| {
        Reply::Raw(format!(
            "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"
        ))
    };
    let json = document.to_string();
    for (name, servers) in [
        at_discovery(
            "other issuer",
            json!({ "issuer": "https://evil.test", "jwks_uri": "https://keys.test/jwks" }),
        ),
        at_discovery(
            "issuer with a slash",
            json!({ "issuer": format!("{ISSUER}/"), "jwks_uri": "https://keys.test/jwks" }),
        ),
        at_discovery("no issuer", json!({ "jwks_uri": "https://keys.test/jwks" })),
        at_discovery("no URL", json!({ "issuer": ISSUER })),
        at_discovery(
            "keys without TLS",
            json!({ "issuer": ISSUER, "jwks_uri": "http://keys.test/jwks" }),
        ),
        at_discovery(
            "keys of this machine",
            json!({ "issuer": ISSUER, "jwks_uri": "http://127.0.0.1/jwks" }),
        ),
        at_discovery(
            "keys in a file",
            json!({ "issuer": ISSUER, "jwks_uri": "file:///jwks" }),
        ),
        at_discovery(
            "keys with a password",
            json!({ "issuer": ISSUER, "jwks_uri": "https://a:b@keys.test/jwks" }),
        ),
        at_both(
            "redirect to metadata",
            redirect("http://169.254.169.254/jwks"),
        ),
        at_both(
            "redirect to another host",
            redirect("https://evil.test/jwks"),
        ),
        at_both("redirect to itself", redirect("/jwks")),
        at_both(
            "error with keys",
            Reply::Raw(whole(&json).replace("200 OK", "500 Error")),
        ),
        at_both(
            "not modified",
            Reply::Raw("HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()),
        ),
        at_both("page", Reply::Raw(whole("<html>"))),
        at_both("cut", Reply::Raw(whole(&json).replace(&json, &json[..50]))),
        at_both(
            "endless",
            Reply::Raw(format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(1 << 19))),
        ),
        at_both(
            "long",
            Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_owned()),
        ),
        at_both(
            "compressed",
            Reply::Raw(whole(&json).replace("content-l", "content-encoding: br\r\ncontent-l")),
        ),
        at_both("not HTTP", Reply::Raw("SSH-2.0\r\n\r\n".to_owned())),
        at_both("silence", Reply::Silence),
        at_both("away", Reply::Away),
    ] {
        let gateway = Gateway::start(&servers, None);
        sleep(MIN_REFRESH_INTERVAL + Duration::from_secs(5)).await;
        assert_eq!(gateway.check(&token), Err(Refusal::NoKeys), "{name}");
        assert!(gateway.status().error.is_some(), "{name}");
        let requests = servers.requests();
        let own = requests.iter().all(|url| url.starts_with("issuer.test"));
        assert!(own && !requests.is_empty(), "{name}: {requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_issuer_keeps_the_previous_keys() {
    let signer = Signer::new(Algorithm::ES256);
    let servers = Servers::of_keys(jwks(&[&signer]));
    let gateway = Gateway::start(&servers, None);
    settle().await;
    servers.set(Reply::Silence);
    sleep(Duration::from_mins(20)).await;
    assert_eq!(gateway.check(&signer.token(&claims())), Ok(()));
    let error = gateway.status().error.unwrap();
    assert!(error.contains("within 10s"), "{error}");
}

#[tokio::test]
async fn a_changed_file_replaces_the_keys() {
    let first = Signer::with_id(Algorithm::ES256, "1");
    let second = Signer::with_id(Algorithm::ES256, "2");
    let folder = TempFolder::new("jwt-watched");
    let write = |text: &str| folder.write("jwks.json", text);
    let file = write(&jwks(&[&first]).to_string());
    let gateway = Gateway::with(&Servers::of_keys(Value::Null), settings(&file));
    let [old, new] = [&first, &second].map(|signer| signer.token(&claims()));
    assert_eq!(gateway.check(&old), Ok(()), "read at the start");
    write(&jwks(&[&second]).to_string());
    while gateway.check(&new).is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.check(&old), Err(Refusal::UnknownKey));
    write("{");
    while gateway.status().error.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.check(&new), Ok(()), "the previous keys stay");
    assert_eq!(gateway.status().keys_age_seconds, None);
}

#[tokio::test]
async fn an_unusable_file_prevents_the_start() {
    let folder = TempFolder::new("jwt-unusable");
    for file in [
        folder.write("page", "<html>"),
        folder.path().to_owned(),
        "none".into(),
    ] {
        let config = JwtConfig {
            issuers: vec![settings(Path::new(&file))],
            ..JwtConfig::default()
        };
        let error = TokenVerifier::start(&config, context()).err().unwrap();
        assert!(
            error.to_string().starts_with("cannot use the keys"),
            "{error}"
        );
    }
}
