//! The open connections of the admin listener, and the choice of the connection that a new one replaces.

use http::HeaderMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_protocol::atomic::{AtomicCount, AtomicFlag};
use tokenweir_protocol::{headers, limits};
use tokio::task::{AbortHandle, JoinSet};

/// The open connections of the admin listener.
#[derive(Default)]
pub(super) struct AdminConnections {
    tasks: JoinSet<()>,
    /// The open connections, from the oldest to the newest.
    connections: Vec<AdminConnection>,
}

struct AdminConnection {
    task: AbortHandle,
    /// The address (IPv4) or /64 network (IPv6) of the client.
    client: IpAddr,
    requests: Arc<ConnectionRequests>,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionRequests {
    has_begun: AtomicFlag,
    open: AtomicCount,
    /// Number of open requests whose response is a gRPC stream.
    open_streams: AtomicCount,
}

/// Counts one request of a connection as open, until its response is sent or dropped.
pub(super) struct OpenRequest {
    requests: Arc<ConnectionRequests>,
    is_stream: bool,
}

/// The use of a connection, ordered by which is closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionUse {
    /// No complete request head has arrived.
    NoRequest,
    /// No request is open.
    Idle,
    Request,
    /// A gRPC stream of the scaler is open.
    GrpcStream,
}

impl AdminConnections {
    /// Waits until the number of connections is below `limit`. At the limit, closes the connection that
    /// [`Self::least_worth_keeping`] selects, so that no client can lock out probes.
    pub(super) async fn make_room(&mut self, limit: usize) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.connections
                .retain(|connection| !connection.task.is_finished());
            if self.connections.len() < limit {
                return;
            }
            if let Some(connection) = self.least_worth_keeping() {
                connection.task.abort();
            }
            self.tasks.join_next().await;
        }
    }

    /// Serves a connection of a client until `serving` completes.
    pub(super) fn spawn(
        &mut self,
        client: IpAddr,
        requests: Arc<ConnectionRequests>,
        serving: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.tasks.spawn(serving);
        let client = limits::client_network(client);
        self.connections.push(AdminConnection {
            task,
            client,
            requests,
        });
    }

    /// Selects the client with the most connections. Returns its oldest connection with the lowest use.
    fn least_worth_keeping(&self) -> Option<&AdminConnection> {
        let busiest = limits::busiest(self.connections.iter().map(|it| it.client));
        let of_busiest = self
            .connections
            .iter()
            .filter(|it| busiest.contains(&it.client));
        // `min_by_key` returns the first of several minima, which is the oldest connection.
        of_busiest.min_by_key(|connection| connection.requests.current_use())
    }
}

impl ConnectionRequests {
    /// Counts a request whose head has arrived.
    pub(super) fn begin(self: &Arc<Self>) -> OpenRequest {
        self.has_begun.set(true);
        self.open.add(1);
        OpenRequest {
            requests: self.clone(),
            is_stream: false,
        }
    }

    fn current_use(&self) -> ConnectionUse {
        if self.open_streams.get() > 0 {
            ConnectionUse::GrpcStream
        } else if self.open.get() > 0 {
            ConnectionUse::Request
        } else if self.has_begun.get() {
            ConnectionUse::Idle
        } else {
            ConnectionUse::NoRequest
        }
    }
}

impl OpenRequest {
    /// Records the head of the response, which shows a gRPC stream. KEDA keeps the streams of the scaler open
    /// for hours.
    pub(super) fn on_response(&mut self, headers: &HeaderMap) {
        if headers::media_type(headers).starts_with("application/grpc") {
            self.is_stream = true;
            self.requests.open_streams.add(1);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.open.sub(1);
        if self.is_stream {
            self.requests.open_streams.sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    /// Adds a connection that never ends, of a client whose address has this last byte.
    fn connect(connections: &mut AdminConnections, client: u8) -> Arc<ConnectionRequests> {
        let requests = Arc::<ConnectionRequests>::default();
        let ip = IpAddr::from([10, 0, 0, client]);
        connections.spawn(ip, requests.clone(), std::future::pending());
        requests
    }

    fn stream(requests: &Arc<ConnectionRequests>) -> OpenRequest {
        let grpc = HeaderValue::from_static("application/grpc");
        let mut request = requests.begin();
        request.on_response(&HeaderMap::from_iter([(CONTENT_TYPE, grpc)]));
        request
    }

    fn is_open(connections: &AdminConnections, requests: &Arc<ConnectionRequests>) -> bool {
        connections
            .connections
            .iter()
            .any(|it| Arc::ptr_eq(&it.requests, requests))
    }

    #[tokio::test]
    async fn half_open_connections_are_replaced_first() {
        let mut connections = AdminConnections::default();
        let all: Vec<_> = (0..6).map(|_| connect(&mut connections, 1)).collect();
        let _watch = stream(&all[0]);
        let _first = all[1].begin();
        let _second = all[2].begin();
        drop(all[3].begin());
        for (limit, replaced) in [(6, 4), (5, 5), (4, 3), (3, 1), (2, 2), (1, 0)] {
            connections.make_room(limit).await;
            assert!(!is_open(&connections, &all[replaced]), "{replaced}");
            assert_eq!(connections.connections.len(), limit - 1);
        }
    }

    #[tokio::test]
    async fn the_client_with_most_admin_connections_loses_one() {
        let mut connections = AdminConnections::default();
        let probe = connect(&mut connections, 1);
        let streams: Vec<_> = (0..2)
            .map(|_| stream(&connect(&mut connections, 2)))
            .collect();
        connections.make_room(3).await;
        assert!(is_open(&connections, &probe));
        assert!(!is_open(&connections, &streams[0].requests));
        connections.make_room(3).await;
        assert_eq!(connections.connections.len(), 2, "there is room already");
    }
}
