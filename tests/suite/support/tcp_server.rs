//! A TCP server for the scripted servers and the proxies of the tests.

use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// A server at a loopback port. When it is dropped, its port and all its connections close.
pub(crate) struct TcpServer {
    pub addr: SocketAddr,
    accept_task: JoinHandle<()>,
}

impl TcpServer {
    /// Starts a server at a free port. `serve` serves a connection.
    pub(crate) async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), serve)
    }

    /// Like [`TcpServer::start`], at the port of this listener.
    pub(crate) fn on<F>(
        listener: TcpListener,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let addr = listener.local_addr().unwrap();
        let accept_task = tokio::spawn(async move {
            // The set is dropped with this task, and then its connections close.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                // The client may have reset the connection already.
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream));
            }
        });
        Self { addr, accept_task }
    }

    /// Returns a handle that closes the port and all connections soon after its `abort`.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.accept_task.abort_handle()
    }

    /// Closes the port, and all connections soon after it.
    pub(crate) async fn stop(&mut self) {
        self.accept_task.abort();
        if !self.accept_task.is_finished() {
            let _ = (&mut self.accept_task).await;
        }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}
