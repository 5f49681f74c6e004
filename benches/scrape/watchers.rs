//! The child: the scrape tasks of the gateway with its metrics, and their CPU time.

use super::{COUNT, MAX_CPU_PERCENT, backends};
use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir::backend::Backend;
use tokenweir::backend::health_checker::{self, ScrapeObserver, ScrapeSettings};
use tokenweir::backend::pool::BackendPool;
use tokenweir::telemetry::Telemetry;
use tokenweir::telemetry::metric::KnownLabelValues;
use tokenweir::telemetry::metrics_registry::BucketOverrides;
use tokenweir::telemetry::metrics_registry::Prometheus;
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_protocol::clock;
use tokenweir_routing::Policy;
use tokio::runtime;
use tokio::task::JoinSet;

/// Duration of the warm-up and of the measurement.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASUREMENT: Duration = Duration::from_secs(20);

/// The gateway's metrics, and a counter of scrapes.
struct Count {
    telemetry: Telemetry,
    scrapes: AtomicU64,
    errors: AtomicU64,
}

impl ScrapeObserver for Count {
    fn on_scrape(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        self.scrapes.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(u64::from(error.is_some()), Ordering::Relaxed);
        self.telemetry.on_scrape(backend, took, error);
    }
}

/// Scrapes the backends once per second and at the default intervals, and prints the cost.
pub(crate) fn run(addresses: &str) -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let second = Duration::from_secs(1);
    let once_a_second =
        ScrapeSettings { min_interval: second, max_interval: second, ..ScrapeSettings::default() };
    let parsing = parsing();
    println!("{COUNT} backends        scrapes/s   % of a core   µs/scrape   µs of parsing");
    let print_cost = |name: &str, settings: ScrapeSettings| {
        let (scrapes, cpu) = runtime.block_on(measure(addresses, settings));
        let per_second = scrapes as f64 / MEASUREMENT.as_secs_f64();
        let percent = 100.0 * cpu.as_secs_f64() / MEASUREMENT.as_secs_f64();
        let each = cpu.as_secs_f64() * 1e6 / scrapes as f64;
        println!("{name:<22} {per_second:>7.1} {percent:>13.2} {each:>11.1} {parsing:>15.1}");
        (per_second, percent)
    };
    let (scrapes, percent) = print_cost("once a second", once_a_second);
    print_cost("by default", ScrapeSettings::default());
    // Jitter changes the number of scrapes slightly.
    let at_1_hz = percent * COUNT as f64 / scrapes;
    println!("at 1 Hz: {at_1_hz:.2} % of one core; the limit is {MAX_CPU_PERCENT} %");
    if at_1_hz <= MAX_CPU_PERCENT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Number of scrapes and CPU time of this process while only the scrape tasks run.
async fn measure(addresses: &str, settings: ScrapeSettings) -> (u64, Duration) {
    let backend = |address: &str| {
        let address = BackendAddress::parse(address).unwrap();
        Backend::new(address.default_id(), address, None)
    };
    let backends = addresses.split(',').map(backend).collect();
    let pool = Arc::new(BackendPool::new(backends, &[], Policy::default()));
    let telemetry = Telemetry::new(
        Prometheus::new(KnownLabelValues::default(), &BucketOverrides::default(), Vec::new()),
        Vec::new(),
    );
    let count =
        Arc::new(Count { telemetry, scrapes: AtomicU64::new(0), errors: AtomicU64::new(0) });
    let client = HttpClient::new(HttpClientTimeouts::default());
    let (mut watchers, origin) = (JoinSet::new(), clock::now());
    for backend in pool.backends().iter() {
        watchers.spawn(health_checker::run(
            pool.clone(),
            backend.clone(),
            client.clone(),
            settings,
            count.clone(),
            origin,
        ));
    }
    tokio::time::sleep(WARM_UP).await;
    let (scrapes, cpu) = (count.scrapes.load(Ordering::Relaxed), cpu_time());
    tokio::time::sleep(MEASUREMENT).await;
    let scrapes = count.scrapes.load(Ordering::Relaxed) - scrapes;
    let cpu = cpu_time().checked_sub(cpu).unwrap();
    assert_eq!(count.errors.load(Ordering::Relaxed), 0, "every page has known metrics");
    assert!(pool.is_ready());
    (scrapes, cpu)
}

/// CPU time of all threads of this process. No thread ends during the measurement.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of_task = |task: std::path::PathBuf| -> u64 {
        let times = fs::read_to_string(task.join("schedstat")).unwrap();
        times.split(' ').next().unwrap().parse().unwrap()
    };
    Duration::from_nanos(tasks.map(of_task).sum())
}

/// Mean CPU time to parse a page in microseconds.
fn parsing() -> f64 {
    const ROUNDS: u32 = 200;
    let pages = backends::pages();
    let begun = cpu_time();
    for page in (0..ROUNDS).flat_map(|_| &pages) {
        black_box(EngineLoad::read(black_box(page)));
    }
    let took = cpu_time().checked_sub(begun).unwrap();
    took.as_secs_f64() * 1e6 / f64::from(ROUNDS) / pages.len() as f64
}
