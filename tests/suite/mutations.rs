//! Valid requests, changed at random, on real sockets. Whatever they have become: the gateway does
//! not panic or hang, a replica gets only sound requests, and nobody gets another one's answer.
//!
//! `MUTATIONS=100000 cargo test --release --test suite mutations -- --nocapture` for more of them.

mod mutator;

use crate::smuggling::{echo, requests, victim};
use crate::support::fake::Fake;
use crate::support::gateway::{Running, start};
use crate::support::strict::{answers, unsound};
use futures_util::{StreamExt, stream};
use mutator::Mutator;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const COUNT: usize = 2_000;
/// Connections at once.
const AT_ONCE: usize = 32;
/// After so many there is an honest client.
const HONEST_EVERY: usize = 20;
const SEED: u64 = 6;
/// A request that waits for more is not sent more after this time.
const QUIET: Duration = Duration::from_millis(250);
/// Then its connection closes within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// What this process, with the gateway, its replica and its clients, may grow by after the first
/// tenth.
const MOST_GROWTH_KIB: usize = 16 << 10;

#[tokio::test]
async fn changed_requests_do_no_harm() {
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
        let mut tries = tries.buffer_unordered(AT_ONCE);
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
    // Beside other tests it is not this one's memory.
    assert!(count <= COUNT || growth < MOST_GROWTH_KIB, "{growth} KiB more");
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("\ntokenweir_requests_in_flight 0\n"), "nothing is left open");
    assert!(gateway.pool.is_ready(), "and no replica was blamed");
}

/// What became of them.
#[derive(Debug, Default)]
struct Tally {
    /// Victims behind a changed request that were served.
    served: usize,
    /// Requests that reached the replica, victims too.
    reached: usize,
    /// Requests on record that were refused.
    refused: usize,
}

impl Tally {
    async fn take(&mut self, gateway: &Running, fake: &Fake) {
        for seen in fake.take_seen() {
            assert_eq!(unsound(&seen), Ok(()));
            self.reached += 1;
        }
        for record in gateway.take_records().await {
            assert_ne!(record.refusal, Some("internal"), "a panic");
            self.refused += usize::from(record.refusal.is_some());
        }
    }
}

/// A changed request with a victim behind it. Whether the victim was served.
async fn attempt(gateway: &Running, mutator: &Mutator, number: usize) -> bool {
    let mut random = fastrand::Rng::with_seed(SEED + number as u64);
    let bytes = mutator.mutate(&mut random);
    let (behind, expected) = victim(&format!("victim-{number}."));
    let answer = converse(gateway, &[&bytes[..], behind.as_bytes()].concat()).await;
    let text = String::from_utf8_lossy(&answer);
    let own = format!("victim-{number}.");
    let name = |rest: &str| {
        let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.');
        format!("victim-{}", &rest[..digits.count()])
    };
    // A changed request may have a part of it as its body.
    let is_own = text.split("victim-").skip(1).all(|rest| own.starts_with(&name(rest)));
    assert!(is_own, "number {number} got another one's answer: {text}");
    if number.is_multiple_of(HONEST_EVERY) {
        let (request, expected) = victim(&format!("honest-{number}"));
        let answer = tokio::time::timeout(PATIENCE, gateway.raw(request)).await.unwrap();
        assert_eq!(answers(&answer), Ok(vec![expected]), "an honest client at {number}");
    }
    text.ends_with(&expected.body)
}

/// Writes, and reads until the connection closes. One that goes quiet is told that nothing more comes.
async fn converse(gateway: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
    // It may be refused before all of it is written, and end in a reset.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    loop {
        match tokio::time::timeout(QUIET, stream.read_buf(&mut answer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return answer,
            Err(_) => break,
        }
    }
    // It may have closed just now.
    let _ = stream.shutdown().await;
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
    let is_closed = reading.await.is_ok();
    assert!(is_closed, "a connection hangs after {:?}", String::from_utf8_lossy(bytes));
    answer
}

/// The memory of this process.
pub(crate) fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
