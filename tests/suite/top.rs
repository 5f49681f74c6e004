//! `tokenweir top` without a terminal: one frame as text, or a clear error.

use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, WORD, stream_of};
use crate::support::test_gateway::{Setup, gateway_answering, start_with};
use std::process::{Output, Stdio};
use tokenweir::admin::AdminAuthorizer;
use tokenweir_request::access::KeyDigest;
use tokio::process::Command;

async fn top(admin: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
    command.args(["top", "--admin", admin]).args(arguments);
    command.env_remove("TOKENWEIR_ADMIN_TOKEN").envs(variables.iter().copied());
    command.stdin(Stdio::null()).output().await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_one_frame_of_text_without_colours() {
    let (fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    let body = r#"{"model":"tiny","stream":true,"messages":[]}"#;
    gateway.post("/v1/chat/completions", body).await;
    gateway.record().await;
    let shown = top(&gateway.admin.to_string(), &[], &[]).await;
    let lines = text(&shown.stdout);
    assert!(shown.status.success() && shown.stderr.is_empty());
    for words in ["ready", "TTFT", &fake.addr.to_string(), "no stream is open", "tiny", "ok"] {
        assert!(lines.contains(words), "{words}: {lines}");
    }
    assert!(!lines.contains('\u{1b}') && !lines.contains("q quit"), "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gateway_or_its_token_the_error_names_the_remedy() {
    let nobody = top("127.0.0.1:9", &[], &["--once"]).await;
    let message = text(&nobody.stderr);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(message.contains("the gateway does not answer"), "{message}");
    let fake = ScriptedBackend::answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    let guard = AdminAuthorizer {
        token_digest: Some(KeyDigest::from_key(b"operator")),
        ..AdminAuthorizer::default()
    };
    let gateway = start_with(&[fake.addr], Setup { guard, ..Setup::default() }).await;
    let admin = gateway.admin.to_string();
    let refused = top(&admin, &[], &["--once"]).await;
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        message.contains("TOKENWEIR_ADMIN_TOKEN") && message.contains("--token-file"),
        "{message}"
    );
    let known = top(&admin, &[("TOKENWEIR_ADMIN_TOKEN", "operator")], &["--once"]).await;
    assert!(known.status.success(), "{}", text(&known.stderr));
    let clients = top(&gateway.addr.to_string(), &[], &["--once"]).await;
    assert_eq!(clients.status.code(), Some(1));
    assert!(text(&clients.stderr).contains("admin listener"), "{}", text(&clients.stderr));
    assert_eq!(top("http://a/v1", &[], &[]).await.status.code(), Some(2));
    assert_eq!(top(&admin, &[], &["--interval", "1ms"]).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_lines_of_the_width_in_columns() {
    let (_fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    let admin = gateway.admin.to_string();
    for (columns, most) in [("40", 40), ("9", 30), ("many", 120)] {
        let shown = top(&admin, &[("COLUMNS", columns)], &[]).await;
        let lines = text(&shown.stdout);
        let longest = lines.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= most && lines.contains("ready"), "{columns}: {lines}");
    }
}
