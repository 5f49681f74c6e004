//! Clients that disconnect in every phase of a request, in every way in which a connection or a stream can
//! end. The backend must see the disconnect at once or never receive the request. The tenant must get its
//! permit back.
//!
//! `LEAVING=200 cargo test --release --test suite client_disconnects -- --nocapture` measures the delay and
//! limits it.

mod clients;

use crate::access::{access, tenant};
use crate::admission::until_waiting;
use crate::support::scripted_backend::{
    ROLE, ScriptedBackend, Step, WORD, chunk, event_stream_head,
};
use crate::support::test_gateway::{
    CHAT, Running, Setup, admission_settings, gateway_scripted, gateway_scripted_with,
};
use clients::{Client, WAYS, Way};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir::config;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_request::access::{TenantEntry, UsageLimits};
use tokenweir_request::record::Outcome;
use tokio::io::AsyncWriteExt;

const ASK: &str =
    r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
/// How often a client disconnects in each phase and way. The environment variable `LEAVING` overrides it.
const TIMES: usize = 3;
/// Maximum delay from the disconnect until the gateway closes the connection to the backend, at the median of each
/// phase and way. A loaded machine delays single closes, and a check that polls delays all of a phase and way.
const MAX_CLOSE_DELAY: Duration = Duration::from_millis(10);
/// Maximum duration of each wait in these tests.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The client has sent half of the body.
    Upload,
    /// The request waits in the queue, because every backend is at capacity.
    Queued,
    /// The backend has received the request and has not answered.
    Headers,
    /// The response head has arrived, but no output, so the gateway still holds the response back.
    Held,
    /// The client has received two output events.
    Streaming,
}

const PHASES: [Phase; 5] = [
    Phase::Upload,
    Phase::Queued,
    Phase::Headers,
    Phase::Held,
    Phase::Streaming,
];

impl Phase {
    const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Queued => "queued",
            Self::Headers => "headers",
            Self::Held => "prefill",
            Self::Streaming => "decode",
        }
    }

    fn script(self) -> Vec<Step> {
        let begun = match self {
            Self::Held => [event_stream_head(), chunk(ROLE)].concat(),
            Self::Streaming => {
                [event_stream_head(), chunk(ROLE), chunk(WORD), chunk(WORD)].concat()
            }
            _ => Vec::new(),
        };
        vec![Step::Send(begun), Step::AwaitClose]
    }

    fn reaches_backend(self) -> bool {
        !matches!(self, Self::Upload | Self::Queued)
    }
}

/// A backend and a gateway, with a request that the test brings to a phase. The tenant of the gateway may
/// have two open requests.
struct Scene {
    fake: ScriptedBackend,
    gateway: Running,
    access: Arc<AccessControl>,
    /// The client of the request that takes all capacity of the backend. `None` except in the phase `Queued`.
    first: Option<Client>,
}

impl Scene {
    async fn start(phase: Phase) -> Self {
        let limits = UsageLimits {
            concurrency: Some(2),
            ..UsageLimits::default()
        };
        let access = access(TenantEntry { limits, ..tenant() });
        let max_in_flight = (phase == Phase::Queued).then_some(1);
        let admission = config::AdmissionConfig {
            max_in_flight,
            ..Default::default()
        };
        let admission = Some(admission_settings(&admission));
        let setup = Setup {
            access: access.clone(),
            admission,
            ..Setup::default()
        };
        let (fake, gateway) = gateway_scripted_with(setup, move |_| phase.script()).await;
        let mut first = None;
        if phase == Phase::Queued {
            first = Some(Client::ask(gateway.addr, Way::Fin, ASK, ASK.len()).await);
            fake.until_received(1).await;
        }
        Self {
            fake,
            gateway,
            access,
            first,
        }
    }

    /// Waits until the tenant has this number of open requests. The request of `first` does not count.
    async fn until_permits(&self, count: u32) {
        let count = count + u32::from(self.first.is_some());
        let open = || {
            self.access
                .keys()
                .unwrap()
                .open()
                .map(|(_, open)| open)
                .sum::<u32>()
        };
        wait_until!(open() == count);
    }
}

