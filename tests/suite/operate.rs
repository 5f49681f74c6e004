//! The commands that operators use against a gateway (`tokenweir status`, `explain`, `drain`, `undrain`,
//! `reload`), run as programs.

use crate::support::process::{self, Ended, folder};
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, WORD, response, stream_of};
use crate::support::test_gateway::{
    Running, Setup, gateway_answering, gateway_answering_with, operator_token,
};
use serde_json::Value;
use tokenweir::admin::AdminAuthorizer;

async fn run(admin: &str, arguments: &[&str]) -> Ended {
    process::run(&[arguments, &["--admin", admin]].concat(), &[]).await
}

async fn gateway_with(guard: AdminAuthorizer) -> (ScriptedBackend, Running) {
    let setup = Setup {
        guard,
        ..Setup::default()
    };
    gateway_answering_with(setup, stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_and_undrain_change_the_exit_code() {
    let (fake, gateway) = gateway_with(AdminAuthorizer::default()).await;
    let (admin, backend) = (gateway.admin.to_string(), fake.addr.to_string());
    let (code, out, _) = run(&admin, &["status"]).await;
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("  ready") && out.contains("backends   1 ok"),
        "{out}"
    );
    for (verb, words) in [
        ("drain", "is drained: it gets no new requests"),
        ("drain", "was drained already"),
        ("undrain", "gets requests again"),
        ("undrain", "was not drained"),
        ("drain", "is drained"),
    ] {
        let (code, out, err) = run(&admin, &[verb, &backend]).await;
        assert_eq!(code, Some(0), "{verb}: {err}");
        assert!(
            out.contains(&backend) && out.contains(words),
            "{verb}: {out}"
        );
    }
    let (code, out, _) = run(&admin, &["status"]).await;
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains("  down: no backend is available") && out.contains("drained"),
        "{out}"
    );
    let (code, out, _) = run(&admin, &["status", "--json"]).await;
    let status: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &status["backends"][0]["drained"]),
        (Some(1), &true.into())
    );
    let (code, out, _) = run(&admin, &["undrain", &backend, "--json"]).await;
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &result["changed"]), (Some(0), &true.into()));
    let flags = [
        "drain",
        &backend,
        "--reason",
        "new kernel & more",
        "--for",
        "30m",
    ];
    assert_eq!(run(&admin, &flags).await.0, Some(0));
    let (_, out, _) = run(&admin, &["status", "--json"]).await;
    let drain = &serde_json::from_str::<Value>(&out).unwrap()["backends"][0]["drain"];
    assert_eq!(drain["reason"], "new kernel & more");
    assert!(
        (1_700.0..=1_800.0).contains(&drain["remaining_seconds"].as_f64().unwrap()),
        "{drain}"
    );
    let (code, _, err) = run(&admin, &["drain", "absent"]).await;
    assert_eq!(code, Some(1));
    assert!(err.contains("no backend has this name"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_shows_harm_to_clients() {
    let json = "content-type: application/json\r\nconnection: close\r\n";
    let page = "content-type: text/html\r\nconnection: close\r\n";
    for (backend, headers, expected, words) in [
        (
            "500 Internal Server Error",
            json,
            1,
            "  failing: 100 % of requests fail",
        ),
        (
            "400 Bad Request",
            json,
            0,
            "  degraded: 100 % of requests are answered with 4xx by a backend (most: 400)",
        ),
        (
            "404 Not Found",
            page,
            1,
            "  degraded: 100 % of requests are answered with 404 by a proxy in front of the engines",
        ),
    ] {
        let (_fake, gateway) = gateway_answering(response(backend, headers, "{}")).await;
        for _ in 0..5 {
            gateway
                .post("/v1/chat/completions", r#"{"model":"tiny","messages":[]}"#)
                .await;
            gateway.record().await;
        }
        let (code, out, _) = run(&gateway.admin.to_string(), &["status"]).await;
        assert!(out.contains(words), "{out}");
        assert_eq!(code, Some(expected), "{out}");
        assert!(gateway.admin("/readyz").await.contains("200 OK"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_prints_a_routing_decision() {
    let (fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    gateway
        .post(
            "/v1/chat/completions",
            r#"{"model":"tiny","stream":true,"messages":[]}"#,
        )
        .await;
    let record = gateway.record().await;
    let (admin, id) = (
        gateway.admin.to_string(),
        record.request_id.as_str().to_owned(),
    );
    let (code, out, err) = run(&admin, &["explain", &id]).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains(&id) && out.contains(&format!("> {}", fake.addr)),
        "{out}"
    );
    let (_, short, _) = run(&admin, &["explain", &id[..8]]).await;
    assert_eq!(short, out, "the first characters of an id find it");
    let (_, out, _) = run(&admin, &["explain", &id, "--json"]).await;
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["request_id"],
        id
    );
    let (code, _, err) = run(&admin, &["explain", "absent"]).await;
    assert_eq!(code, Some(1));
    assert!(err.contains("no decision is stored"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_listener_refuses_changes() {
    let guard = AdminAuthorizer {
        is_read_only: true,
        ..AdminAuthorizer::default()
    };
    let (fake, gateway) = gateway_with(guard).await;
    let (admin, backend) = (gateway.admin.to_string(), fake.addr.to_string());
    assert_eq!(run(&admin, &["status"]).await.0, Some(0));
    for arguments in [
        &["drain", &backend][..],
        &["undrain", &backend],
        &["reload"],
    ] {
        let (code, _, err) = run(&admin, arguments).await;
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(
            err.contains("set access.admin_token, or listen on 127.0.0.1"),
            "{err}"
        );
    }
    assert_eq!(
        run(&admin, &["status"]).await.0,
        Some(0),
        "the backend was not drained"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_name_the_remedy() {
    let (code, _, err) = run("127.0.0.1:9", &["status"]).await;
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("the gateway does not answer"), "{err}");
    let (code, ..) = run("127.0.0.1:9", &["drain", "a"]).await;
    assert_eq!(code, Some(1));
    let (fake, gateway) = gateway_with(operator_token()).await;
    let (admin, backend) = (gateway.admin.to_string(), fake.addr.to_string());
    let (_, _, err) = run(&admin, &["drain", &backend]).await;
    assert!(
        err.contains("TOKENWEIR_ADMIN_TOKEN") && err.contains("--token-file"),
        "{err}"
    );
    let file = folder("operate").join("token");
    std::fs::write(&file, "operator\n").unwrap();
    let file = file.display().to_string();
    for arguments in [&["drain", &backend][..], &["diagnose"]] {
        let (code, _, err) = run(&admin, &[arguments, &["--token-file", &file]].concat()).await;
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
    }
    let (code, _, err) = run(&admin, &["status", "--token-file", "/no/such/file"]).await;
    assert_eq!(code, Some(3), "{err}");
    let (code, _, err) = run(&gateway.addr.to_string(), &["status"]).await;
    assert_eq!(code, Some(3));
    assert!(err.contains("not the admin listener of a gateway"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_serves_runbooks_without_a_token() {
    for guard in [operator_token(), AdminAuthorizer::default()] {
        let (_fake, gateway) = gateway_with(guard).await;
        let page = gateway.admin("/runbooks").await;
        assert!(
            page.contains("200 OK") && page.contains("id=\"tokenweirdown\""),
            "{page}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_no_error() {
    let (_fake, gateway) = gateway_with(AdminAuthorizer::default()).await;
    let admin = gateway.admin.to_string();
    for arguments in [&["status", "--admin", &admin][..], &["keygen"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = process::program();
        let output = command
            .args(arguments)
            .env_clear()
            .stdout(writer)
            .output()
            .await
            .unwrap();
        let problem = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), problem.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_finds_a_line_of_the_access_log() {
    let log = folder("operate").join("access.log");
    let lines = [
        r#"{"request_id":"other-01","outcome":"ok","duration_ms":1.0}"#,
        r#"{"request_id":"wanted-1","outcome":"ok","slow_cause":"engine_queue","duration_ms":7000.0}"#,
        "a line of another program about wanted-1",
    ];
    std::fs::write(&log, lines.join("\n")).unwrap();
    let log = log.to_str().unwrap();
    let arguments = ["explain", "wanted-1", "--log", log];
    let (code, out, err) = process::run(&arguments, &[]).await;
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("ok in 7.00s") && out.contains("engine queue: the request waited"),
        "{out}"
    );
    let (code, _, err) = process::run(&["explain", "absent-01", "--log", log], &[]).await;
    assert!(
        code == Some(1) && err.contains("has no line of the request"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hash_of_a_user_needs_a_secret() {
    let file = folder("operate").join("identities.yaml");
    let arguments = ["user-hash", "alice@example.com", "--config"];
    let arguments = [&arguments[..], &[file.to_str().unwrap()]].concat();
    let secret = [("IDENTITIES_SECRET", "0123456789abcdef")];
    std::fs::write(
        &file,
        "identities: { secret: { env: IDENTITIES_SECRET } }\n",
    )
    .unwrap();
    let (code, out, err) = process::run(&arguments, &secret).await;
    assert_eq!((code, out.trim().len()), (Some(0), 32), "{err}");
    for (config, problem) in [
        ("{}\n", "identities.secret is not set"),
        (
            "identities: { mode: plain }\n",
            "identities.mode is not `hashed`",
        ),
    ] {
        std::fs::write(&file, config).unwrap();
        let (code, _, err) = process::run(&arguments, &secret).await;
        assert!(code == Some(1) && err.contains(problem), "{err}");
    }
}
