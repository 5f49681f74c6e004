//! Reloads and restarts of a gateway under load. The configuration changes and processes replace each other,
//! and clients must notice nothing.

use crate::support::crashable_backend::bind_shared;
use crate::support::process::{self, GatewayProcess, Load, folder};
use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{CHAT, post, read_rest, send_to};
use serde_json::Value;
use socket2::Socket;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use tokenweir_sim::{Simulator, SimulatorSettings};
use tokio::net::UnixDatagram;
use tokio::process::Command;

/// A port that several gateway processes can share. While this value exists, no other program can get the
/// port.
pub(crate) struct Port {
    pub(crate) addr: SocketAddr,
    _reserved: Socket,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let socket = bind_shared(SocketAddr::from(([127, 0, 0, 1], 0)));
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        Self {
            addr,
            _reserved: socket,
        }
    }

    /// Writes the configuration file of a gateway that listens at this port and has these settings.
    pub(crate) fn configure(&self, file: &Path, settings: &str) {
        let text = format!("listen: {}\nlisten_reuse_port: true\n{settings}", self.addr);
        fs::write(file, text).unwrap();
    }
}

/// Starts `count` simulated backends. They serve until the test ends.
pub(crate) async fn start_backends(count: u16) -> Vec<SocketAddr> {
    start_simulator(SimulatorSettings {
        backends: count,
        ..SimulatorSettings::default()
    })
    .await
}

/// Starts simulated backends with these settings at free ports. They serve until the test ends.
pub(crate) async fn start_simulator(settings: SimulatorSettings) -> Vec<SocketAddr> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = SimulatorSettings { listen, ..settings };
    let sim = Simulator::bind(&settings).await.unwrap();
    let addrs = sim.addrs().to_vec();
    tokio::spawn(sim.run(std::future::pending()));
    addrs
}

pub(crate) fn model() -> String {
    SimulatorSettings::default().models[0].clone()
}

