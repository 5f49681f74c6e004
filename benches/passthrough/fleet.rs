//! Measurements of the gateway with more backends and with more cores.

use super::loads::{self, SMALL};
use super::subject::{Kind, Subject};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::sleep;

/// The time until an idle gateway uses constant CPU time, and the duration of the measurement after it.
const SETTLING: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(15);

/// CPU usage of an idle gateway in percent of a core.
pub(crate) async fn idle(kind: Kind, backends: &[SocketAddr]) -> f64 {
    let subject = Subject::start(kind, backends).await;
    sleep(SETTLING).await;
    let before = subject.cpu();
    sleep(IDLE).await;
    let spent = subject.cpu().checked_sub(before).unwrap();
    spent.as_secs_f64() / IDLE.as_secs_f64() * 100.0
}

/// CPU time of a small request in µs with one backend and with all backends, and the ratio of the second to
/// the first.
pub(crate) async fn larger(kind: Kind, backends: &[SocketAddr]) -> [f64; 3] {
    let mut costs = [0.0; 2];
    for (cost, backends) in costs.iter_mut().zip([&backends[..1], backends]) {
        let subject = Subject::start(kind, backends).await;
        // Warm-up: opens connections to all backends. After it, each backend has been scraped.
        loads::repeated(&subject, SMALL, 0).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    [costs[0], costs[1], costs[1] / costs[0]]
}

/// How many times the small requests of one core two cores would serve. The ratio is computed from the CPU
/// time of a request, because clients and backends of this bench also need cores.
pub(crate) async fn cores(kind: Kind, backends: &[SocketAddr]) -> f64 {
    let mut costs = [0.0; 2];
    for (cost, cores) in costs.iter_mut().zip([1, 2]) {
        let subject = Subject::on_cores(cores, kind, backends).await;
        loads::warm(&subject).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    2.0 * costs[0] / costs[1]
}
