//! Limits of tenants that several gateways share, across restarts of the gateways and of a real Redis server.
//! Without `redis-server`, the tests with gateways are skipped with a note.

use crate::peer_exchange::{Bus, KEY, PASSWORD};
use crate::restart::{Port, listed, model, start_backends};
use crate::support::process::{GatewayProcess, folder};
use crate::support::test_gateway::{CHAT, post, read_rest, send_to, status, with_lines};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokenweir_peer_exchange::messages::ExchangeKey;
use tokenweir_request::access::KeyDigest;

/// Writes a configuration and a keys file with one tenant, whose limits these are.
fn configure(folder: &Path, number: usize, port: &Port, settings: &str, limits: &str) -> PathBuf {
    let hash = KeyDigest::from_key(b"key");
    let keys = format!(
        "tenants:\n- name: a\n  limits: {limits}\n  keys:\n  - {{ name: k, hash: '{hash}' }}\n"
    );
    let keys_file = folder.join("keys.yaml");
    fs::write(&keys_file, keys).unwrap();
    let file = folder.join(format!("gateway-{number}.yaml"));
    let access = format!("access: {{ keys_file: '{}' }}\n", keys_file.display());
    port.configure(&file, &(settings.to_owned() + &access));
    file
}

/// Sends a request of the tenant. Returns its status and the response.
async fn ask(addr: SocketAddr) -> (u16, String) {
    let body = format!(
        r#"{{"model":"{}","max_tokens":1,"messages":[{{"role":"user","content":"hi"}}]}}"#,
        model()
    );
    let request = with_lines(&post(CHAT, &body), "authorization: Bearer key");
    let response = read_rest(send_to(addr, request).await).await;
    let text = String::from_utf8_lossy(&response).to_lowercase();
    (status(&response), text)
}

fn header(response: &str, name: &str) -> u64 {
    let value = response.split(&format!("{name}: ")).nth(1);
    let line = value.and_then(|rest| rest.lines().next());
    line.unwrap_or_default().parse().unwrap()
}

async fn until_store_is(gateway: &GatewayProcess, state: &str) {
    // The page has no state before the gateway first reaches the server.
    let line = format!("tokenweir_limit_store_state{{state=\"{state}\"}} 1\n");
    wait_until!(gateway.get("/metrics").await.contains(&line));
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_a_limit_that_no_restart_renews() {
    let Some(mut bus) = Bus::start().await else {
        return;
    };
    let key = ExchangeKey::new(KEY.as_bytes()).unwrap();
    // This makes the server appear to have had its data for a long time.
    bus.command(&["SET", &key.store_key(&["has data since"]), "1"])
        .await;
    let settings = listed(&start_backends(1).await)
        + &format!(
            "peer_exchange:\n  url: redis://127.0.0.1:{}\n  password: {{ env: BUS_PASSWORD }}\n  \
             key: {{ env: BUS_KEY }}\n",
            bus.port()
        );
    let folder = folder("shared-limits");
    let variables = [("BUS_PASSWORD", PASSWORD), ("BUS_KEY", KEY)];
    let start = async |number: usize| {
        let port = Port::reserve();
        let limits = "{ requests_per_month: 60 }";
        let file = configure(&folder, number, &port, &settings, limits);
        let gateway = GatewayProcess::start_with(&file, &variables).await;
        until_store_is(&gateway, "connected").await;
        (port, gateway)
    };
    let mut gateways = [start(0).await, start(1).await];
    let mut served = 0;
    let mut last = String::new();
    let mut is_refused = false;
    wait_until!({
        for (port, _) in &gateways {
            let (status, response) = ask(port.addr).await;
            served += u32::from(status == 200);
            last = response;
            is_refused = status == 429;
        }
        is_refused && header(&last, "retry-after") > 1
    });
    assert!((60..=62).contains(&served), "{served}");
    assert!(last.contains("the limit of 60 requests per month is reached"));
    assert_eq!(header(&last, "x-ratelimit-remaining-requests"), 0);
    gateways[0] = start(0).await;
    assert_eq!(ask(gateways[0].0.addr).await.0, 429, "after a restart");
    bus.restart().await;
    for (port, gateway) in &gateways {
        until_store_is(gateway, "settling").await;
        assert_eq!(ask(port.addr).await.0, 429, "the server lost its data");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn used_limits_of_one_gateway_outlast_kills() {
    let folder = folder("kept-limits");
    let port = Port::reserve();
    let state = folder.join("limits.json");
    let settings = listed(&start_backends(1).await)
        + &format!("shared_limits: {{ file: '{}' }}\n", state.display());
    let config = configure(&folder, 0, &port, &settings, "{ requests_per_month: 3 }");
    let mut gateway = GatewayProcess::start(&config).await;
    for _ in 0..2 {
        assert_eq!(ask(port.addr).await.0, 200);
    }
    wait_until!(fs::read_to_string(&state).is_ok_and(|text| text.contains("\"used\":2")));
    gateway.signal("KILL").await;
    gateway.ended().await;
    let mut gateway = GatewayProcess::start(&config).await;
    assert_eq!(ask(port.addr).await.0, 200);
    let (status, response) = ask(port.addr).await;
    assert_eq!(status, 429, "{response}");
    assert!(header(&response, "retry-after") > 1, "{response}");
    gateway.signal("TERM").await;
    gateway.ended().await;
    assert!(fs::read_to_string(&state).unwrap().contains("\"used\":3"));
    fs::write(&state, "{ damaged").unwrap();
    let gateway = GatewayProcess::start(&config).await;
    assert_eq!(ask(port.addr).await.0, 200, "a damaged file");
    let errors = gateway.value("tokenweir_limit_file_errors_total").await;
    assert!((errors - 1.0).abs() < 0.1, "{errors}");
}
