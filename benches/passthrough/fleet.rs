//! Measurements of the gateway with more backends and with more cores.

use super::loads;
use super::subject::{Kind, Subject};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::sleep;

/// Time until an idle gateway has settled, and duration of the measurement.
const SETTLING: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(15);
/// Number of connections and duration of small requests.
const SMALL: (usize, Duration) = (16, Duration::from_secs(2));

/// CPU usage of an idle gateway in percent of a core.
pub(crate) async fn idle(kind: Kind, backends: &[SocketAddr]) -> f64 {
    let subject = Subject::start(kind, backends).await;
    sleep(SETTLING).await;
    let before = subject.cpu();
    sleep(IDLE).await;
    let spent = subject.cpu().checked_sub(before).unwrap();
    spent.as_secs_f64() / IDLE.as_secs_f64() * 100.0
}

/// CPU time of a small request in µs with one backend and with all backends, and the ratio of both.
pub(crate) async fn larger(kind: Kind, backends: &[SocketAddr]) -> [f64; 3] {
    let mut costs = [0.0; 2];
    for (cost, backends) in costs.iter_mut().zip([&backends[..1], backends]) {
        let subject = Subject::start(kind, backends).await;
        // Warm-up: opens connections to all backends. All have been scraped then.
        loads::repeated(&subject, SMALL, 0).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    [costs[0], costs[1], costs[1] / costs[0]]
}

/// Ratio of the small requests that two cores would serve to those of one core, computed from the
/// CPU time of each, because clients and backends need cores, too.
pub(crate) async fn cores(kind: Kind, backends: &[SocketAddr]) -> f64 {
    let mut costs = [0.0; 2];
    for (cost, cores) in costs.iter_mut().zip([1, 2]) {
        let subject = Subject::on_cores(cores, kind, backends).await;
        loads::warm(&subject).await;
        *cost = loads::repeated(&subject, SMALL, 0).await.0;
    }
    2.0 * costs[0] / costs[1]
}
