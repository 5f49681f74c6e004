//! Tests of pooled connections.

use super::*;
use std::io::Read;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

const MOST: Duration = Duration::from_secs(3);

/// Idle connections, and their other ends.
async fn idle(count: usize) -> (Idle, Vec<TcpStream>) {
    let (idle, mut ends) = (Idle::default(), Vec::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..count {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        idle.list().push(Connection::new(Stream::Plain(stream)));
        ends.push(listener.accept().await.unwrap().0);
    }
    (idle, ends)
}

#[tokio::test]
async fn a_request_after_a_burst_does_not_wait_until_the_connections_of_the_burst_are_closed() {
    let (idle, ends) = idle(20).await;
    let mut ends: Vec<_> = ends.into_iter().map(|end| end.into_std().unwrap()).collect();
    assert!(idle.take(MOST, clock::now() + MOST).is_none());
    let is_open = |end: &mut std::net::TcpStream| {
        end.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(ends.iter_mut().all(is_open) && idle.list().is_empty());
    for end in ends {
        let mut end = TcpStream::from_std(end).unwrap();
        assert_eq!(end.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

/// A connection that has carried an answer, and its other end.
async fn used() -> (Connection, TcpStream, Idle) {
    let (idle, mut ends) = idle(1).await;
    let mut connection = idle.list().pop().unwrap();
    connection.is_used = true;
    (connection, ends.remove(0), idle)
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

#[tokio::test]
async fn connections_that_their_server_has_closed_are_passed_over() {
    let (idle, mut ends) = idle(3).await;
    let at = ends[0].peer_addr().unwrap();
    ends.truncate(1);
    let connections = std::mem::take(&mut *idle.list());
    for connection in &connections[1..] {
        let Stream::Plain(stream) = &connection.stream else { unreachable!() };
        stream.readable().await.unwrap();
    }
    *idle.list() = connections;
    let found = idle.take(MOST, clock::now()).unwrap();
    let Stream::Plain(stream) = &found.stream else { unreachable!() };
    assert_eq!(stream.local_addr().unwrap(), at);
    assert!(idle.list().is_empty());
}
