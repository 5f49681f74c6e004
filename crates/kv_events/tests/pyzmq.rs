//! Tests of the subscriber with publishers that use the Python library pyzmq. `tests/kv_events.sh` runs these
//! tests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::residency::{CacheContents, StreamState};
use tokenweir_kv_events::zmtp::{ApplyError, ConnectionError, EventSink, Subscriber, ZmqEndpoint};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

/// The blocks from 1 to 40 that the cache contains, and the state of the stream.
type View = (Vec<u64>, StreamState);

struct Sink {
    contents: CacheContents,
    state: StreamState,
    views: watch::Sender<View>,
}

impl Sink {
    fn publish(&self) {
        let blocks = (1..=40)
            .filter(|block| self.contents.contains(*block))
            .collect();
        self.views.send_replace((blocks, self.state));
    }
}

impl EventSink for Sink {
    fn clear(&mut self) {
        self.contents.clear();
        self.publish();
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        let mut is_cleared = false;
        for event in EventBatch::parse(payload)? {
            let event = event?;
            is_cleared |= matches!(event, KvEvent::AllCleared);
            self.contents.apply(&event)?;
        }
        self.publish();
        Ok(is_cleared)
    }

    fn on_state(&mut self, state: StreamState) {
        self.state = state;
        self.publish();
    }

    fn on_error(&mut self, error: &ConnectionError) {
        // The assertions fail the test. The printed error is only for diagnosis.
        eprintln!("{error}");
    }
}

struct Publisher {
    child: Child,
    ports: [u16; 2],
}

impl Publisher {
    async fn start(encoding: &str, ports: [u16; 2]) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kv_events/publisher.py");
        let mut child = Command::new(std::env::var("PYTHON").expect("PYTHON is set"))
            .arg(script)
            .args(ports.map(|port| port.to_string()))
            .arg(encoding)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .await
            .unwrap();
        let mut ports = line.split_whitespace().map(|port| port.parse().unwrap());
        Self {
            ports: [ports.next().unwrap(), ports.next().unwrap()],
            child,
        }
    }

    async fn publish(&mut self, events: &str, is_lost: bool) {
        let line = format!("{{\"events\":[{events}],\"is_lost\":{is_lost}}}\n");
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(line.as_bytes())
            .await
            .unwrap();
    }

    async fn store(&mut self, parent: &str, blocks: &str, is_lost: bool) {
        let event = format!(
            "{{\"type\":\"stored\",\"block_hashes\":[{blocks}],\"parent_block_hash\":{parent},\
             \"token_ids\":[1,300,70000],\"block_size\":16}}"
        );
        self.publish(&event, is_lost).await;
    }

    fn subscribe(&self, with_replay: bool) -> Subscription {
        let endpoint = |port| ZmqEndpoint {
            host: "127.0.0.1".into(),
            port,
        };
        let views = watch::Sender::new((Vec::new(), StreamState::Off));
        let receiver = views.subscribe();
        let contents = CacheContents::new(1_000, 1);
        let sink = Sink {
            contents,
            state: StreamState::Off,
            views,
        };
        let replay = with_replay.then(|| endpoint(self.ports[1]));
        let mut subscriber = Subscriber::new(endpoint(self.ports[0]), replay, "kv@".into(), sink);
        tokio::spawn(async move { subscriber.run().await });
        Subscription { views: receiver }
    }

    async fn kill(mut self) -> [u16; 2] {
        self.child.kill().await.unwrap();
        self.ports
    }
}

struct Subscription {
    views: watch::Receiver<View>,
}

impl Subscription {
    async fn until(&mut self, blocks: &[u64], state: StreamState) {
        let is_expected = |view: &View| (&view.0[..], view.1) == (blocks, state);
        let found = timeout(Duration::from_secs(30), self.views.wait_for(is_expected)).await;
        if found.is_ok() {
            return;
        }
        drop(found);
        panic!(
            "expected {blocks:?} {state:?}, found {:?}",
            *self.views.borrow()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pyzmq; tests/kv_events.sh"]
async fn both_encodings_are_received_and_replayed() {
    for encoding in ["arrays", "maps"] {
        let mut publisher = Publisher::start(encoding, [0, 0]).await;
        publisher.store("null", "1,2,3", false).await;
        let mut subscription = publisher.subscribe(true);
        subscription.until(&[1, 2, 3], StreamState::Exact).await;
        publisher.store("3", "4", false).await;
        subscription.until(&[1, 2, 3, 4], StreamState::Exact).await;
        publisher
            .publish("{\"type\":\"removed\",\"block_hashes\":[4]}", true)
            .await;
        publisher.store("3", "5", false).await;
        subscription.until(&[1, 2, 3, 5], StreamState::Exact).await;
        publisher.publish("{\"type\":\"cleared\"}", false).await;
        subscription.until(&[], StreamState::Exact).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pyzmq; tests/kv_events.sh"]
async fn events_of_a_new_process_are_applied() {
    let mut publisher = Publisher::start("maps", [0, 0]).await;
    publisher.store("null", "1,2,3", false).await;
    let mut subscription = publisher.subscribe(true);
    subscription.until(&[1, 2, 3], StreamState::Exact).await;
    let ports = publisher.kill().await;
    subscription.until(&[1, 2, 3], StreamState::Gap).await;
    let mut publisher = Publisher::start("maps", ports).await;
    for (parent, block) in [("null", "7"), ("7", "8"), ("8", "9")] {
        publisher.store(parent, block, false).await;
    }
    subscription.until(&[7, 8, 9], StreamState::Exact).await;
    publisher.store("9", "10", false).await;
    subscription.until(&[7, 8, 9, 10], StreamState::Exact).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pyzmq; tests/kv_events.sh"]
async fn a_stopped_publisher_is_detected() {
    let mut publisher = Publisher::start("maps", [0, 0]).await;
    publisher.store("null", "1", false).await;
    let mut subscription = publisher.subscribe(true);
    subscription.until(&[1], StreamState::Exact).await;
    let signal = |name: &str| {
        let id = publisher.child.id().unwrap().to_string();
        std::process::Command::new("kill")
            .args([name, &id])
            .status()
            .unwrap();
    };
    signal("-STOP");
    subscription.until(&[1], StreamState::Gap).await;
    signal("-CONT");
    publisher.store("1", "2", false).await;
    subscription.until(&[1, 2], StreamState::Exact).await;
}
