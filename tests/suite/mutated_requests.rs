//! Valid requests with random mutations on real sockets. For every mutation, the gateway does not
//! panic or hang, a backend gets only well-formed requests, and no client gets the response of
//! another.
//!
//! `MUTATIONS=100000 cargo test --release --test suite mutated_requests -- --nocapture` runs more
//! of them.

mod mutator;

use crate::smuggling::{echo, requests, victim};
use crate::support::scripted_backend::ScriptedBackend;
use crate::support::strict::{answers, check_forwarded_request};
use crate::support::test_gateway::{Running, start};
use futures_util::{StreamExt, stream};
use mutator::Mutator;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const COUNT: usize = 2_000;
/// Concurrent connections.
const CONCURRENT_CONNECTIONS: usize = 32;
/// Number of mutated requests after which a client with a valid request follows.
const VALID_CLIENT_INTERVAL: usize = 20;
const SEED: u64 = 6;
/// Time without a byte of the response after which the client closes its sending side.
const IDLE_TIMEOUT: Duration = Duration::from_millis(250);
/// Time within which the gateway must then close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum growth of the memory of this process in KiB after the first tenth of the requests. The process
/// contains gateway, backend and clients.
const MAX_GROWTH_KIB: usize = 16 << 10;

#[tokio::test]
async fn mutated_requests_do_no_harm() {
    let count = std::env::var("MUTATIONS").map_or(COUNT, |count| count.parse().unwrap());
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    let bases = requests::all().into_iter().filter(|case| case.verdict.requests() > 0);
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
    assert!(tally.refused > count / 20 && tally.reached > count / 20, "both happen: {tally:?}");
    // With the default number of requests, other tests run in this process and use memory, too.
    assert!(count <= COUNT || growth < MAX_GROWTH_KIB, "{growth} KiB more");
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("\ntokenweir_requests_in_flight 0\n"), "no request is left open");
    assert!(gateway.pool.is_ready(), "no backend was marked down");
}

/// The results of all mutated requests.
#[derive(Debug, Default)]
struct Tally {
    /// Number of valid requests that followed a mutated one on its connection and were served.
    served: usize,
    /// Number of requests that reached the backend, with the valid ones.
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

/// Sends a mutated request followed by a valid one. Returns whether the valid one was served.
async fn attempt(gateway: &Running, mutator: &Mutator, number: usize) -> bool {
    let mut random = fastrand::Rng::with_seed(SEED + number as u64);
    let bytes = mutator.mutate(&mut random);
    let (behind, expected) = victim(&format!("victim-{number}."));
    let answer = exchange_bytes(gateway, &[&bytes[..], behind.as_bytes()].concat()).await;
    let text = String::from_utf8_lossy(&answer);
    let own = format!("victim-{number}.");
    let name = |rest: &str| {
        let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.');
        format!("victim-{}", &rest[..digits.count()])
    };
    // The mutated request can take a part of the valid one as its body.
    let is_own = text.split("victim-").skip(1).all(|rest| own.starts_with(&name(rest)));
    assert!(is_own, "number {number} got the response of another request: {text}");
    if number.is_multiple_of(VALID_CLIENT_INTERVAL) {
        let (request, expected) = victim(&format!("honest-{number}"));
        let answer = tokio::time::timeout(CLOSE_TIMEOUT, gateway.raw(request)).await.unwrap();
        assert_eq!(answers(&answer), Ok(vec![expected]), "a valid client at {number}");
    }
    text.ends_with(&expected.body)
}

/// Writes the bytes on a new connection and reads until the gateway closes it. Closes the sending side when
/// no byte comes.
async fn exchange_bytes(gateway: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
    // The gateway can reject the request before the whole request is written, and reset the connection.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    loop {
        match tokio::time::timeout(IDLE_TIMEOUT, stream.read_buf(&mut answer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return answer,
            Err(_) => break,
        }
    }
    // The gateway can have closed the connection just now.
    let _ = stream.shutdown().await;
    let reading = tokio::time::timeout(CLOSE_TIMEOUT, stream.read_to_end(&mut answer));
    let is_closed = reading.await.is_ok();
    assert!(is_closed, "a connection hangs after {:?}", String::from_utf8_lossy(bytes));
    answer
}

/// The resident memory of this process in KiB.
pub(crate) fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
