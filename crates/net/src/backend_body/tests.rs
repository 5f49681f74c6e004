//! Tests that distinguish a close that races with the request from a close after the request was
//! read.

use super::*;
use crate::file_descriptors::FileDescriptorPool;
use crate::tls::MaybeTlsStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Creates a connection that has carried a response. Also returns the socket at its other end, and
/// an empty pool.
async fn reused_connection() -> (Connection, TcpStream, IdlePool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let descriptor = FileDescriptorPool::default().try_acquire().unwrap();
    let mut connection = Connection::new(MaybeTlsStream::Plain(stream), descriptor);
    connection.served_requests = 1;
    (connection, listener.accept().await.unwrap().0, IdlePool::default())
}

fn request_with_body(length: usize) -> Request<Bytes> {
    Request::post("http://backend/").body(vec![b'x'; length].into()).unwrap()
}

// The paused clock advances only when a test advances it, because these tests have no timers.

#[tokio::test(start_paused = true)]
async fn close_race_is_distinguished_from_close_after_read() {
    for delay in [Duration::ZERO, CLOSE_RACE_WINDOW] {
        let (connection, mut peer, idle) = reused_connection().await;
        let closing = async {
            peer.read_u8().await.unwrap();
            tokio::time::advance(delay).await;
            drop(peer);
        };
        let (result, ()) =
            tokio::join!(connection.send(request_with_body(3), None, &idle), closing);
        match result.unwrap_err() {
            SendError::StaleConnection { was_request_written: true } => assert!(delay.is_zero()),
            SendError::Closed(_) => assert!(!delay.is_zero()),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn partially_written_request_is_not_executed() {
    let (connection, mut peer, idle) = reused_connection().await;
    let closing = async {
        peer.read_u8().await.unwrap();
        tokio::time::advance(CLOSE_RACE_WINDOW).await;
        drop(peer);
    };
    let (result, ()) =
        tokio::join!(connection.send(request_with_body(64 << 20), None, &idle), closing);
    assert!(matches!(result, Err(SendError::StaleConnection { was_request_written: false })));
}

#[tokio::test(start_paused = true)]
async fn close_of_a_new_connection_fails_the_request() {
    let (mut connection, mut peer, idle) = reused_connection().await;
    connection.served_requests = 0;
    let closing = async {
        peer.read_u8().await.unwrap();
        drop(peer);
    };
    let (result, ()) = tokio::join!(connection.send(request_with_body(3), None, &idle), closing);
    assert!(matches!(result, Err(SendError::Closed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_body_fails_when_its_backend_sends_no_part_of_it_in_time() {
    let (connection, mut peer, idle) = reused_connection().await;
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab";
    let (response, sent) =
        tokio::join!(connection.send(request_with_body(3), None, &idle), peer.write_all(head));
    sent.unwrap();
    let mut body = response.unwrap().into_body();
    body.limit_silence(Duration::from_mins(10));
    let began = clock::now();
    let mut read = 0;
    let error = loop {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap() {
            Ok(frame) => read += frame.into_data().unwrap().len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ConnectionError::Silent(_)), "{error}");
    assert_eq!((read, clock::now() - began >= Duration::from_mins(10)), (2, true));
}
