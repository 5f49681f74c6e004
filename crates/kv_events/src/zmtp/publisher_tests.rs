//! Tests of the publisher with connections of subscribers.

use super::super::connection::ZmqEndpoint;
use super::super::subscriber::tests::{endpoint, listener};
use super::*;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A running publisher, which accepts subscribers until the end of the test.
pub(in crate::zmtp) struct Served {
    publisher: Arc<Publisher>,
    pub(in crate::zmtp) live: ZmqEndpoint,
    pub(in crate::zmtp) replay: ZmqEndpoint,
    serving: JoinHandle<Infallible>,
}

impl Served {
    pub(in crate::zmtp) async fn start() -> Self {
        Self::with(listener().await, listener().await)
    }

    fn with(live: TcpListener, replay: TcpListener) -> Self {
        let publisher = Arc::new(Publisher::new("kv@x".into()));
        let [live_endpoint, replay_endpoint] = [&live, &replay].map(endpoint);
        let serving = Arc::clone(&publisher);
        let serving = tokio::spawn(async move { serving.serve(live, replay).await });
        Self {
            publisher,
            live: live_endpoint,
            replay: replay_endpoint,
            serving,
        }
    }

    pub(in crate::zmtp) fn publish(&self, payload: &str) {
        self.publisher.publish(payload.into());
    }

    /// Replaces the publisher by a new process on the same ports. The message numbers begin again at 0.
    pub(in crate::zmtp) async fn restart(self) -> Self {
        self.serving.abort();
        let _ = self.serving.await;
        let bind = async |endpoint: &ZmqEndpoint| loop {
            if let Ok(listener) = TcpListener::bind((endpoint.host.as_str(), endpoint.port)).await {
                break listener;
            }
            tokio::task::yield_now().await;
        };
        let live = bind(&self.live).await;
        Self::with(live, bind(&self.replay).await)
    }

    /// Opens a connection that subscribes to `topic`, and waits until the publisher has handled the
    /// subscription.
    async fn subscribe(&self, topic: &str) -> Connection {
        let mut connection = Connection::open(&self.live, SocketType::Sub).await.unwrap();
        connection.subscribe(topic).await.unwrap();
        connection.ping().await.unwrap();
        assert_eq!(connection.receive().await.unwrap(), None);
        connection
    }

    /// The numbers of the messages that the publisher replays from `from` on, without the end mark.
    async fn replayed(&self, from: u64) -> Vec<u64> {
        let mut connection = Connection::open(&self.replay, SocketType::Dealer)
            .await
            .unwrap();
        connection.send(&[b"", &from.to_be_bytes()]).await.unwrap();
        let mut numbers = Vec::new();
        loop {
            let parts = connection.receive().await.unwrap().unwrap();
            let number = number_of(&parts[2]).unwrap();
            if number == REPLAY_END {
                assert_eq!(parts, [&b""[..], b"", &[0xff; 8], b""]);
                return numbers;
            }
            assert_eq!(parts[..2], [&b""[..], b"kv@x"]);
            numbers.push(number);
        }
    }
}

fn parts(number: u64, payload: &str) -> Vec<Bytes> {
    vec![
        "kv@x".into(),
        number.to_be_bytes().to_vec().into(),
        payload.to_owned().into(),
    ]
}

#[tokio::test]
async fn a_subscriber_gets_later_messages_of_its_topic() {
    let served = Served::start().await;
    served.publish("before");
    let mut matching = served.subscribe("kv@").await;
    let mut other = served.subscribe("else").await;
    served.publish("a");
    served.publish("b");
    assert_eq!(matching.receive().await.unwrap(), Some(parts(1, "a")));
    assert_eq!(matching.receive().await.unwrap(), Some(parts(2, "b")));
    other.ping().await.unwrap();
    assert_eq!(
        other.receive().await.unwrap(),
        None,
        "nothing arrives before the answer"
    );
}

#[tokio::test]
async fn stored_messages_are_replayed_from_a_number() {
    let served = Served::start().await;
    assert_eq!(served.replayed(0).await, [0; 0]);
    for _ in 0..BUFFER_MESSAGES + 5 {
        served.publish("x");
    }
    let end = BUFFER_MESSAGES as u64 + 5;
    assert_eq!(served.replayed(0).await, (5..end).collect::<Vec<_>>());
    assert_eq!(served.replayed(end - 2).await, [end - 2, end - 1]);
    assert_eq!(served.replayed(end + 7).await, [0; 0]);
}

#[tokio::test]
async fn a_slow_subscriber_delays_no_message() {
    let served = Served::start().await;
    let mut slow = served.subscribe("").await;
    // The messages exceed the buffers of the sockets and of the publisher together, so the subscriber must lose
    // some.
    let payload = vec![7; 1 << 20];
    for _ in 0..64 {
        served.publisher.publish(payload.clone());
        tokio::task::yield_now().await;
    }
    let bytes = lock(&served.publisher.buffer).bytes;
    assert!(bytes <= BUFFER_BYTES, "{bytes}");
    let mut numbers = Vec::new();
    while numbers.last() != Some(&63) {
        let parts = slow.receive().await.unwrap().unwrap();
        numbers.push(number_of(&parts[1]).unwrap());
    }
    assert!(numbers.is_sorted() && numbers.len() < 64, "{numbers:?}");
}
