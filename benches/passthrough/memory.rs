//! The memory of one subject: fresh, for each stream that is open, and when they have ended.

use super::clients;
use super::loads;
use super::subject::Subject;
use std::time::Duration;
use tokenweir_core::clock;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Streams that are open at once, and silent after their first chunk.
const OPEN: [usize; 2] = [1_000, 5_000];
/// For how long they would be silent.
const SILENT_US: usize = 600_000_000;
/// How long memory may take to be handed back, and the share of it from which that is done.
const PATIENCE: Duration = Duration::from_secs(20);
const NEARLY_ALL: f64 = 0.1;
/// Small requests on so many connections, for so long between two looks.
const LONG: (usize, Duration) = (16, Duration::from_secs(20));
const MANY: usize = 1_000_000;
const MOST: usize = 10 * MANY;

/// Fresh in MiB; a stream of 1,000 and of 5,000 in KiB; what is kept of that when they have ended, in
/// percent.
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
    let deadline = clock::now() + PATIENCE;
    let kept = loop {
        sleep(Duration::from_millis(200)).await;
        let kept = (subject.resident() - before) / taken;
        if kept < NEARLY_ALL || clock::now() > deadline {
            break kept.max(0.0);
        }
    };
    [fresh / 1_024.0, each[0], each[1], kept * 100.0]
}

/// Memory after ten million small requests, of that after one million.
pub(crate) async fn long(subject: &Subject) -> f64 {
    let (mut count, mut after_many) = (0, None);
    while count < MOST {
        count += loads::repeated(subject, LONG, 0).await.1;
        let resident = subject.resident();
        eprintln!("{count} requests: {:.1} MiB", resident / 1_024.0);
        if count >= MANY {
            after_many.get_or_insert(resident);
        }
    }
    subject.resident() / after_many.unwrap()
}
