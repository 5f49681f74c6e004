//! Tests of the subscriber against a publisher in this process.

use super::super::frame::write_command;
use super::super::handshake::greeting;
use super::*;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// A call that the subscriber made to its event sink.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Clear,
    Apply(Vec<u8>),
    State(StreamState),
    Error(String),
}

struct Sink {
    told: mpsc::UnboundedSender<Told>,
    state: Option<StreamState>,
}

impl EventSink for Sink {
    fn clear(&mut self) {
        let _ = self.told.send(Told::Clear);
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        let _ = self.told.send(Told::Apply(payload.to_vec()));
        if payload == b"damaged" {
            Err(DecodeError::Truncated.into())
        } else {
            Ok(payload == b"clear")
        }
    }

    fn on_state(&mut self, state: StreamState) {
        if self.state.replace(state) != Some(state) {
            let _ = self.told.send(Told::State(state));
        }
    }

    fn on_error(&mut self, error: &ConnectionError) {
        let _ = self.told.send(Told::Error(error.to_string()));
    }
}

/// A publisher with a replay socket.
struct Publisher {
    messages: Messages,
    /// Number of published messages.
    published: watch::Sender<usize>,
    tasks: Vec<JoinHandle<()>>,
    endpoint: ZmqEndpoint,
    replay_endpoint: ZmqEndpoint,
    with_topic: bool,
}

pub(in crate::zmtp) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(in crate::zmtp) fn endpoint(listener: &TcpListener) -> ZmqEndpoint {
    let address = listener.local_addr().unwrap();
    ZmqEndpoint { host: address.ip().to_string(), port: address.port() }
}

/// Performs the handshake with the subscriber as a socket of the type `socket`.
async fn shake(stream: &mut TcpStream, socket: &str) {
    let mut out = greeting().to_vec();
    let value = [&(socket.len() as u32).to_be_bytes(), socket.as_bytes()].concat();
    write_command("READY", &[b"\x0bSocket-Type", &value[..]].concat(), &mut out);
    stream.write_all(&out).await.unwrap();
    stream.read_exact(&mut [0; 64]).await.unwrap();
}

/// The payloads of all messages, each with whether it is lost on the way to a subscriber.
type Messages = Arc<Mutex<Vec<(Vec<u8>, bool)>>>;

/// Sends the published messages to the subscriber on one connection.
async fn publish_to(stream: TcpStream, messages: Messages, mut published: watch::Receiver<usize>) {
    let Ok(mut connection) = Connection::accept(stream, SocketType::Pub).await else { return };
    let mut sent = None;
    loop {
        tokio::select! {
            received = connection.receive() => match received {
                Err(_) => return,
                Ok(None) => {}
                Ok(Some(parts)) => {
                    assert_eq!(&parts[0][..], b"\x01kv");
                    sent = Some(*published.borrow_and_update());
                }
            },
            changed = published.changed() => {
                let (Ok(()), Some(first)) = (changed, &mut sent) else { continue };
                let end = *published.borrow_and_update();
                let arriving = messages.lock().unwrap().clone().into_iter().enumerate();
                for (number, (payload, is_lost)) in arriving.take(end).skip(*first) {
                    if !is_lost {
                        let number = (number as u64).to_be_bytes();
                        connection.write(&[b"kv@x", &number, &payload]);
                    }
                }
                *first = end;
                if connection.flush().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Answers the replay requests of the subscriber on one connection.
async fn replay_to(stream: TcpStream, messages: Messages, with_topic: bool) {
    let Ok(mut connection) = Connection::accept(stream, SocketType::Router).await else { return };
    let parts: &[&[u8]] = if with_topic { &[b"", b"kv@x"] } else { &[b""] };
    while let Ok(received) = connection.receive().await {
        let Some(request) = received else { continue };
        let from = number_of(&request[1]).unwrap() as usize;
        let replayed = messages.lock().unwrap().clone();
        for (number, (payload, _)) in (0_u64..).zip(&replayed).skip(from) {
            connection.write(&[parts, &[&number.to_be_bytes(), payload]].concat());
        }
        connection.write(&[parts, &[&REPLAY_END.to_be_bytes(), b""]].concat());
        connection.flush().await.unwrap();
    }
}

impl Publisher {
    async fn start() -> Self {
        Self::with(listener().await, listener().await, true)
    }

    fn with(live: TcpListener, replay: TcpListener, with_topic: bool) -> Self {
        let (messages, published) = (Messages::default(), watch::Sender::new(0));
        let (endpoint, replay_endpoint) = (endpoint(&live), endpoint(&replay));
        let (shared, receiver) = (Arc::clone(&messages), published.subscribe());
        let publishing = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = live.accept().await {
                connections.spawn(publish_to(stream, Arc::clone(&shared), receiver.clone()));
            }
        });
        let shared = Arc::clone(&messages);
        let replaying = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = replay.accept().await {
                connections.spawn(replay_to(stream, Arc::clone(&shared), with_topic));
            }
        });
        let tasks = vec![publishing, replaying];
        Self { messages, published, tasks, endpoint, replay_endpoint, with_topic }
    }

    /// Publishes a message. If `is_lost`, the message reaches no subscriber, but can be replayed.
    fn publish(&self, payload: &str, is_lost: bool) {
        self.messages.lock().unwrap().push((payload.into(), is_lost));
        self.published.send_modify(|published| *published += 1);
    }

    /// Replaces the publisher by a new process on the same ports, whose messages have numbers from 0 on.
    async fn restart(self) -> Self {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        let bind = async |endpoint: &ZmqEndpoint| loop {
            if let Ok(listener) = TcpListener::bind((endpoint.host.as_str(), endpoint.port)).await {
                break listener;
            }
            tokio::task::yield_now().await;
        };
        let live = bind(&self.endpoint).await;
        Self::with(live, bind(&self.replay_endpoint).await, self.with_topic)
    }

    fn subscribe(&self, with_replay: bool) -> Subscription {
        let replay_endpoint = with_replay.then(|| self.replay_endpoint.clone());
        Subscription::start(self.endpoint.clone(), replay_endpoint)
    }
}

