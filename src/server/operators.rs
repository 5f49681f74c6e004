//! The operators' port, with TLS or without.

use crate::tls::{Acceptor, Stream};
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// Connections that have shaken hands.
struct Shaken {
    address: io::Result<SocketAddr>,
    ready: mpsc::Receiver<(Stream, SocketAddr)>,
}

/// Handshakes at the same time, and the longest time for one.
const HANDSHAKES: usize = 64;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Serves until it is aborted.
pub(super) async fn serve(listener: TcpListener, acceptor: Option<Acceptor>, router: axum::Router) {
    let served = match acceptor {
        None => axum::serve(listener, router).await,
        Some(acceptor) => {
            let (sender, ready) = mpsc::channel(HANDSHAKES);
            let shaken = Shaken { address: listener.local_addr(), ready };
            tokio::select! {
                () = shake_hands(listener, acceptor, sender) => Ok(()),
                served = axum::serve(shaken, router) => served,
            }
        }
    };
    if let Err(error) = served {
        tracing::error!(%error, "the admin port failed");
    }
}

/// Accepts connections for ever. One whose handshake takes long keeps nobody else waiting.
async fn shake_hands(
    mut listener: TcpListener,
    acceptor: Acceptor,
    ready: mpsc::Sender<(Stream, SocketAddr)>,
) {
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let (stream, peer) = Listener::accept(&mut listener).await;
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        let Ok(place) = places.clone().acquire_owned().await else { return };
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                // Nobody takes it at the end of the gateway.
                Ok(Ok(stream)) => drop(ready.send((stream, peer)).await),
                Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
                Err(_) => tracing::debug!(%peer, "no TLS handshake in time"),
            }
            drop(place);
        });
    }
}

impl Listener for Shaken {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        match self.ready.recv().await {
            Some(shaken) => shaken,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.address {
            Ok(address) => Ok(*address),
            Err(error) => Err(error.kind().into()),
        }
    }
}
