//! Tests of the subscriber against a publisher in this process.

use super::super::frame::write_command;
use super::super::handshake::greeting;
use super::super::publisher::tests::Served;
use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A call that the subscriber made to its event sink.
#[derive(Debug, PartialEq, Eq)]
enum SinkCall {
    Clear,
    Apply(Vec<u8>),
    State(StreamState),
    Error(String),
}

struct Sink {
    calls: mpsc::UnboundedSender<SinkCall>,
    state: Option<StreamState>,
}

impl EventSink for Sink {
    fn clear(&mut self) {
        let _ = self.calls.send(SinkCall::Clear);
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        let _ = self.calls.send(SinkCall::Apply(payload.to_vec()));
        if payload == b"damaged" {
            Err(DecodeError::Truncated.into())
        } else {
            Ok(payload == b"clear")
        }
    }

    fn on_state(&mut self, state: StreamState) {
        if self.state.replace(state) != Some(state) {
            let _ = self.calls.send(SinkCall::State(state));
        }
    }

    fn on_error(&mut self, error: &ConnectionError) {
        let _ = self.calls.send(SinkCall::Error(error.to_string()));
    }
}

pub(in crate::zmtp) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(in crate::zmtp) fn endpoint(listener: &TcpListener) -> ZmqEndpoint {
    let address = listener.local_addr().unwrap();
    ZmqEndpoint {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

/// Performs the handshake with the subscriber as a socket of the type `socket`.
async fn shake(stream: &mut TcpStream, socket: &str) {
    let mut out = greeting().to_vec();
    let value = [&(socket.len() as u32).to_be_bytes(), socket.as_bytes()].concat();
    write_command(
        "READY",
        &[b"\x0bSocket-Type", &value[..]].concat(),
        &mut out,
    );
    stream.write_all(&out).await.unwrap();
    stream.read_exact(&mut [0; 64]).await.unwrap();
}

/// Starts a replay socket as in vLLM up to 0.22. It replays the messages `a` and `b` without a topic part.
async fn replay_without_topic() -> ZmqEndpoint {
    let listener = listener().await;
    let replay = endpoint(&listener);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = Connection::accept(stream, SocketType::Router)
            .await
            .unwrap();
        while let Ok(Some(request)) = connection.receive().await {
            let from = number_of(&request[1]).unwrap();
            for (number, payload) in (0_u64..).zip(["a", "b"]).skip(from as usize) {
                connection.write(&[b"", &number.to_be_bytes(), payload.as_bytes()]);
            }
            connection
                .send(&[b"", &REPLAY_END.to_be_bytes(), b""])
                .await
                .unwrap();
        }
    });
    replay
}

/// A running subscriber, and the calls that it made to its event sink.
struct Subscription {
    calls: mpsc::UnboundedReceiver<SinkCall>,
}

impl Subscription {
    fn to(served: &Served) -> Self {
        Self::start(served.live.clone(), Some(served.replay.clone()))
    }

    fn start(endpoint: ZmqEndpoint, replay_endpoint: Option<ZmqEndpoint>) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        let sink = Sink {
            calls: sender,
            state: None,
        };
        let mut subscriber = Subscriber::new(endpoint, replay_endpoint, "kv".into(), sink);
        tokio::spawn(async move { subscriber.run().await });
        Self { calls }
    }

    /// Waits until the stream has this state and `count` messages were applied since the last clear. Returns
    /// their payloads.
    async fn until(&mut self, state: StreamState, count: usize) -> Vec<String> {
        let mut applied = Vec::new();
        let mut last = StreamState::Off;
        loop {
            match self.calls.recv().await.unwrap() {
                SinkCall::Clear => applied.clear(),
                SinkCall::Apply(payload) => applied.push(String::from_utf8(payload).unwrap()),
                SinkCall::State(state) => last = state,
                SinkCall::Error(_) => {}
            }
            if last == state && applied.len() == count {
                return applied;
            }
        }
    }

    async fn error(&mut self) -> String {
        loop {
            if let SinkCall::Error(error) = self.calls.recv().await.unwrap() {
                return error;
            }
        }
    }
}

