//! `tokenweir bench`, as a program: against simulated replicas, a gateway, and servers that are not
//! as they should be.

use crate::support::fake::{FINISH, Fake, ROLE, Seen, Step, WORD, json, stream_of};
use crate::support::fleet::Fleet;
use crate::support::gateway::Setup;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How late a busy machine makes the generator is not what is tested.
const PATIENT: &str = "--max-lag 1h";

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
    command.arg("bench").args(arguments.split(' ').filter(|it| !it.is_empty())).env_clear();
    command
}

async fn bench(arguments: &str) -> Output {
    let mut command = command(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The report of a run that is valid.
async fn report(arguments: &str) -> Value {
    let output = bench(&format!("{arguments} {PATIENT} --json")).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What is said of a run that cannot be.
async fn error(arguments: &str) -> String {
    let output = bench(arguments).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The report of a run that somebody ends.
async fn interrupted(child: Child) -> Value {
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}"))
}

fn answer() -> Vec<Step> {
    vec![Step::Send(stream_of(&[ROLE, WORD, WORD, FINISH, "[DONE]"]))]
}

#[tokio::test(flavor = "multi_thread")]
async fn client_and_gateway_count_the_same_requests_and_tokens() {
    let fleet = Fleet::start_with(2, Setup { injects_usage: true, ..Setup::default() }).await;
    let (gateway, admin) = (fleet.gateway.addr, fleet.gateway.admin);
    let page = file("page.html");
    let report = report(&format!(
        "http://{gateway} --admin http://{admin} --rate 200 --requests 30 --prompt-tokens 16-64 \
         --output-tokens 2-8 --html {}",
        page.display()
    ))
    .await;
    assert_eq!((&report["counts"]["served"], &report["ending"]), (&30.into(), &"complete".into()));
    assert_eq!(report["gateway"]["is_shared"], false, "{}", report["gateway"]);
    for row in report["gateway"]["rows"].as_array().unwrap() {
        let [client, gateway] = ["client", "gateway"].map(|who| row[who]["count"].as_u64());
        // What the client did not take in time is in no gap of the gateway's.
        let is_whole = row["quantity"] == "TTFT" || row["quantity"] == "E2E";
        assert!(if is_whole { gateway == client } else { gateway <= client }, "{row}");
        // A client starts its clock before the gateway and stops it after.
        let of = |who: &str| row[who]["mean"].as_f64().unwrap();
        assert!(row["quantity"] != "TTFT" || of("client") >= of("gateway"), "{row}");
    }
    let tokens = report["gateway"]["output_tokens"].as_array().unwrap();
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(tokens[0], report["counts"]["output_tokens"]);
    let intended = report["latencies"]["ttft"]["mean"].as_f64().unwrap();
    assert!(intended >= report["latencies"]["service_ttft"]["mean"].as_f64().unwrap());
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("NaN"));
    for fetched in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(fetched), "{fetched}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_that_the_gateway_serves_meanwhile_are_noticed() {
    let fleet = Fleet::start(1).await;
    let (gateway, admin) = (fleet.gateway.addr, fleet.gateway.admin);
    let endless = format!(
        "http://{gateway} --admin http://{admin} --rate 0.001 --requests 2 --output-tokens 2 \
         --warmup 0 --json {PATIENT}"
    );
    let child = command(&endless).stdout(Stdio::piped()).spawn().unwrap();
    fleet.gateway.record().await;
    report(&format!("http://{gateway} --requests 1 --rate 1 --output-tokens 2 --warmup 0")).await;
    let first = interrupted(child).await;
    assert_eq!(first["gateway"]["is_shared"], true, "{}", first["gateway"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_sends_what_is_due_although_nothing_is_answered() {
    let fake = Fake::start(|_| [vec![Step::Wait], answer()].into_iter().flatten().collect()).await;
    let arguments = format!("http://{} --api chat --rate 500 --requests 5 --warmup 0", fake.addr);
    let run = tokio::spawn(async move { report(&arguments).await });
    while fake.seen().len() < 5 {
        tokio::task::yield_now().await;
    }
    (0..5).for_each(|_| fake.go());
    let report = run.await.unwrap();
    assert_eq!((&report["counts"]["served"], &report["counts"]["waited"]), (&5.into(), &0.into()));
    assert_eq!(
        report["latencies"]["tbt"]["count"], 5,
        "two outputs have one gap, in one read or two"
    );
    assert_eq!(report["counts"]["uncounted"], 5, "nobody told how many tokens they were");
    let ids: Vec<bool> =
        fake.seen().iter().map(|seen| seen.head.contains("x-request-id: bench-")).collect();
    assert_eq!(ids, [true; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_has_as_many_requests_as_users_and_no_more() {
    let fake = Fake::start(|_| [vec![Step::Wait], answer()].into_iter().flatten().collect()).await;
    let arguments = format!("http://{} --api chat --users 2 --requests 6 --warmup 0", fake.addr);
    let run = tokio::spawn(async move { report(&arguments).await });
    for sent in 2..=6 {
        while fake.seen().len() < sent {
            tokio::task::yield_now().await;
        }
        assert_eq!(fake.seen().len(), sent);
        fake.go();
    }
    fake.go();
    assert_eq!(run.await.unwrap()["counts"]["served"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_place_results_are_not_valid() {
    let fleet = Fleet::start(1).await;
    let arguments = format!(
        "http://{} --rate 500 --requests 10 --output-tokens 20 --max-in-flight 1 {PATIENT}",
        fleet.gateway.addr
    );
    let output = bench(&arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("NOT VALID: ") && text.contains("raise --max-in-flight"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_sent_with_its_lengths_and_a_bad_line_is_named() {
    let fleet = Fleet::start(1).await;
    let line = r#"{"timestamp":0,"input_length":40,"output_length":3}"#;
    let trace = file("trace.jsonl");
    fs::write(&trace, format!("{line}\n{line}\n")).unwrap();
    let url = format!("http://{}", fleet.replica_addrs[0]);
    let report = report(&format!("{url} --trace {} --rate 100", trace.display())).await;
    let counts = &report["counts"];
    assert_eq!((&counts["input_tokens"], &counts["output_tokens"]), (&80.into(), &6.into()));
    let bad = file("bad.jsonl");
    fs::write(&bad, format!("{line}\n{{\"timestamp\":1}}\n")).unwrap();
    let said = error(&format!("{url} --trace {}", bad.display())).await;
    assert!(said.contains("line 2 of the trace is not a request: missing field"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_no_such_server_is_said_to_be() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let url = format!("http://{}", fake.addr);
    let said = error(&url).await;
    assert!(said.contains("no_stream; it answered without an event stream"), "{said}");
    fake.set_models(&["a", "b"]);
    let said = error(&url).await;
    assert!(said.contains("several models; give --model with one of a, b"), "{said}");
    let said = error(&format!("{url} --model c")).await;
    assert!(said.contains("does not serve c; it lists a, b"), "{said}");
    fake.set_models(&[]);
    let said = error(&url).await;
    assert!(said.contains("lists no model; give --model"), "{said}");
    fake.set_models_status("401 Unauthorized");
    let said = error(&url).await;
    assert!(said.contains("refuses the key, or wants one (401 Unauthorized)"), "{said}");
    fake.set_models_status("404 Not Found");
    let said = error(&url).await;
    assert!(said.contains("GET /v1/models with 404 Not Found: is it a gateway"), "{said}");
    let said = error("http://127.0.0.1:9").await;
    assert!(said.contains("http://127.0.0.1:9 cannot be reached: cannot connect"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_port_that_is_a_replica_is_said_to_be() {
    let fleet = Fleet::start(1).await;
    let (gateway, replica) = (fleet.gateway.addr, fleet.replica_addrs[0]);
    let said = error(&format!("http://{gateway} --admin http://{replica} --requests 1")).await;
    assert!(said.contains("/metrics is not a page of tokenweir"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_halfway_ends_the_run_with_what_there_was() {
    let served = AtomicUsize::new(0);
    let fake = Fake::start(move |_: &Seen| match served.fetch_add(1, Ordering::SeqCst) {
        0..10 => answer(),
        _ => vec![Step::Close],
    })
    .await;
    let arguments =
        format!("http://{} --api chat --users 1 --for 1h --warmup 0 {PATIENT}", fake.addr);
    let output = bench(&arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("GAVE UP after ") && text.contains("(50 connection_reset)"), "{text}");
    assert!(text.contains("served 10, failed 50"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_run_with_what_there_is() {
    let fleet = Fleet::start(1).await;
    let arguments = format!(
        "http://{} --rate 0.001 --requests 2 --output-tokens 2 --warmup 0 --json {PATIENT}",
        fleet.gateway.addr
    );
    let child = command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    fleet.gateway.record().await;
    assert_eq!(interrupted(child).await["ending"], "interrupted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_comes_from_a_file_or_a_variable_and_is_never_shown() {
    let fake = Fake::answering(json("401 Unauthorized", "{}")).await;
    let secret = file("key");
    fs::write(&secret, "sk-benched\n").unwrap();
    let url = format!("http://{} --model tiny", fake.addr);
    let from_file = command(&format!("{url} --api-key-file {}", secret.display()));
    let mut from_variable = command(&format!("{url} --api-key-env MY_KEY"));
    from_variable.env("MY_KEY", "sk-benched");
    for mut command in [from_file, from_variable] {
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(fake.take_seen().pop().unwrap().head.contains("Bearer sk-benched"));
        let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!shown.contains("sk-benched") && shown.contains("status_401"), "{shown}");
    }
    let said = error(&format!("{url} --api-key-env NONE")).await;
    assert!(said.contains("the environment variable NONE is not set"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_slower_than_a_saved_one_fails_and_an_equal_one_does_not() {
    let fleet = Fleet::start(1).await;
    let (before, after) = (file("before.json"), file("after.json"));
    let mut saved = report(&format!(
        "http://{} --rate 100 --requests 40 --prompt-tokens 16 --output-tokens 4 --save {}",
        fleet.gateway.addr,
        before.display()
    ))
    .await;
    let compare = format!("--compare {} {}", before.display(), before.display());
    let output = bench(&compare).await;
    assert!(output.status.success(), "{output:?}");
    for (file, ttft) in [(&before, 0.1), (&after, 0.3)] {
        for (number, sample) in
            saved["samples"]["requests"].as_array_mut().unwrap().iter_mut().enumerate()
        {
            sample["ttft"] = (ttft + number as f64 / 1e4).into();
        }
        fs::write(file, saved.to_string()).unwrap();
    }
    let line = format!("--compare {} {} --fail-over 50%", before.display(), after.display());
    let output = bench(&line).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("regressions: TTFT p50"), "{text}");
    fs::write(&after, "{}").unwrap();
    let said = error(&line).await;
    assert!(said.contains("is no report of this version of bench"), "{said}");
}

#[tokio::test]
async fn flags_that_contradict_each_other_are_refused() {
    for arguments in ["", "http://a:1 --users 3 --rate 2", "http://a:1 --scenario heavy"] {
        let output = bench(arguments).await;
        assert!(output.status.code().is_some_and(|code| code != 0 && code != 1), "{arguments}");
    }
}