/// A running subscriber.
struct Subscription {
    told: mpsc::UnboundedReceiver<Told>,
}

impl Subscription {
    fn start(endpoint: ZmqEndpoint, replay_endpoint: Option<ZmqEndpoint>) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let sink = Sink { told: sender, state: None };
        let mut subscriber = Subscriber::new(endpoint, replay_endpoint, "kv".into(), sink);
        tokio::spawn(async move { subscriber.run().await });
        Self { told }
    }

    /// Waits until the stream has this state and `count` messages were applied since the last clear. Returns
    /// their payloads.
    async fn until(&mut self, state: StreamState, count: usize) -> Vec<String> {
        let mut applied = Vec::new();
        let mut last = StreamState::Off;
        loop {
            match self.told.recv().await.unwrap() {
                Told::Clear => applied.clear(),
                Told::Apply(payload) => applied.push(String::from_utf8(payload).unwrap()),
                Told::State(state) => last = state,
                Told::Error(_) => {}
            }
            if last == state && applied.len() == count {
                return applied;
            }
        }
    }

    async fn error(&mut self) -> String {
        loop {
            if let Told::Error(error) = self.told.recv().await.unwrap() {
                return error;
            }
        }
    }
}

#[tokio::test]
async fn events_before_and_after_the_subscription_are_applied_in_order() {
    for with_topic in [true, false] {
        let publisher = Publisher::with(listener().await, listener().await, with_topic);
        publisher.publish("a", true);
        publisher.publish("b", true);
        let mut subscription = publisher.subscribe(true);
        assert_eq!(subscription.until(StreamState::Exact, 2).await, ["a", "b"]);
        publisher.publish("c", false);
        assert_eq!(subscription.told.recv().await, Some(Told::Apply("c".into())));
    }
}

#[tokio::test]
async fn a_lost_message_is_replayed() {
    let publisher = Publisher::start().await;
    publisher.publish("a", true);
    let mut subscription = publisher.subscribe(true);
    assert_eq!(subscription.until(StreamState::Exact, 1).await, ["a"]);
    publisher.publish("lost", true);
    publisher.publish("c", false);
    assert_eq!(subscription.until(StreamState::Exact, 2).await, ["lost", "c"]);
}

#[tokio::test]
async fn after_a_restart_of_the_publisher_the_contents_are_those_of_the_new_process() {
    let publisher = Publisher::start().await;
    for payload in ["a", "b", "c"] {
        publisher.publish(payload, true);
    }
    let mut subscription = publisher.subscribe(true);
    subscription.until(StreamState::Exact, 3).await;
    let publisher = publisher.restart().await;
    publisher.publish("new", false);
    assert_eq!(subscription.until(StreamState::Exact, 1).await, ["new"]);
    publisher.publish("newer", false);
    assert_eq!(subscription.told.recv().await, Some(Told::Apply("newer".into())));
}

#[tokio::test]
async fn without_a_replay_socket_the_contents_are_known_from_here_on() {
    let publisher = Publisher::start().await;
    publisher.publish("a", true);
    let mut subscription = publisher.subscribe(false);
    assert_eq!(subscription.told.recv().await, Some(Told::Clear));
    assert_eq!(subscription.told.recv().await, Some(Told::State(StreamState::Gap)));
    // A message may be published before the subscription reaches the publisher, so the test sends many.
    let publishing = async {
        loop {
            publisher.publish("b", false);
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = publishing => {}
        applied = subscription.until(StreamState::FromHere, 1) => assert_eq!(applied, ["b"]),
    }
}

#[tokio::test]
async fn a_damaged_message_clears_the_contents_and_a_cleared_cache_makes_them_exact() {
    let publisher = Publisher::start().await;
    publisher.publish("a", true);
    let mut subscription = publisher.subscribe(true);
    subscription.until(StreamState::Exact, 1).await;
    publisher.publish("damaged", false);
    subscription.until(StreamState::FromHere, 0).await;
    publisher.publish("clear", false);
    subscription.until(StreamState::Exact, 1).await;
}

#[tokio::test]
async fn a_peer_that_is_no_publisher_is_reported() {
    let listener = listener().await;
    let mut subscription = Subscription::start(endpoint(&listener), None);
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&[b'x'; 64]).await.unwrap();
    assert!(subscription.error().await.contains("does not speak ZMTP 3"));
    let (mut stream, _) = listener.accept().await.unwrap();
    shake(&mut stream, "XPUB").await;
    stream.write_all(b"\x02\x10\0\0\0\0\0\0\0").await.unwrap();
    assert!(subscription.error().await.contains("more than 16777216 bytes"));
    let (mut stream, _) = listener.accept().await.unwrap();
    shake(&mut stream, "PUSH").await;
    assert!(subscription.error().await.contains("has a PUSH socket, expected PUB"));
}
