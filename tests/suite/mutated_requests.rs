//! Random mutations of valid requests, on real sockets. For every mutation the gateway does not panic or
//! hang, the backend gets only well-formed requests, and no client gets the response of another.
//!
//! `MUTATIONS=100000 cargo test --release --test suite mutated_requests -- --nocapture` runs this many
//! mutations.

mod mutator;

use crate::smuggling::{echo_gateway, requests, victim};
use crate::support::scripted_backend::ScriptedBackend;
use crate::support::strict::{answers, check_forwarded_request};
use crate::support::test_gateway::Running;
use futures_util::{StreamExt, stream};
use mutator::Mutator;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const COUNT: usize = 2_000;
const CONCURRENT_CONNECTIONS: usize = 32;
/// After this number of mutated requests, another client sends a valid request.
const VALID_CLIENT_INTERVAL: usize = 20;
const SEED: u64 = 6;
/// If the client receives no byte of the response for this time, it closes its sending side.
const IDLE_TIMEOUT: Duration = Duration::from_millis(250);
/// After the client has closed its sending side, the gateway must close the connection within this time.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum growth of this process's memory in KiB after the first tenth of the requests. The process contains
/// the gateway, the backend and the clients.
const MAX_GROWTH_KIB: usize = 16 << 10;

#[tokio::test]
async fn no_mutation_mixes_responses() {
    let count = std::env::var("MUTATIONS").map_or(COUNT, |count| count.parse().unwrap());
    let (fake, gateway) = echo_gateway().await;
    let bases = requests::all()
        .into_iter()
        .filter(|case| case.verdict.requests() > 0);
    let mutator = Mutator::new(bases.map(|case| case.bytes).collect());
    let mut tally = Tally::default();
    let mut after_first = 0;
    for first in (0..count).step_by(count.div_ceil(10)) {
        let numbers = first..(first + count.div_ceil(10)).min(count);
        let tries = stream::iter(numbers).map(|number| attempt(&gateway, &mutator, number));
        let mut tries = tries.buffer_unordered(CONCURRENT_CONNECTIONS);
        while let Some(was_served) = tries.next().await {
            tally.served += usize::from(was_served);
        }
        drop(tries);
        tally.take(&gateway, &fake).await;
        if first == 0 {
            after_first = resident_kib();
        }
    }
    let growth = resident_kib().saturating_sub(after_first);
    println!("{count} requests, {tally:?}, {growth} KiB more after the first tenth");
    assert!(
        tally.refused > count / 20 && tally.reached > count / 20,
        "both happen: {tally:?}"
    );
    // The growth is checked only for more requests than by default, because then no other tests run in this
    // process.
    assert!(
        count <= COUNT || growth < MAX_GROWTH_KIB,
        "{growth} KiB more"
    );
    gateway
        .assert_value("tokenweir_requests_in_flight", 0.0)
        .await;
    assert!(gateway.pool.is_ready(), "no backend was marked down");
}

#[derive(Debug, Default)]
struct Tally {
    /// Number of valid requests that followed a mutated one on its connection and were served.
    served: usize,
    /// Number of requests that reached the backend, including valid ones.
    reached: usize,
    /// Number of requests that the gateway recorded as rejected.
    refused: usize,
}

impl Tally {
    async fn take(&mut self, gateway: &Running, fake: &ScriptedBackend) {
        for seen in fake.take_received() {
            assert_eq!(check_forwarded_request(&seen), Ok(()));
            self.reached += 1;
        }
        for record in gateway.take_records().await {
            assert_ne!(record.refusal, Some("internal"), "a panic");
            self.refused += usize::from(record.refusal.is_some());
        }
    }
}

/// Sends a mutated request and then a valid one on the same connection. Returns whether the valid one was
/// served.
async fn attempt(gateway: &Running, mutator: &Mutator, number: usize) -> bool {
    let mut random = fastrand::Rng::with_seed(SEED + number as u64);
    let bytes = mutator.mutate(&mut random);
    let (behind, expected) = victim(&format!("victim-{number}."));
    let answer = exchange_bytes(gateway, &[&bytes[..], behind.as_bytes()].concat()).await;
    let text = String::from_utf8_lossy(&answer);
    let own = format!("victim-{number}.");
    let name = |rest: &str| {
        let digits = rest
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.');
        format!("victim-{}", &rest[..digits.count()])
    };
    // The gateway may read the first bytes of the valid request as the end of the mutated body. The response then
    // contains only a prefix of the name, which is not the name of another request.
    let is_own = text
        .split("victim-")
        .skip(1)
        .all(|rest| own.starts_with(&name(rest)));
    assert!(
        is_own,
        "number {number} got the response of another request: {text}"
    );
    if number.is_multiple_of(VALID_CLIENT_INTERVAL) {
        let (request, expected) = victim(&format!("honest-{number}"));
        let answer = tokio::time::timeout(CLOSE_TIMEOUT, gateway.raw(request))
            .await
            .unwrap();
        assert_eq!(
            answers(&answer),
            Ok(vec![expected]),
            "a valid client at {number}"
        );
    }
    text.ends_with(&expected.body)
}

/// Writes bytes on a new connection. Reads until the gateway closes the connection, and closes the sending
/// side when no byte comes. Returns the bytes of the gateway.
async fn exchange_bytes(gateway: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
    // Writing may fail: the gateway may reject the request early and reset the connection.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    loop {
        match tokio::time::timeout(IDLE_TIMEOUT, stream.read_buf(&mut answer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return answer,
            Err(_) => break,
        }
    }
    // The gateway may have closed the connection in the meantime.
    let _ = stream.shutdown().await;
    let reading = tokio::time::timeout(CLOSE_TIMEOUT, stream.read_to_end(&mut answer));
    let is_closed = reading.await.is_ok();
    assert!(
        is_closed,
        "a connection hangs after {:?}",
        String::from_utf8_lossy(bytes)
    );
    answer
}

/// Returns the resident memory of this process in KiB.
pub(crate) fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
