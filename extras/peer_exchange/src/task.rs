//! The task of the data exchange with other gateways. It publishes the decisions (load changes) of this
//! gateway in batches, and applies the messages of the other gateways.

use crate::exchange::{Decision, ExchangeFacet, PeerExchange};
use crate::messages::bus::{BusError, Publisher, Subscription};
use crate::messages::{Batch, PeerMessage, ReceivedMessage, Receiver, Sealer, SessionId};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::{Backend, BackendDriver};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::clock;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};

/// Exchanges hashes of prompts and pending prompt tokens with other gateways (`peer_exchange`).
pub const TASK: BackgroundTask = BackgroundTask::new("peer_exchange");

/// Maximum time for which a decision waits for further decisions, to be sent in one message with them.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// Time between two messages without decisions. Such a message shows the other gateways that this gateway is
/// present. It also shows this gateway that the bus works, because the bus returns the message.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without any message, including those of this gateway, after which the gateway connects
/// again.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Initial time between two connection attempts. It doubles after each failure.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum time between two connection attempts.
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The backends of the pool by the hash of their names.
#[derive(Default)]
struct BackendsByHash {
    listed: Arc<[Arc<Backend>]>,
    by_hash: HashMap<u64, Arc<Backend>>,
}

impl BackendDriver for ExchangeFacet {
    fn start(&self, pool: &Arc<BackendPool>) -> Option<SupervisedTask> {
        let exchange = self.0.clone();
        let pool = pool.clone();
        let run = move || run(exchange.clone(), pool.clone());
        Some(supervise::spawn(TASK, run))
    }
}

/// Runs the exchange: connects to the message bus, and connects again after each failure.
async fn run(exchange: Arc<PeerExchange>, pool: Arc<BackendPool>) {
    let mut queue = exchange.queue.lock().await;
    let mut session = SessionId::default();
    let key = &exchange.key;
    let sealer = SystemRandom::new()
        .fill(&mut session)
        .ok()
        .and_then(|()| Sealer::new(key, session));
    let Some(mut sealer) = sealer else {
        let _ = exchange
            .counters
            .set_connection(Err("the system has no random numbers".into()));
        return;
    };
    *exchange.receiver() = Receiver::new(key.clone(), session);
    let mut delay = FIRST_RETRY_DELAY;
    loop {
        let connected = tokio::select! {
            connected = exchange.bus.connect() => connected,
            never = exchange.discard(&mut queue) => match never {},
        };
        let error = match connected {
            Ok((publisher, subscription)) => {
                exchange.scripts.send_replace(Some(publisher.scripts()));
                tokio::select! {
                    error = exchange.publish(&mut queue, publisher, &mut sealer) => error,
                    error = exchange.receive(subscription, &pool, &mut delay) => error,
                }
            }
            Err(error) => error,
        };
        exchange.scripts.send_replace(None);
        if exchange.counters.set_connection(Err(error.to_string())) {
            tracing::warn!(
                %error,
                "the message bus of the gateways cannot be used: this gateway routes by its own \
                 requests and tries again"
            );
        }
        let _ = timeout(delay, exchange.discard(&mut queue)).await;
        delay = (delay * 2).min(LONGEST_RETRY_DELAY);
    }
}

impl PeerExchange {
    /// Drops the queued decisions (load changes) while there is no connection to the message bus.
    async fn discard(&self, queue: &mut mpsc::Receiver<Decision>) -> Infallible {
        loop {
            if queue.recv().await.is_some() {
                self.counters.dropped_decisions.add(1);
            }
        }
    }

    /// Publishes the queued decisions (load changes) until the message bus fails.
    async fn publish(
        &self,
        queue: &mut mpsc::Receiver<Decision>,
        mut publisher: Publisher,
        sealer: &mut Sealer,
    ) -> BusError {
        let mut heartbeat = interval(HEARTBEAT_INTERVAL);
        let mut batch = Batch::default();
        loop {
            tokio::select! {
                Some(decision) = queue.recv() => {
                    batch.add(decision.backlog, decision.prompt);
                    let fill = async {
                        while !batch.is_full() {
                            let Some(decision) = queue.recv().await else { return };
                            batch.add(decision.backlog, decision.prompt);
                        }
                    };
                    let _ = timeout(BATCH_INTERVAL, fill).await;
                    heartbeat.reset();
                }
                _ = heartbeat.tick() => {}
            }
            let message = batch.take(clock::unix_millis());
            let Some(sealed) = sealer.seal(&message) else {
                continue;
            };
            let decisions = message.prompts.len();
            if let Err(error) = publisher.publish(&sealed).await {
                self.counters.failed_messages.add(1);
                self.counters.dropped_decisions.add(decisions as u64);
                return error;
            }
            self.counters.sent_messages.add(1);
            self.counters.sent_bytes.add(sealed.len() as u64);
            self.counters.sent_decisions.add(decisions as u64);
        }
    }

