//! The HTTP server of a backend. Nagle's algorithm is off. Idle connections are closed after
//! `keep_alive`, as uvicorn does. A client that closes its half of the connection counts as
//! disconnected. One detail differs from vLLM: the sizes of HTTP chunks are written in upper case.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::routes;
use crate::simulated_backend::SimulatedBackend;

/// Accepts connections without end. Dropping the future closes all connections, as if the server
/// had been killed.
pub(crate) async fn serve(listener: TcpListener, backend: Arc<SimulatedBackend>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(stream, Arc::clone(&backend)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, backend: Arc<SimulatedBackend>) {
    // If this fails, the client has disconnected and the next read returns an error.
    let _ = stream.set_nodelay(true);
    let idle_timeout = backend.settings.keep_alive;
    let service = service_fn(move |request| {
        let backend = Arc::clone(&backend);
        async move {
            backend.wait_if_hanging().await;
            Ok::<_, Infallible>(routes::respond(request, &backend).await)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(*idle_timeout);
    // An error means that the client disconnected or violated the protocol. It needs no handling,
    // because dropping the response aborts its sequences.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
