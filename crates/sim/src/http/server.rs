//! The HTTP server of a backend. Nagle's algorithm is off. As in uvicorn, idle connections are closed after
//! `keep_alive`. A client that closes its half of the connection counts as disconnected. Unlike vLLM, the
//! server writes the sizes of HTTP chunks in upper case.

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
    // This fails only if the client has disconnected. The next read then returns an error.
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
    // The client disconnected or violated the protocol. Dropping the response aborts its sequences, so the
    // error needs no other handling.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
