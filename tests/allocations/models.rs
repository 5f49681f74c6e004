//! The memory and the size of the metrics page that the gateway needs for the models that backends list.

use super::{measured, record};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokenweir::admin;
use tokenweir_engine::address::{BackendAddress, BackendId};
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::{Backend, HealthCheckSupervisor, PoolSettings, health_checker};
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::Telemetry;
use tokenweir_gateway::telemetry::metrics_registry::{
    BucketOverrides, ExpositionFormat, Prometheus,
};
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_request::observe::Sink;
use tokio::runtime::Runtime;

/// Starts a backend on a separate thread, whose allocations are not counted. It lists these models.
fn start_backend(models: Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = move |stream: TcpStream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let Some(path) = line.strip_prefix("GET ") else {
                continue;
            };
            let body = match path.split(' ').next() {
                Some("/v1/models") => models.lock().unwrap().clone(),
                Some("/metrics") => {
                    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n".to_owned()
                }
                _ => String::new(),
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            if (&stream)
                .write_all([head, body].concat().as_bytes())
                .is_err()
            {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    addr
}

/// Builds the response of a backend to `/v1/models`: a base model, and one adapter for each of these numbers.
fn model_list(adapters: std::ops::Range<usize>) -> String {
    let entry = |id: &str, parent: &str| {
        format!(
            r#"{{"id":"{id}","object":"model","created":1784000000,"owned_by":"vllm","root":"/models/{id}","parent":{parent},"max_model_len":null,"permission":[{{"id":"modelperm-{id}","object":"model_permission","allow_sampling":true,"allow_view":true,"organization":"*"}}]}}"#
        )
    };
    let adapters = adapters.map(|number| entry(&format!("adapter-{number:05}"), "\"base\""));
    let entries: Vec<String> = std::iter::once(entry("base", "null"))
        .chain(adapters)
        .collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))
}

/// A backend pool whose only backend lists the models that the test sets, and the metrics registry of the
/// gateway.
struct ModelFixture {
    models: Arc<Mutex<String>>,
    pool: Arc<BackendPool>,
    prometheus: Prometheus,
    _health_checks: HealthCheckSupervisor,
}

impl ModelFixture {
    async fn start(max_labels: usize) -> Self {
        let models = Arc::new(Mutex::new(model_list(0..0)));
        let address =
            BackendAddress::parse(&format!("http://{}", start_backend(models.clone()))).unwrap();
        let backend = Backend::new(BackendId::new("r"), address, None);
        let settings = PoolSettings {
            max_model_labels: max_labels,
            ..PoolSettings::default()
        };
        let pool = Arc::new(BackendPool::with_settings(vec![backend], &settings));
        let prometheus = || Prometheus::new(BucketOverrides::default(), Vec::new());
        let telemetry = Arc::new(Telemetry::new(prometheus(), Vec::new()));
        let interval = Duration::from_millis(20);
        let settings = health_checker::ScrapeSettings {
            min_interval: interval,
            max_interval: interval,
            ..health_checker::ScrapeSettings::default()
        };
        let client = HttpClient::new(HttpClientTimeouts::default());
        let health_checks =
            HealthCheckSupervisor::new(pool.clone(), client, settings, telemetry, Vec::new());
        health_checks
            .wait_first_checks(Duration::from_secs(10))
            .await;
        Self {
            models,
            pool,
            prometheus: prometheus(),
            _health_checks: health_checks,
        }
    }

    /// Replaces the adapters that the backend lists. Sends one request to each of them. Returns the metrics
    /// page.
    async fn set_adapters(&self, adapters: std::ops::Range<usize>) -> String {
        let (count, last) = (
            adapters.len() + 1,
            format!("adapter-{:05}", adapters.end - 1),
        );
        *self.models.lock().unwrap() = model_list(adapters.clone());
        // The gateway reads the list of models every ten seconds.
        advance(Duration::from_secs(10)).await;
        while self.pool.routes().models().len() != count
            || self.pool.routes().lookup(Some(&last)).backends.is_empty()
        {
            tokio::task::yield_now().await;
        }
        let now = tokio::time::Instant::now().into_std();
        let mut record = record(now);
        for number in adapters {
            let name = format!("adapter-{number:05}");
            record.model = self.pool.routes().lookup(Some(&name)).label.clone();
            assert_eq!(record.model.name(), name, "each adapter is served");
            self.prometheus.finished(&[&record]);
        }
        let backends = self.pool.backends();
        let backends = backends
            .iter()
            .map(|backend| admin::backend_status(backend, now))
            .collect();
        let models = self.pool.labelled_models(now);
        let vitals = StatusSnapshot {
            backends,
            models,
            ..StatusSnapshot::default()
        };
        let page = self.prometheus.page(&vitals, ExpositionFormat::Text);
        String::from_utf8(page).unwrap()
    }
}

/// Advances the paused clock, and with it the health checks, by `time`.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

const MIB: i64 = 1 << 20;

/// Runs the future on one thread. Returns its value and the number of bytes that it has allocated and not freed.
fn memory_of<T>(runtime: &Runtime, future: impl Future<Output = T>) -> (T, i64) {
    let (value, allocations) = measured(|| runtime.block_on(future));
    (value, allocations.bytes_current)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn ten_thousand_models_use_bounded_memory() {
    let runtime = runtime();
    let fixture = runtime.block_on(ModelFixture::start(200));
    let (page, grown) = memory_of(&runtime, fixture.set_adapters(0..9_999));
    println!(
        "10,000 models: {} KiB of memory, a page of {} KiB",
        grown >> 10,
        page.len() >> 10
    );
    assert!(grown < 20 * MIB, "{grown} bytes");
    assert!(page.len() < 2 << 20, "a page of {} bytes", page.len());
}

#[test]
fn changing_adapters_use_bounded_memory() {
    let runtime = runtime();
    let fixture = runtime.block_on(async {
        let fixture = ModelFixture::start(200).await;
        fixture.set_adapters(0..300).await;
        fixture
    });
    let (longest, grown) = memory_of(&runtime, async {
        let mut longest = 0;
        for turn in 1..=20 {
            let page = fixture.set_adapters(turn * 300..(turn + 1) * 300).await;
            longest = longest.max(page.len());
            // At the next change of the adapters, some removed models have already lost their metric labels
            // and others have not.
            advance(Duration::from_mins(4)).await;
        }
        longest
    });
    println!(
        "20 changes: {} KiB of memory, a page of {} KiB",
        grown >> 10,
        longest >> 10
    );
    assert!(grown < 20 * MIB, "{grown} bytes");
    assert!(longest < 2 << 20, "a page of {longest} bytes");
}