/// Starts a client, brings its request to the phase, and disconnects. Returns the delay until the backend
/// notices the disconnect. If the backend never received the request, returns the delay until the request has
/// ended.
async fn leave(scene: &Scene, phase: Phase, way: Way) -> Duration {
    let (fake, gateway) = (&scene.fake, &scene.gateway);
    let earlier = fake.seen().len();
    let length = if phase == Phase::Upload {
        ASK.len() / 2
    } else {
        ASK.len()
    };
    let mut client = Client::ask(gateway.addr, way, ASK, length).await;
    match phase {
        Phase::Upload => {
            let in_flight = "\ntokenweir_requests_in_flight 1\n";
            wait_until!(gateway.admin("/metrics").await.contains(in_flight));
        }
        Phase::Queued => until_waiting(gateway, 1).await,
        Phase::Headers => fake.until_received(earlier + 1).await,
        Phase::Held => {
            fake.until_received(earlier + 1).await;
            // The admin listener answers this request only after the gateway has read the events that the
            // backend had written before.
            gateway.admin("/metrics").await;
        }
        Phase::Streaming => client.read_until("Hi", 2).await,
    }
    scene.until_permits(1).await;
    let left = Instant::now();
    let _half = client.leave(way).await;
    let mut took = None;
    if phase.reaches_backend() {
        fake.closed().await;
        took = Some(left.elapsed());
    }
    let record = gateway.record().await;
    let took = took.unwrap_or_else(|| left.elapsed());
    assert_eq!(
        (record.outcome, record.phase()),
        (Outcome::Cancelled, phase.name()),
        "{way:?}"
    );
    if phase == Phase::Streaming {
        assert_eq!(record.output_tokens(), Some(2), "{way:?}");
    }
    if phase == Phase::Queued {
        assert!(record.gateway_queue_wait().is_some(), "{way:?}");
        until_waiting(gateway, 0).await;
    } else {
        assert_eq!(gateway.pool.backends()[0].load.in_flight(), 0, "{way:?}");
    }
    scene.until_permits(0).await;
    if !phase.reaches_backend() {
        assert_eq!(
            fake.seen().len(),
            earlier,
            "{phase:?}, {way:?}: the request reached no backend"
        );
    }
    took
}

#[tokio::test]
async fn backends_see_every_kind_of_disconnect() {
    let measured = std::env::var("LEAVING")
        .ok()
        .map(|times| times.parse().unwrap());
    let times = measured.unwrap_or(TIMES);
    let show = |name: &str, mut took: Vec<Duration>| {
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(at);
        println!("{name}: p50 {p50:?}, p99 {p99:?}, max {max:?}");
        p50
    };
    println!("{times} times each; delay until the backend connection closes, or the request ends");
    let mut all = Vec::new();
    for phase in PHASES {
        for way in WAYS {
            let scene = Scene::start(phase).await;
            let mut took = Vec::new();
            for _ in 0..times {
                let leaving = tokio::time::timeout(WAIT_TIMEOUT, leave(&scene, phase, way));
                took.push(leaving.await.expect("somebody notices"));
            }
            scene.gateway.assert_no_more_records().await;
            all.extend_from_slice(&took);
            let median = show(&format!("{:9} {way:?}", phase.name()), took);
            assert!(
                measured.is_none() || median <= MAX_CLOSE_DELAY,
                "{phase:?}, {way:?}: {median:?}"
            );
        }
    }
    show("all", all);
}

/// Regression test: hyper can drop the future of a request before it polls it. There must be a record even
/// then.
#[tokio::test]
async fn a_disconnect_with_the_last_byte_is_recorded() {
    let (fake, gateway) = gateway_scripted(|_| vec![Step::AwaitClose]).await;
    for _ in 0..100 {
        let client = gateway.begin(CHAT, ASK).await;
        drop(client);
        let record = tokio::time::timeout(WAIT_TIMEOUT, gateway.record()).await;
        let record = record.expect("a record");
        assert_eq!(record.outcome, Outcome::Cancelled);
    }
    // Only some of the requests reach the backend. For each of them, the backend must see that the gateway
    // closes the connection.
    for _ in fake.seen() {
        fake.closed().await;
    }
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn endless_sending_counts_as_disconnected() {
    let (fake, gateway) = gateway_scripted(|_| vec![Step::AwaitClose]).await;
    let mut client = gateway.begin(CHAT, ASK).await;
    let endless = vec![b'x'; 64 << 10];
    while client.write_all(&endless).await.is_ok() {}
    fake.closed().await;
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled);
}
