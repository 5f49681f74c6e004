//! Subjects that are larger: more replicas, more cores.

use super::loads;
use super::subject::{Kind, Subject};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::sleep;

/// How long a gateway with nothing to do settles, and is looked at.
const SETTLING: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(15);
/// Connections and time of small requests.
const SMALL: (usize, Duration) = (16, Duration::from_secs(2));

/// CPU in percent of a core while nothing happens.
pub(crate) async fn idle(subject: &Subject) -> f64 {
    sleep(SETTLING).await;
    let before = subject.cpu();
    sleep(IDLE).await;
    let spent = subject.cpu().checked_sub(before).unwrap();
    spent.as_secs_f64() / IDLE.as_secs_f64() * 100.0
}

/// CPU of a small request in µs, in front of one replica and of all these, and the second of the
/// first.
pub(crate) async fn larger(kind: Kind, replicas: &[SocketAddr]) -> [f64; 3] {
    let mut costs = [0.0; 2];
    for (cost, replicas) in costs.iter_mut().zip([&replicas[..1], replicas]) {
        let subject = Subject::start(kind, replicas);
        // Connections to all of them are opened first, and all have been looked at.
        loads::repeated(&subject, SMALL, 0).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    [costs[0], costs[1], costs[1] / costs[0]]
}

/// Small requests that two cores would serve if nobody else used them, times what one serves: by
/// the CPU time of each, because clients and replicas need cores, too.
pub(crate) async fn cores(kind: Kind, replicas: &[SocketAddr]) -> f64 {
    let mut costs = [0.0; 2];
    for (cost, cores) in costs.iter_mut().zip([1, 2]) {
        let subject = Subject::on_cores(cores, kind, replicas);
        loads::warm(&subject).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    2.0 * costs[0] / costs[1]
}