#[tokio::test]
async fn events_around_the_subscription_are_applied_in_order() {
    for with_topic in [true, false] {
        let served = Served::start().await;
        served.publish("a");
        served.publish("b");
        let replay = if with_topic {
            served.replay.clone()
        } else {
            replay_without_topic().await
        };
        let mut subscription = Subscription::start(served.live.clone(), Some(replay));
        assert_eq!(subscription.until(StreamState::Exact, 2).await, ["a", "b"]);
        served.publish("c");
        assert_eq!(
            subscription.calls.recv().await,
            Some(SinkCall::Apply("c".into()))
        );
    }
}

#[tokio::test]
async fn a_replay_brings_a_lost_message() {
    let served = Served::start().await;
    let live = listener().await;
    served.publish("a");
    let mut subscription = Subscription::start(endpoint(&live), Some(served.replay.clone()));
    let (stream, _) = live.accept().await.unwrap();
    let mut connection = Connection::accept(stream, SocketType::Pub).await.unwrap();
    assert_eq!(connection.receive().await.unwrap().unwrap(), ["\x01kv"]);
    tokio::select! {
        // The connection answers the ping of the subscriber.
        received = connection.receive() => panic!("{received:?}"),
        applied = subscription.until(StreamState::Exact, 1) => assert_eq!(applied, ["a"]),
    }
    served.publish("lost");
    served.publish("c");
    connection
        .send(&[b"kv@x", &2_u64.to_be_bytes(), b"c"])
        .await
        .unwrap();
    assert_eq!(
        subscription.until(StreamState::Exact, 2).await,
        ["lost", "c"]
    );
}

#[tokio::test]
async fn a_restart_applies_only_new_messages() {
    let served = Served::start().await;
    for payload in ["a", "b", "c"] {
        served.publish(payload);
    }
    let mut subscription = Subscription::to(&served);
    subscription.until(StreamState::Exact, 3).await;
    let served = served.restart().await;
    served.publish("new");
    assert_eq!(subscription.until(StreamState::Exact, 1).await, ["new"]);
    served.publish("newer");
    assert_eq!(
        subscription.calls.recv().await,
        Some(SinkCall::Apply("newer".into()))
    );
}

#[tokio::test]
async fn without_replay_the_state_is_from_here() {
    let served = Served::start().await;
    served.publish("a");
    let mut subscription = Subscription::start(served.live.clone(), None);
    assert_eq!(subscription.calls.recv().await, Some(SinkCall::Clear));
    assert_eq!(
        subscription.calls.recv().await,
        Some(SinkCall::State(StreamState::Gap))
    );
    // A message may be published before the subscription reaches the publisher, so the test sends many.
    let publishing = async {
        loop {
            served.publish("b");
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = publishing => {}
        applied = subscription.until(StreamState::FromHere, 1) => assert_eq!(applied, ["b"]),
    }
}

#[tokio::test]
async fn a_damaged_message_counts_until_a_clear_event() {
    let served = Served::start().await;
    served.publish("a");
    let mut subscription = Subscription::to(&served);
    subscription.until(StreamState::Exact, 1).await;
    served.publish("damaged");
    subscription.until(StreamState::FromHere, 0).await;
    served.publish("clear");
    subscription.until(StreamState::Exact, 1).await;
}

#[tokio::test]
async fn a_peer_without_events_is_reported() {
    let listener = listener().await;
    let mut subscription = Subscription::start(endpoint(&listener), None);
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&[b'x'; 64]).await.unwrap();
    assert!(subscription.error().await.contains("does not speak ZMTP 3"));
    let (mut stream, _) = listener.accept().await.unwrap();
    shake(&mut stream, "XPUB").await;
    stream.write_all(b"\x02\x10\0\0\0\0\0\0\0").await.unwrap();
    assert!(
        subscription
            .error()
            .await
            .contains("more than 16777216 bytes")
    );
    let (mut stream, _) = listener.accept().await.unwrap();
    shake(&mut stream, "PUSH").await;
    assert!(
        subscription
            .error()
            .await
            .contains("has a PUSH socket, expected PUB")
    );
}
