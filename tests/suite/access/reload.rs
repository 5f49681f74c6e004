//! Tests the real program with a keys file that changes while the program serves.

use super::{ASK, CHAT, head};
use crate::support::process::{self, GatewayProcess, folder};
use crate::support::scripted_backend::{ROLE, ScriptedBackend, Step, WORD, json, paused};
use crate::support::test_gateway::{
    body, get, post, read_rest, read_until, send_to, status, with_lines,
};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokenweir_request::access::KeyDigest;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A running gateway with a keys file.
struct Program {
    process: GatewayProcess,
    folder: PathBuf,
}

/// Builds the text of a keys file with one tenant and the hash of this API key.
fn file(tenant: &str, key: &str) -> String {
    let hash = KeyDigest::from_key(key.as_bytes());
    format!("tenants:\n- name: {tenant}\n  keys:\n  - {{ name: k, hash: '{hash}' }}\n")
}

impl Program {
    async fn start(backend: SocketAddr, keys: &str) -> Self {
        let folder = folder(&format!("keys-{}", backend.port()));
        fs::write(folder.join("keys.yaml"), keys).unwrap();
        let config = format!(
            "listen: 127.0.0.1:0\nlog: {{ level: debug }}\n\
             backends: [{{ url: 'http://{backend}', api_key: {{ env: BACKEND_KEY }} }}]\n\
             access: {{ keys_file: '{}' }}\n",
            folder.join("keys.yaml").display()
        );
        let file = folder.join("gateway.yaml");
        fs::write(&file, config).unwrap();
        let variables = [("BACKEND_KEY", "the-backends-own")];
        Self {
            process: GatewayProcess::start_with(&file, &variables).await,
            folder,
        }
    }

    /// Replaces the keys file atomically, by renaming a new file with this text.
    fn replace(&self, keys: &str) {
        let (new, place) = (self.folder.join("new"), self.folder.join("keys.yaml"));
        fs::write(&new, keys).unwrap();
        fs::rename(new, place).unwrap();
    }

    async fn ask(&self, key: &str, request: &str) -> Vec<u8> {
        read_rest(self.send(key, request).await).await
    }

    async fn send(&self, key: &str, request: &str) -> TcpStream {
        let request = with_lines(request, &format!("authorization: Bearer {key}"));
        send_to(self.process.clients(), request).await
    }

    /// Waits until a request with this key is served.
    async fn until_served(&self, key: &str) {
        wait_until!(status(&self.ask(key, &get("/v1/models")).await) == 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_keys_file_applies_during_streams() {
    let fake = ScriptedBackend::start(|seen| {
        if !seen.head.starts_with("POST") || !String::from_utf8_lossy(&seen.body).contains("stream")
        {
            return vec![Step::Send(json("200 OK", r#"{"a":1}"#))];
        }
        paused(&[ROLE, WORD], &[WORD, "[DONE]"])
    })
    .await;
    let program = Program::start(fake.addr, &file("a", "sk-old")).await;
    program.until_served("sk-old").await;
    assert_eq!(
        status(&program.ask("sk-new", &get("/v1/models")).await),
        401
    );
    let stream = post(CHAT, r#"{"model":"tiny","stream":true,"messages":[]}"#);
    let mut client = program.send("sk-old", &stream).await;
    let mut answer = read_until(&mut client, "\"Hi\"").await;
    program.replace(&file("b", "sk-new"));
    program.until_served("sk-new").await;
    assert_eq!(status(&program.ask("sk-old", &post(CHAT, ASK)).await), 401);
    fake.go();
    client.read_to_end(&mut answer).await.unwrap();
    let (bytes, is_whole) = body(&answer);
    assert!(
        is_whole && String::from_utf8_lossy(&bytes).contains("[DONE]"),
        "{}",
        head(&answer)
    );
    let seen = &fake.seen()[0].head.to_ascii_lowercase();
    assert!(
        seen.contains("authorization: bearer the-backends-own\r\n"),
        "{seen}"
    );
    assert!(!seen.contains("sk-old"), "{seen}");
    let shown = async |text: &str| program.process.get("/status").await.contains(text);
    // This keys file has the API key itself instead of its hash.
    program.replace("tenants:\n- name: c\n  keys:\n  - { name: k, hash: sk-secret }\n");
    wait_until!(shown("this is not the hash of a key").await);
    assert!(shown("keys.yaml:4:22: ").await);
    wait_until!(shown("\"reload_failed\"").await);
    assert_eq!(status(&program.ask("sk-new", &post(CHAT, ASK)).await), 200);
    fs::remove_file(program.folder.join("keys.yaml")).unwrap();
    wait_until!(shown("no such file").await);
    assert_eq!(status(&program.ask("sk-new", &post(CHAT, ASK)).await), 200);
    program.replace(&file("b", "sk-old"));
    program.until_served("sk-old").await;
    assert!(shown("\"problem\":null").await);
    let log = program.process.log();
    assert!(
        log.contains("keys reloaded") && log.contains("is not the hash of a key"),
        "{log}"
    );
    for key in ["sk-old", "sk-new", "sk-secret", "the-backends-own"] {
        assert!(!log.contains(key), "{key} in {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reloaded_tier_is_one_of_tenants() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    let program = Program::start(fake.addr, &file("a", "sk-old")).await;
    let with_tier = |keys: &str| keys.replace("  keys:", "  tier: gold\n  keys:");
    program.replace(&with_tier(&file("a", "sk-new")));
    wait_until!(
        program
            .process
            .get("/status")
            .await
            .contains("unknown tier")
    );
    let config = program.folder.join("gateway.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}tiers: {{ names: [gold] }}\n")).unwrap();
    let answer = program.process.reload().await;
    assert!(answer.contains("changed: tiers.names"), "{answer}");
    // The file has not changed since.
    program.until_served("sk-new").await;
    // A tier that a tenant has is gone: the keys stay.
    fs::write(&config, text).unwrap();
    program.process.reload().await;
    wait_until!(
        program
            .process
            .get("/status")
            .await
            .contains("unknown tier")
    );
    program.until_served("sk-new").await;
}

#[tokio::test]
async fn without_a_valid_keys_file_nothing_starts() {
    let folder = folder("keys-bad");
    let (config, invalid) = (folder.join("gateway.yaml"), folder.join("keys.yaml"));
    let keys = "tenants: [{ name: a, keys: [{ name: k, hash: sk-123 }] }]";
    fs::write(&invalid, keys).unwrap();
    for (file, problem) in [
        (folder.join("absent.yaml"), "no such file"),
        (invalid, "not the hash of a key"),
    ] {
        let text = format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{{ url: 'http://127.0.0.1:9' }}]\n\
             access: {{ keys_file: '{}' }}\n",
            file.display()
        );
        fs::write(&config, text).unwrap();
        for command in ["serve --config", "check"] {
            let line = format!("{command} {}", config.display());
            let (code, out, err) = process::run_line(&line, &[]).await;
            let output = out + &err;
            assert!(
                code != Some(0) && output.contains(problem),
                "{command}: {output}"
            );
            assert!(!output.contains("sk-123"), "{command}: {output}");
        }
    }
}

#[tokio::test]
async fn keygen_prints_a_unique_key_and_hash() {
    let mint = async || {
        let (_, text, _) = process::run(&["keygen"], &[]).await;
        let line = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let (key, hash) = (line("key "), line("hash "));
        assert_eq!(KeyDigest::from_key(key.as_bytes()).to_string(), hash);
        key
    };
    assert_ne!(mint().await, mint().await);
}