/// Builds the list of these backends for a configuration file.
pub(crate) fn listed(backends: &[SocketAddr]) -> String {
    let mut list = String::from("backends:\n");
    for addr in backends {
        writeln!(list, "  - url: http://{addr}").unwrap();
    }
    list
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_replace_each_other_without_losses() {
    let (port, backends) = (Port::reserve(), start_backends(2).await);
    let file = folder("rolling").join("gateway.yaml");
    port.configure(
        &file,
        &format!("drain: {{ delay: 500ms }}\n{}", listed(&backends)),
    );
    let mut running = GatewayProcess::start(&file).await;
    let mut load = Load::start(port.addr, &model(), 8);
    for _ in 0..5 {
        load.goes_on(50).await;
        let next = GatewayProcess::start(&file).await;
        let mut before = std::mem::replace(&mut running, next);
        before.signal("TERM").await;
        wait_until!(!before.get("/readyz").await.starts_with("HTTP/1.1 200"));
        assert_eq!(before.ended().await.code(), Some(0));
    }
    load.goes_on(50).await;
    load.end().await;
}

/// Returns the settings that the gateway reads in the reload with the number `step`.
fn changes(backends: &[SocketAddr], step: usize) -> String {
    let (first, policy) = (
        step % 2,
        ["kv_aware", "least_requests", "round_robin"][step % 3],
    );
    let mut text = format!("routing: {{ policy: {policy} }}\n");
    writeln!(text, "timeouts: {{ response_headers: {}s }}", 60 + step % 4).unwrap();
    writeln!(
        text,
        "admission: {{ queue_capacity: {}, classes: [default] }}",
        1_000 + step
    )
    .unwrap();
    writeln!(text, "scrape: {{ max_interval: {}ms }}", 1_000 + step % 5).unwrap();
    text.push_str(&listed(&backends[first..first + 2]));
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_without_a_file_is_refused() {
    let backend = format!("http://{}", start_backends(1).await[0]);
    let variables = [
        ("TOKENWEIR_BACKEND", backend.as_str()),
        ("TOKENWEIR_LISTEN", "127.0.0.1:0"),
    ];
    let gateway = GatewayProcess::start_without_file(&variables).await;
    let answer = gateway.reload().await;
    assert!(
        answer.starts_with("HTTP/1.1 500") && answer.contains("--config"),
        "{answer}"
    );
    assert!(
        gateway
            .value("tokenweir_config_last_reload_successful")
            .await
            > 0.5
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reloads_lose_no_request() {
    let (port, backends) = (Port::reserve(), start_backends(3).await);
    let file = folder("reloads").join("gateway.yaml");
    port.configure(&file, &changes(&backends, 0));
    let gateway = GatewayProcess::start(&file).await;
    let mut load = Load::start(port.addr, &model(), 8);
    let mut valid = 0;
    let count = |result: &str| format!("tokenweir_config_reloads_total{{result=\"{result}\"}}");
    for step in 1..=100 {
        if step % 10 == 0 {
            fs::write(&file, "listen: 127.0.0.1:0\nrouting: { polcy: p2c }\n").unwrap();
            let answer = gateway.reload().await;
            assert!(
                answer.starts_with("HTTP/1.1 500") && answer.contains("`polcy`"),
                "{answer}"
            );
            assert!(
                gateway
                    .value("tokenweir_config_last_reload_successful")
                    .await
                    < 0.5
            );
            continue;
        }
        valid += 1;
        port.configure(&file, &changes(&backends, valid));
        if step % 3 == 0 {
            let before = gateway.value(&count("ok")).await;
            gateway.signal("HUP").await;
            wait_until!(gateway.value(&count("ok")).await > before);
        } else {
            let answer = gateway.reload().await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(
                answer.contains("routing.policy") && answer.contains("added"),
                "{answer}"
            );
        }
    }
    load.goes_on(50).await;
    let page = gateway.get("/metrics").await;
    load.end().await;
    assert!((gateway.value(&count("ok")).await - 90.0).abs() < 0.5);
    assert!((gateway.value(&count("failed")).await - 10.0).abs() < 0.5);
    let up = page
        .lines()
        .filter(|line| line.starts_with("tokenweir_backend_up{"))
        .count();
    assert_eq!(
        up, 2,
        "only the backends of the last configuration remain:\n{page}"
    );
}

/// Returns the names of the backends on the gateway's metrics page.
pub(crate) async fn fleet(gateway: &GatewayProcess) -> BTreeSet<String> {
    let page = gateway.get("/metrics").await;
    let names = page
        .lines()
        .filter_map(|line| line.strip_prefix("tokenweir_backend_up{backend=\""));
    names
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_backends_file_lose_no_request() {
    let (port, backends, folder) = (Port::reserve(), start_backends(3).await, folder("found"));
    let (file, list) = (folder.join("gateway.yaml"), folder.join("backends.yaml"));
    let write = |backends: &[SocketAddr]| {
        let text = listed(backends);
        fs::write(&list, text.strip_prefix("backends:\n").unwrap()).unwrap();
    };
    write(&backends[..2]);
    let token = folder.join("token");
    fs::write(&token, "of-a-webhook").unwrap();
    let source = format!(
        "discovery: [{{ file: {} }}]\n\
         webhooks: [{{ url: 'http://127.0.0.1:9/', token: {{ file: '{}' }} }}]\n",
        list.display(),
        token.display()
    );
    port.configure(&file, &source);
    let gateway = GatewayProcess::start(&file).await;
    let mut load = Load::start(port.addr, &model(), 4);
    // Discovery must work even if the token of a webhook is missing.
    fs::remove_file(&token).unwrap();
    for wanted in [1..3, 0..1, 0..3] {
        let wanted = &backends[wanted];
        write(wanted);
        let names: BTreeSet<String> = wanted.iter().map(ToString::to_string).collect();
        wait_until!(fleet(&gateway).await == names);
        load.goes_on(20).await;
    }
    load.end().await;
}

/// The domain name in the new configuration is reserved and never resolves (RFC 6761, section 6.4), so its
/// source never answers.
#[cfg(feature = "dns")]
#[tokio::test(flavor = "multi_thread")]
async fn discovered_backends_stay_until_new_answers() {
    let (port, backends, folder) = (Port::reserve(), start_backends(2).await, folder("kept"));
    let (file, list) = (folder.join("gateway.yaml"), folder.join("backends.yaml"));
    let text = listed(&backends);
    fs::write(&list, text.strip_prefix("backends:\n").unwrap()).unwrap();
    let configure = |source: &str| port.configure(&file, &format!("discovery: [{{ {source} }}]\n"));
    let of_file = format!("file: {}", list.display());
    configure(&of_file);
    let gateway = GatewayProcess::start(&file).await;
    let both = fleet(&gateway).await;
    assert_eq!(both.len(), 2);
    let mut load = Load::start(port.addr, &model(), 4);
    fs::write(&list, "a mistake").unwrap();
    for source in [
        format!("{of_file}, usage: passive"),
        "dns: 'vllm.invalid:8000'".into(),
    ] {
        configure(&source);
        let answer = gateway.reload().await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(fleet(&gateway).await, both, "{source}");
        load.goes_on(20).await;
    }
    configure(&format!("dns: '127.0.0.1:{}'", backends[0].port()));
    let answer = gateway.reload().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    wait_until!(fleet(&gateway).await == BTreeSet::from([backends[0].to_string()]));
    load.goes_on(20).await;
    load.end().await;
}

/// After the first signal, the gateway waits for open requests and logs the signal. After the second one, it
/// ends without waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once() {
    let (port, backends) = (Port::reserve(), start_backends(1).await);
    let file = folder("twice").join("gateway.yaml");
    port.configure(
        &file,
        &format!("drain: {{ delay: 1m }}\n{}", listed(&backends)),
    );
    for (signal, code) in [("TERM", 143), ("INT", 130), ("QUIT", 131)] {
        let mut gateway = GatewayProcess::start(&file).await;
        gateway.signal("TERM").await;
        wait_until!(gateway.get("/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(gateway.value("tokenweir_draining").await > 0.5);
        gateway.signal(signal).await;
        assert_eq!(gateway.ended().await.code(), Some(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigusr1_rotates_files_and_sigquit_ends_processes() {
    let (port, backends) = (Port::reserve(), start_backends(1).await);
    let folder = folder("signals");
    let log = folder.join("payloads.jsonl");
    let settings = format!(
        "log: {{ payloads: {{ file: {}, sample: 1.0 }} }}\n",
        log.display()
    );
    let file = folder.join("gateway.yaml");
    port.configure(&file, &(settings + &listed(&backends)));
    let mut gateway = GatewayProcess::start(&file).await;
    let message = r#"{"role":"user","content":"hi"}"#;
    let body = format!(
        r#"{{"model":"{}","max_tokens":1,"messages":[{message}]}}"#,
        model()
    );
    let ask = async || read_rest(send_to(port.addr, post(CHAT, &body)).await).await;
    ask().await;
    wait_until!(fs::metadata(&log).is_ok_and(|log| log.len() > 0));
    fs::rename(&log, folder.join("payloads.jsonl.1")).unwrap();
    for signal in ["USR2", "PIPE", "USR1"] {
        gateway.signal(signal).await;
    }
    // The process handles the signal some time after its arrival.
    wait_until!({
        ask().await;
        log.exists()
    });
    gateway.signal("QUIT").await;
    assert!(gateway.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_file_is_reloaded() {
    let (port, backends) = (Port::reserve(), start_backends(2).await);
    let file = folder("watched").join("gateway.yaml");
    let write = |count: usize| {
        let list = listed(&backends[..count]);
        port.configure(&file, &format!("reload: {{ watch: true }}\n{list}"));
    };
    write(1);
    let gateway = GatewayProcess::start(&file).await;
    write(2);
    wait_until!(fleet(&gateway).await.len() >= 2);
    // The reload is counted after the new backends are in use.
    let reloads = async || {
        gateway
            .value("tokenweir_config_reloads_total{result=\"ok\"}")
            .await
    };
    wait_until!(reloads().await > 0.5);
    assert!(reloads().await < 1.5);
}

/// Sends a request. Returns the API key with which the backend received it.
async fn key_of_a_request(gateway: SocketAddr, backend: &ScriptedBackend) -> String {
    let request = post(CHAT, r#"{"model":"tiny","messages":[]}"#);
    read_rest(send_to(gateway, request).await).await;
    let seen = backend.take_received().pop().expect("a request");
    let line = seen
        .head
        .lines()
        .find(|line| line.starts_with("authorization: "));
    line.unwrap_or_default()
        .replace("authorization: Bearer ", "")
}

/// The test changes only the file with the key, not the configuration file.
#[tokio::test(flavor = "multi_thread")]
async fn a_backends_key_is_read_again() {
    let backend = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    let port = Port::reserve();
    let folder = folder("backend-key");
    let (file, key) = (folder.join("gateway.yaml"), folder.join("key"));
    fs::write(&key, "first\n").unwrap();
    let source = format!("api_key: {{ file: '{}' }}", key.display());
    port.configure(
        &file,
        &format!("backends: [{{ url: '{}', {source} }}]\n", backend.addr),
    );
    let gateway = GatewayProcess::start(&file).await;
    assert_eq!(key_of_a_request(port.addr, &backend).await, "first");
    fs::write(&key, "second\n").unwrap();
    wait_until!(key_of_a_request(port.addr, &backend).await == "second");
    // A key file that the gateway cannot use changes nothing, and a metric shows the failure to operators.
    fs::write(&key, "").unwrap();
    wait_until!(
        gateway
            .value("tokenweir_config_last_reload_successful")
            .await
            < 0.5
    );
    assert_eq!(key_of_a_request(port.addr, &backend).await, "second");
    fs::write(&key, "third\n").unwrap();
    wait_until!(key_of_a_request(port.addr, &backend).await == "third");
    wait_until!(
        gateway
            .value("tokenweir_config_last_reload_successful")
            .await
            > 0.5
    );
    // The response to a reload by an operator names the files that the gateway has read.
    fs::write(&key, "fourth\n").unwrap();
    let answer = gateway.reload().await;
    let is_known = key_of_a_request(port.addr, &backend).await == "fourth";
    assert!(
        is_known && (answer.contains("backend-key/key") || answer.contains("nothing")),
        "{answer}"
    );
    // The key file becomes a FIFO without a writer. The gateway must not try to read it, because that would
    // never end.
    fs::remove_file(&key).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&key)
            .status()
            .await
            .unwrap()
            .success()
    );
    let answer = gateway.reload().await;
    assert!(answer.contains("no regular file"), "{answer}");
    fs::remove_file(&key).unwrap();
    fs::write(&key, "fifth\n").unwrap();
    wait_until!(key_of_a_request(port.addr, &backend).await == "fifth");
}

/// The test takes the place of systemd: its socket records the notifications of the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_notified_of_each_state() {
    let (port, backends, folder) = (Port::reserve(), start_backends(1).await, folder("manager"));
    let (file, socket) = (folder.join("gateway.yaml"), folder.join("notify"));
    port.configure(&file, &listed(&backends));
    let _ = fs::remove_file(&socket);
    let manager = UnixDatagram::bind(&socket).unwrap();
    let variables = [
        ("NOTIFY_SOCKET", socket.to_str().unwrap()),
        ("WATCHDOG_USEC", "200000"),
    ];
    let mut gateway = GatewayProcess::start_with(&file, &variables).await;
    let mut message = [0; 256];
    let mut notifications = Vec::new();
    let (mut beats, mut signals) = (0, ["TERM", "HUP"].to_vec());
    while !notifications.iter().any(|line| line == "STOPPING=1") {
        let length = manager.recv(&mut message).await.unwrap();
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        for line in text
            .lines()
            .map(|line| line.split("_USEC=").next().unwrap().to_owned())
        {
            match line.as_str() {
                "WATCHDOG=1" => beats += 1,
                _ => notifications.push(line),
            }
        }
        // Sends the next signal when the gateway has reported ready since the last signal, and has also sent
        // watchdog notifications.
        let ready = notifications
            .iter()
            .filter(|line| *line == "READY=1")
            .count();
        if beats > 1 && ready + signals.len() == 3 {
            beats = 0;
            gateway.signal(signals.pop().unwrap()).await;
        }
    }
    assert_eq!(
        notifications,
        [
            "READY=1",
            "RELOADING=1",
            "MONOTONIC",
            "READY=1",
            "STOPPING=1"
        ]
    );
    assert_eq!(gateway.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_log_has_start_fields() {
    let file = folder("fields").join("gateway.yaml");
    let text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
                access: { admin_token: { env: OPERATOR } }\n\
                backends: [{ name: gpu-0, url: \"http://127.0.0.1:9\" }]\n";
    fs::write(&file, text).unwrap();
    let mut command = process::program();
    command
        .args(["serve", "--log-format", "json", "--config"])
        .arg(&file)
        .env("OPERATOR", "token");
    let process = GatewayProcess::spawn(command).await;
    // The lines are searched, because other tasks log at the same time, for example a verdict about the
    // backend.
    let line = async |message: &str| {
        wait_for!({
            let log = process.log();
            let mut lines = log
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.find(|line| line["message"] == message)
        })
    };
    let (gateway, backend) = (
        line("gateway started").await,
        line("backend at start").await,
    );
    assert!(
        gateway["clients"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:"),
        "{gateway}"
    );
    assert_eq!(
        (&gateway["admin_token"], &gateway["policy"]),
        (&true.into(), &"kv_aware".into())
    );
    assert_eq!(
        (&backend["backend"], &backend["health"]),
        (&"gpu-0".into(), &"down".into())
    );
    assert_eq!(backend["url"], "http://127.0.0.1:9");
    assert_eq!(backend["metrics"], Value::Null, "no page was read");
}
