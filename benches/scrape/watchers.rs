//! The child: the watchers of the gateway with its metrics, and the CPU time that they take.

use super::{BAR, COUNT, replicas};
use std::fs;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir::backend::Backend;
use tokenweir::backend::pool::Pool;
use tokenweir::backend::watch::{self, Settings, Tally};
use tokenweir::telemetry::Telemetry;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::metric::Known;
use tokenweir::telemetry::prometheus::Prometheus;
use tokenweir_core::address::Address;
use tokenweir_core::dialect::Load;
use tokenweir_core::routing::Policy;
use tokenweir_core::signals::ScrapeError;
use tokenweir_net::client::{Client, Limits};
use tokio::runtime;
use tokio::task::JoinSet;

/// How long the watchers run before it is measured, and how long it is measured.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(20);

/// The gateway's metrics, and a count of looks.
struct Count {
    telemetry: Telemetry,
    looks: AtomicU64,
    errors: AtomicU64,
}

impl Tally for Count {
    fn scraped(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(u64::from(error.is_some()), Ordering::Relaxed);
        self.telemetry.scraped(backend, took, error);
    }
}

/// Watches the replicas at once a second and as the defaults have it, and tells what that costs.
pub(crate) fn run(addresses: &str) -> ExitCode {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let second = Duration::from_secs(1);
    let once_a_second =
        Settings { min_interval: second, max_interval: second, ..Settings::default() };
    let parsing = parsing();
    println!("{COUNT} replicas           looks/s   % of a core   µs a look   µs of parsing");
    let tell = |name: &str, settings: Settings| {
        let (looks, cpu) = runtime.block_on(measure(addresses, settings));
        let per_second = looks as f64 / MEASURED.as_secs_f64();
        let percent = 100.0 * cpu.as_secs_f64() / MEASURED.as_secs_f64();
        let each = cpu.as_secs_f64() * 1e6 / looks as f64;
        println!("{name:<22} {per_second:>7.1} {percent:>13.2} {each:>11.1} {parsing:>15.1}");
        (per_second, percent)
    };
    let (looks, percent) = tell("once a second", once_a_second);
    tell("by default", Settings::default());
    // Jitter makes it a few looks more or less.
    let at_1_hz = percent * COUNT as f64 / looks;
    println!("at 1 Hz: {at_1_hz:.2} % of one core; the bar is {BAR} %");
    if at_1_hz <= BAR { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The looks and the CPU time of this process while nothing but the watchers runs.
async fn measure(addresses: &str, settings: Settings) -> (u64, Duration) {
    let backend = |address: &str| {
        let address = Address::parse(address).unwrap();
        Backend::new(address.default_id(), address, None)
    };
    let pool = Pool::new(addresses.split(',').map(backend).collect(), &[], Policy::default());
    let telemetry = Telemetry::new(
        Prometheus::new(Known::default(), &Buckets::default(), Vec::new()),
        Vec::new(),
    );
    let count = Arc::new(Count { telemetry, looks: AtomicU64::new(0), errors: AtomicU64::new(0) });
    let client = Client::new(Limits::default());
    let mut watchers = JoinSet::new();
    for backend in pool.backends().iter() {
        watchers.spawn(watch::watch(backend.clone(), client.clone(), settings, count.clone()));
    }
    tokio::time::sleep(WARM_UP).await;
    let (looks, cpu) = (count.looks.load(Ordering::Relaxed), cpu_time());
    tokio::time::sleep(MEASURED).await;
    let looks = count.looks.load(Ordering::Relaxed) - looks;
    let cpu = cpu_time().checked_sub(cpu).unwrap();
    assert_eq!(count.errors.load(Ordering::Relaxed), 0, "every page is understood");
    assert!(pool.is_ready());
    (looks, cpu)
}

/// CPU time of all threads of this process. None of them ends while it is measured.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of_task = |task: std::path::PathBuf| -> u64 {
        let times = fs::read_to_string(task.join("schedstat")).unwrap();
        times.split(' ').next().unwrap().parse().unwrap()
    };
    Duration::from_nanos(tasks.map(of_task).sum())
}

/// Mean CPU time to read one of the pages, in microseconds.
fn parsing() -> f64 {
    const ROUNDS: u32 = 200;
    let pages = replicas::pages();
    let begun = cpu_time();
    for page in (0..ROUNDS).flat_map(|_| &pages) {
        black_box(Load::read(black_box(page)));
    }
    let took = cpu_time().checked_sub(begun).unwrap();
    took.as_secs_f64() * 1e6 / f64::from(ROUNDS) / pages.len() as f64
}
