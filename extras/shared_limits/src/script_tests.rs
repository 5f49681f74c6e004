//! Tests that the script at a real Redis server answers like the store of the simulation. Without
//! `redis-server`, the tests are skipped with a note.

use crate::claims::{SCRIPT, StoreAnswer, SubjectClaim};
use crate::simulation_tests::{Store, keys};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir_peer_exchange::messages::ExchangeKey;
use tokenweir_peer_exchange::messages::bus::{BusSettings, ScriptCall, ScriptRunner};
use tokenweir_protocol::clock;
use tokenweir_request::access::{QuotaClaim, QuotaPeriod, QuotaUnit, UsageLimits};

const LIMIT: u64 = 1_000;

async fn connect(port: u16, channel: String) -> ScriptRunner {
    let bus = BusSettings {
        url: format!("redis://127.0.0.1:{port}"),
        username: None,
        password: None,
        channel,
        timeout: Duration::from_secs(5),
    };
    loop {
        match bus.connect().await {
            Ok((publisher, _)) => return publisher.scripts(),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn seconds() -> u64 {
    let since = clock::wall_time().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// A claim of a gateway with random used, held and wanted amounts.
fn random_claim(random: &mut fastrand::Rng) -> SubjectClaim {
    let limits = UsageLimits {
        requests_per_day: Some(LIMIT),
        ..UsageLimits::default()
    };
    let keys = keys(limits, &Arc::default());
    let units = [QuotaUnit::Requests, QuotaUnit::OpenRequests];
    let used = random.u64(0..400);
    SubjectClaim {
        subject: keys.quota_subjects().next().unwrap().clone(),
        unit: units[random.usize(0..2)],
        period: QuotaPeriod::Day,
        claim: QuotaClaim {
            number: random.u64(0..2),
            used,
            held: random.u64(0..500),
            wanted: used + random.u64(0..300),
            limit: LIMIT,
            ends_at: seconds() + 1_000,
        },
    }
}

#[tokio::test]
async fn the_script_answers_as_the_simulated_store() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut command = Command::new("redis-server");
    command.args([
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--port",
        &port.to_string(),
    ]);
    let Ok(mut server) = command.stdout(Stdio::null()).spawn() else {
        eprintln!("redis-server is not installed: the script is NOT tested");
        return;
    };
    let key = ExchangeKey::new(&[7; 32]).unwrap();
    let mut scripts = connect(port, key.channel()).await;
    let old = ScriptCall {
        keys: vec![key.store_key(&["has data since"])],
        arguments: Vec::new(),
    };
    let set = "redis.call('SET', KEYS[1], 1) return { 1 }";
    scripts.run(set, slice::from_ref(&old)).await.unwrap();
    let mut store = Store::with_data_since(1);
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..40 {
        let claims: Vec<SubjectClaim> = (0..10).map(|_| random_claim(&mut random)).collect();
        let gateway = format!("g{}", random.u8(0..4));
        let calls: Vec<ScriptCall> = claims
            .iter()
            .map(|claim| claim.call(&key, &gateway))
            .collect();
        let results = scripts.run(SCRIPT, &calls).await.unwrap();
        for (claim, result) in claims.iter().zip(&results) {
            let expected = store.call(&gateway, claim, seconds() * 1_000);
            assert_eq!(
                StoreAnswer::from_result(result),
                Some(expected),
                "{round}: {claim:?}"
            );
        }
    }
    // After a failover, the clock of the new server is slow. The clock of one gateway is slow too.
    let set = "redis.call('SET', KEYS[1], redis.call('TIME')[1] + 1000) return { 1 }";
    scripts.run(set, &[old]).await.unwrap();
    let mut slow = random_claim(&mut random);
    slow.claim.number = 2;
    slow.claim.ends_at = 1;
    for gateway in ["g0", "g1"] {
        let call = slow.call(&key, gateway);
        let result = scripts.run(SCRIPT, &[call]).await.unwrap();
        let answer = StoreAnswer::from_result(&result[0]).unwrap();
        assert!(!answer.is_settling);
        let used = if gateway == "g0" { 1 } else { 2 } * slow.claim.used;
        assert_eq!(answer.quota.used_by_all, used, "nothing is removed");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
