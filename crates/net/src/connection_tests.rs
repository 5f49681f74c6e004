//! Tests of how a close of a connection is classified.

use super::*;
use crate::descriptors::Descriptors;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// A connection that has carried an answer, and its other end.
async fn used() -> (Connection, TcpStream, Idle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let descriptor = Descriptors::default().take().unwrap();
    let mut connection = Connection::new(Stream::Plain(stream), descriptor);
    connection.is_used = true;
    (connection, listener.accept().await.unwrap().0, Idle::default())
}

fn request(length: usize) -> Request<Bytes> {
    Request::post("http://backend/").body(vec![b'x'; length].into()).unwrap()
}

// No timer runs in these tests, so the paused clock stands still unless a test moves it.

#[tokio::test(start_paused = true)]
async fn a_close_that_crosses_a_request_is_told_from_a_close_after_it_was_read() {
    for late in [Duration::ZERO, CLOSE_RACE] {
        let (connection, mut end, idle) = used().await;
        let closing = async {
            end.read_u8().await.unwrap();
            tokio::time::advance(late).await;
            drop(end);
        };
        let (sent, ()) = tokio::join!(connection.send(request(3), &idle), closing);
        match sent.unwrap_err() {
            SendError::Stale { was_written: true } => assert!(late.is_zero()),
            SendError::Closed(_) => assert!(!late.is_zero()),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_written_whole_cannot_have_been_executed() {
    let (connection, mut end, idle) = used().await;
    let closing = async {
        end.read_u8().await.unwrap();
        tokio::time::advance(CLOSE_RACE).await;
        drop(end);
    };
    let (sent, ()) = tokio::join!(connection.send(request(64 << 20), &idle), closing);
    assert!(matches!(sent, Err(SendError::Stale { was_written: false })));
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_that_closes_has_failed_its_request() {
    let (mut connection, mut end, idle) = used().await;
    connection.is_used = false;
    let closing = async {
        end.read_u8().await.unwrap();
        drop(end);
    };
    let (sent, ()) = tokio::join!(connection.send(request(3), &idle), closing);
    assert!(matches!(sent, Err(SendError::Closed(_))));
}
