//! A scripted API server of Kubernetes on a raw socket. Each request waits until the test answers it.

use super::crashable_backend::{bind_shared, listen};
use super::request_reader::read_request;
use super::tcp_server::TcpServer;
use bytes::BytesMut;
use serde_json::{Value, json};
use socket2::Socket;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

pub(crate) struct KubernetesApiServer {
    pub addr: SocketAddr,
    requests: mpsc::UnboundedReceiver<Asked>,
    server: TcpServer,
    /// Keeps the port while the server is stopped.
    reserved_port: Socket,
}

/// A request that waits for the response of the test. Dropping it closes the connection.
pub(crate) struct Asked {
    /// Path and query.
    pub target: String,
    stream: TcpStream,
}

/// An open watch stream. Dropping it closes the connection.
pub(crate) struct Watch(TcpStream);

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

impl KubernetesApiServer {
    pub(crate) fn start() -> Self {
        Self::at(bind_shared(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
    }

    fn at(reserved_port: Socket) -> Self {
        let addr = reserved_port.local_addr().unwrap().as_socket().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let server = TcpServer::on(listen(addr), move |stream| {
            let sender = sender.clone();
            async move { drop(sender.send(Asked::read(stream).await)) }
        });
        Self {
            addr,
            requests,
            server,
            reserved_port,
        }
    }

    /// Refuses connections until the next [`KubernetesApiServer::restart`].
    pub(crate) async fn stop(&mut self) {
        self.server.stop().await;
        while self.requests.try_recv().is_ok() {}
    }

    /// Listens again on the same port.
    pub(crate) fn restart(&mut self) {
        *self = Self::at(self.reserved_port.try_clone().unwrap());
    }

    /// Waits for the next request and returns it.
    pub(crate) async fn asked(&mut self) -> Asked {
        let asked = tokio::time::timeout(WAIT_TIMEOUT, self.requests.recv()).await;
        asked.expect("a request within the timeout").unwrap()
    }

    /// Answers the next request with these slices and this resource version. The request must list slices.
    pub(crate) async fn list(&mut self, version: u64, slices: &[Value]) {
        let asked = self.asked().await;
        assert!(!asked.is_watch(), "{}", asked.target);
        asked.answer(200, &listed(version, slices)).await;
    }

    /// Begins the response to the next request, which must be a watch that starts at this resource version.
    pub(crate) async fn watch(&mut self, version: u64) -> Watch {
        let asked = self.asked().await;
        assert!(
            asked.is_watch() && asked.version() == Some(version),
            "{}",
            asked.target
        );
        asked.start_stream().await
    }
}

/// Builds the JSON of an `EndpointSliceList` with these slices and this resource version.
pub(crate) fn listed(version: u64, slices: &[Value]) -> Value {
    list_of("discovery.k8s.io/v1", "EndpointSliceList", version, slices)
}

/// Builds the JSON of a list of this kind with these items and this resource version.
pub(crate) fn list_of(api_version: &str, kind: &str, version: u64, items: &[Value]) -> Value {
    json!({
        "kind": kind, "apiVersion": api_version,
        "metadata": { "resourceVersion": version.to_string() }, "items": items,
    })
}

/// Builds the JSON of an `EndpointSlice` with this resource version. Its only pod has a port on loopback.
/// `is_ready`: whether the pod is ready; `None` means that it is terminating.
pub(crate) fn slice(name: &str, version: u64, port: u16, is_ready: Option<bool>) -> Value {
    let (ready, ends) = (is_ready.unwrap_or(false), is_ready.is_none());
    json!({
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": { "name": name, "namespace": "ai", "resourceVersion": version.to_string() },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": port, "protocol": "TCP" }],
        "endpoints": [{
            "addresses": ["127.0.0.1"],
            "conditions": { "ready": ready, "serving": ready || ends, "terminating": ends },
            "targetRef": { "kind": "Pod", "name": format!("pod-{port}"), "namespace": "ai" },
        }],
    })
}

/// Builds the JSON of a Kubernetes `Status` that reports a failure.
pub(crate) fn status(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("{reason}: it cannot"),
        "reason": reason,
        "code": code,
    })
}

impl Asked {
    async fn read(mut stream: TcpStream) -> Self {
        let request = read_request(&mut stream, &mut BytesMut::new()).await;
        let (head, _) = request.unwrap_or_default();
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Self { target, stream }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query("watch").is_some_and(|value| value == "true")
    }

    /// The resource version at which the requested watch starts. `None`: the request has none.
    pub(crate) fn version(&self) -> Option<u64> {
        self.query("resourceVersion")?.parse().ok()
    }

    /// The value of a parameter of the query. `None` if the query has no such parameter.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Responds with this status and document, and closes the connection.
    pub(crate) async fn answer(mut self, status: u16, document: &Value) {
        let body = document.to_string();
        let head = format!(
            "HTTP/1.1 {status} .\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let _ = self
            .stream
            .write_all(format!("{head}{body}").as_bytes())
            .await;
    }

    /// Begins the response to a watch. The test then sends its events.
    pub(crate) async fn start_stream(mut self) -> Watch {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                    connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
        self.stream.write_all(head.as_bytes()).await.unwrap();
        Watch(self.stream)
    }
}

impl Watch {
    /// Sends a watch event of this type, in two HTTP chunks.
    pub(crate) async fn send(&mut self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        let (first, second) = line.split_at(line.len() / 2);
        self.send_chunk(first).await;
        self.send_chunk(second).await;
    }

    /// Sends a bookmark event, which has only a resource version.
    pub(crate) async fn send_bookmark(&mut self, version: u64) {
        let object = json!({
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": { "resourceVersion": version.to_string() },
        });
        self.send("BOOKMARK", &object).await;
    }

    pub(crate) async fn send_chunk(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes()).await.unwrap();
    }

    /// Ends the watch stream regularly, with the last HTTP chunk.
    pub(crate) async fn end(mut self) {
        let _ = self.0.write_all(b"0\r\n\r\n").await;
    }
}
