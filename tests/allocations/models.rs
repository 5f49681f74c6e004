//! What models that a replica lists cost: its memory here, and its part of a metrics page.

use super::{held, record};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokenweir::admin;
use tokenweir::backend::pool::Pool;
use tokenweir::backend::{Backend, Keeper, watch};
use tokenweir::server::watch_all;
use tokenweir::telemetry::Telemetry;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::exposition::Format;
use tokenweir::telemetry::metric::Known;
use tokenweir::telemetry::prometheus::Prometheus;
use tokenweir::telemetry::vitals::Vitals;
use tokenweir_core::address::Address;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::BackendId;
use tokenweir_core::routing::Policy;
use tokenweir_net::client::{self, Client};

/// A replica on a thread of its own, whose allocations are not counted here. It lists these models.
fn replica(models: Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = move |stream: TcpStream| {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let Some(path) = line.strip_prefix("GET ") else { continue };
            let body = match path.split(' ').next() {
                Some("/v1/models") => models.lock().unwrap().clone(),
                Some("/metrics") => {
                    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n".to_owned()
                }
                _ => String::new(),
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            if (&stream).write_all([head, body].concat().as_bytes()).is_err() {
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

/// What `/v1/models` answers: a base, and adapters on it with these numbers.
fn listed(adapters: std::ops::Range<usize>) -> String {
    let entry = |id: &str, parent: &str| {
        format!(
            r#"{{"id":"{id}","object":"model","created":1784000000,"owned_by":"vllm","root":"/models/{id}","parent":{parent},"max_model_len":null,"permission":[{{"id":"modelperm-{id}","object":"model_permission","allow_sampling":true,"allow_view":true,"organization":"*"}}]}}"#
        )
    };
    let adapters = adapters.map(|number| entry(&format!("adapter-{number:05}"), "\"base\""));
    let entries: Vec<String> = std::iter::once(entry("base", "null")).chain(adapters).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))
}

/// A gateway's pool and metrics, whose only replica lists models.
struct Watched {
    models: Arc<Mutex<String>>,
    pool: Arc<Pool>,
    prometheus: Prometheus,
    _keeper: Keeper,
}

impl Watched {
    async fn start(most_labels: usize) -> Self {
        let models = Arc::new(Mutex::new(listed(0..0)));
        let address = Address::parse(&format!("http://{}", replica(models.clone()))).unwrap();
        let backend = Backend::new(BackendId::new("r"), address, None);
        let pool = Pool::new(vec![backend], &[], Policy::default()).with_most_labels(most_labels);
        let pool = Arc::new(pool);
        let prometheus = || Prometheus::new(Known::default(), &Buckets::default(), Vec::new());
        let telemetry = Arc::new(Telemetry::new(prometheus(), Vec::new()));
        let seconds = Duration::from_secs;
        let limits = client::Limits {
            connect: seconds(5),
            headers: seconds(5),
            first_output: None,
            idle: seconds(3),
        };
        let every = Duration::from_millis(20);
        let watch = watch::Settings {
            min_interval: every,
            max_interval: every,
            ..watch::Settings::default()
        };
        let client = Client::new(limits);
        let keeper = watch_all(&pool, &client, watch, &telemetry, seconds(10)).await;
        Self { models, pool, prometheus: prometheus(), _keeper: keeper }
    }

    /// The replica lists these adapters from now on; each gets a request. The metrics page.
    async fn lists(&self, adapters: std::ops::Range<usize>) -> String {
        let (count, last) = (adapters.len() + 1, format!("adapter-{:05}", adapters.end - 1));
        *self.models.lock().unwrap() = listed(adapters.clone());
        // Models are asked for every ten seconds.
        pass(Duration::from_secs(10)).await;
        while self.pool.routes().models().len() != count
            || self.pool.routes().of(Some(&last)).replicas.is_empty()
        {
            tokio::task::yield_now().await;
        }
        let now = tokio::time::Instant::now().into_std();
        let mut record = record(now);
        for number in adapters {
            let name = format!("adapter-{number:05}");
            record.model = self.pool.routes().of(Some(&name)).label.clone();
            assert_eq!(record.model.name(), name, "each is served");
            self.prometheus.finished(&record);
        }
        let backends = self.pool.backends();
        let backends = backends.iter().map(|backend| admin::vitals(backend, now)).collect();
        let models = self.pool.labelled_models(now);
        let vitals = Vitals { backends, models, ..Vitals::default() };
        self.prometheus.page(&vitals, Format::Text)
    }
}

/// Lets the watcher believe that time has passed.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

const MIB: i64 = 1 << 20;

#[tokio::test]
async fn ten_thousand_models_of_a_replica_cost_less_than_20_mib_and_a_page_of_2() {
    let watched = Watched::start(200).await;
    let before = held();
    let page = watched.lists(0..9_999).await.len();
    let grown = held() - before;
    println!("10,000 models: {} KiB more, a page of {} KiB", grown >> 10, page >> 10);
    assert!(grown < 20 * MIB, "{grown} bytes");
    assert!(page < 2 << 20, "a page of {page} bytes");
}

#[tokio::test]
async fn adapters_that_change_twenty_times_cost_less_than_20_mib_and_a_page_of_2() {
    let watched = Watched::start(200).await;
    watched.lists(0..300).await;
    let (before, mut longest) = (held(), 0);
    for turn in 1..=20 {
        let page = watched.lists(turn * 300..(turn + 1) * 300).await;
        longest = longest.max(page.len());
        // From one change to the next some models lose their labels, and others do not yet.
        pass(Duration::from_mins(4)).await;
    }
    let grown = held() - before;
    println!("20 changes: {} KiB more, a page of {} KiB", grown >> 10, longest >> 10);
    assert!(grown < 20 * MIB, "{grown} bytes");
    assert!(longest < 2 << 20, "a page of {longest} bytes");
}