    /// Applies the messages of other gateways until the bus fails. Only a received message, which may be
    /// one of this gateway, shows that the bus works: a bus that accepts connections may still refuse to
    /// publish. Each message sets `retry_delay` to the shortest delay.
    async fn receive(
        &self,
        mut subscription: Subscription,
        pool: &BackendPool,
        retry_delay: &mut Duration,
    ) -> BusError {
        let mut backends = BackendsByHash::default();
        loop {
            let bytes = match subscription.next(SILENCE_LIMIT).await {
                Ok(bytes) => bytes,
                Err(error) => return error,
            };
            *retry_delay = FIRST_RETRY_DELAY;
            if self.counters.set_connection(Ok(())) {
                tracing::info!("connected to the message bus of the gateways");
            }
            let received = self
                .receiver()
                .receive(&bytes, clock::now(), clock::unix_millis());
            match received {
                Ok(ReceivedMessage::Own) => {}
                Ok(ReceivedMessage::Peer(peer, message)) => {
                    backends.update(pool);
                    self.apply(peer, &message, &backends, pool);
                }
                Err(reason) => {
                    if self.counters.reject(reason) {
                        tracing::warn!(
                            reason = reason.as_str(),
                            "ignored a message from the message bus of the gateways: {reason}"
                        );
                    }
                }
            }
        }
    }

    fn apply(
        &self,
        peer: usize,
        message: &PeerMessage,
        backends: &BackendsByHash,
        pool: &BackendPool,
    ) {
        let now = clock::now();
        self.counters.received_messages.add(1);
        for backlog in &message.backlogs {
            match backends.by_hash.get(&backlog.backend) {
                Some(backend) => {
                    backend
                        .load
                        .estimator
                        .set_other_backlog(peer, backlog.pending_tokens, now);
                }
                None => {
                    self.counters.unknown_backends.add(1);
                }
            }
        }
        for sent in &message.prompts {
            if let Some(backend) = backends.by_hash.get(&sent.backend) {
                pool.on_peer_prompt(backend, &sent.prompt);
                self.counters.received_decisions.add(1);
            }
        }
    }
}

impl BackendsByHash {
    fn update(&mut self, pool: &BackendPool) {
        let backends = pool.backends();
        if !Arc::ptr_eq(&backends, &self.listed) {
            let by_hash = |backend: &Arc<Backend>| (backend.identity.id_hash, backend.clone());
            self.by_hash = backends.iter().map(by_hash).collect();
            self.listed = backends;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::ExchangeKey;
    use crate::messages::bus::BusSettings;
    use std::time::Instant;
    use tokenweir_gateway::backend::PoolSettings;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// A Redis server that accepts subscriptions but refuses each PUBLISH.
    async fn serve_subscriptions_only(mut stream: TcpStream) {
        let mut buffer = [0; 4_096];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            for line in text.split("\r\n") {
                let reply = match line {
                    "CLIENT" => "+OK\r\n",
                    "SUBSCRIBE" => "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
                    "PUBLISH" => "-NOPERM this user has no permissions\r\n",
                    _ => continue,
                };
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        }
    }

    /// Runs in real time, because the server uses real sockets.
    #[tokio::test]
    async fn reconnection_delays_grow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bus = BusSettings {
            url: format!("redis://{}", listener.local_addr().unwrap()),
            username: None,
            password: None,
            channel: "c".to_owned(),
            timeout: Duration::from_mins(1),
        };
        let key = ExchangeKey::new(&[7; 32]).unwrap();
        let exchange = PeerExchange::new(bus, key);
        let pool = Arc::new(BackendPool::with_settings(
            Vec::new(),
            &PoolSettings::default(),
        ));
        tokio::spawn(run(exchange.clone(), pool));
        let mut connected_at: Vec<Instant> = Vec::new();
        // Each attempt opens two connections. The fourth attempt follows after delays of 100, 200 and
        // 400 ms.
        while connected_at.len() < 7 {
            let (stream, _) = listener.accept().await.unwrap();
            connected_at.push(clock::now());
            tokio::spawn(serve_subscriptions_only(stream));
        }
        assert!(connected_at[6] - connected_at[0] >= Duration::from_millis(700));
        assert!(
            !exchange.status(clock::now()).connected,
            "no message came back"
        );
    }
}
