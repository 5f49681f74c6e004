//! The command `tokenweir top` without a terminal: it prints one frame as text, or a clear error.

use crate::support::process::{Ended, run};
use crate::support::scripted_backend::{FINISH, ROLE, WORD, stream_of};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Setup, gateway_answering, gateway_answering_with, operator_token,
};

async fn top(admin: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
    run(&[&["top", "--admin", admin], arguments].concat(), variables).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_one_colourless_frame() {
    let (fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    gateway.post(CHAT, ASK_STREAM).await;
    gateway.record().await;
    let (code, lines, errors) = top(&gateway.admin.to_string(), &[], &[]).await;
    assert_eq!((code, &*errors), (Some(0), ""));
    for words in [
        "ready",
        "TTFT",
        &fake.addr.to_string(),
        "no stream is open",
        "tiny",
        "ok",
    ] {
        assert!(lines.contains(words), "{words}: {lines}");
    }
    assert!(
        !lines.contains('\u{1b}') && !lines.contains("q quit"),
        "{lines}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_shows_why_nothing_is_printed() {
    let setup = Setup {
        guard: operator_token(),
        ..Setup::default()
    };
    let response = stream_of(&[ROLE, WORD, FINISH, "[DONE]"]);
    let (_fake, gateway) = gateway_answering_with(setup, response).await;
    let (admin, clients) = (gateway.admin.to_string(), gateway.addr.to_string());
    let token = [("TOKENWEIR_ADMIN_TOKEN", "operator")];
    // Each error must name its remedy, as those of `tokenweir status` do.
    for (target, variables, flags, code) in [
        ("127.0.0.1:9", &[][..], &["--once"][..], 1),
        (&clients, &[], &["--once"], 1),
        (&admin, &[], &["--once"], 1),
        (&admin, &token, &["--once"], 0),
        ("http://a/v1", &[], &[], 2),
        (&admin, &[], &["--interval", "1ms"], 2),
    ] {
        let (ended, _, message) = top(target, variables, flags).await;
        assert_eq!(ended, Some(code), "{target} {flags:?}: {message}");
        assert_eq!(
            message.is_empty(),
            code == 0,
            "{target} {flags:?}: {message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_have_the_width_of_columns() {
    let (_fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    let admin = gateway.admin.to_string();
    for (columns, most) in [("40", 40), ("9", 30), ("many", 120)] {
        let (_, lines, _) = top(&admin, &[("COLUMNS", columns)], &[]).await;
        let longest = lines
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap();
        assert!(
            longest <= most && lines.contains("ready"),
            "{columns}: {lines}"
        );
    }
}
