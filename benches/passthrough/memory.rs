//! The memory of a subject: after the start, per open stream, and after the end of the streams.

use super::clients;
use super::loads;
use super::subject::Subject;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Numbers of concurrent streams that are silent after their first chunk.
const OPEN: [usize; 2] = [1_000, 5_000];
/// Duration of the silence in microseconds.
const SILENT_US: usize = 600_000_000;
/// Maximum time for freeing the memory of the streams. If less than this share of it remains, it counts as
/// freed.
const FREE_TIMEOUT: Duration = Duration::from_secs(20);
const FREED_SHARE: f64 = 0.1;
/// Connections that send small requests between two measurements of memory, and for how long.
const LONG: (usize, Duration) = (16, Duration::from_secs(20));
const FIRST_MEASUREMENT: usize = 1_000_000;
const LAST_MEASUREMENT: usize = 10 * FIRST_MEASUREMENT;

/// Four figures: memory after the start in MiB, memory per stream with 1,000 and with 5,000 open streams in
/// KiB, and the share of the streams' memory in percent that is not freed after their end.
pub(crate) async fn turn(subject: &Subject) -> [f64; 4] {
    let fresh = subject.resident();
    loads::warm(subject).await;
    let before = subject.resident();
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut each = [0.0; 2];
    for (each, count) in each.iter_mut().zip(OPEN) {
        let request = clients::stream(2, 0, SILENT_US);
        while streams.len() < count {
            streams.push(clients::open(subject.address, &request).await);
        }
        *each = (subject.resident() - before) / count as f64;
    }
    let taken = subject.resident() - before;
    drop(streams);
    let deadline = clock::now() + FREE_TIMEOUT;
    let retained = loop {
        sleep(Duration::from_millis(200)).await;
        let retained = (subject.resident() - before) / taken;
        if retained < FREED_SHARE || clock::now() > deadline {
            break retained.max(0.0);
        }
    };
    [fresh / 1_024.0, each[0], each[1], retained * 100.0]
}

/// The memory of the subject after ten million small requests, divided by its memory after one million.
pub(crate) async fn long(subject: &Subject) -> f64 {
    let (mut count, mut after_many) = (0, None);
    while count < LAST_MEASUREMENT {
        count += loads::repeated(subject, LONG, 0).await.1;
        let resident = subject.resident();
        eprintln!("{count} requests: {:.1} MiB", resident / 1_024.0);
        if count >= FIRST_MEASUREMENT {
            after_many.get_or_insert(resident);
        }
    }
    subject.resident() / after_many.unwrap()
}
