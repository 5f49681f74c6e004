//! Tests of a backend that closes the connection before its response, and of a body that does not arrive.

use super::*;
use crate::idle_pool::tests::connection_and_peer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn request_with_body(length: usize) -> Request<Bytes> {
    Request::post("http://backend/")
        .body(vec![b'x'; length].into())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_close_before_the_response_is_stale() {
    const LONG: usize = 64 << 20;
    let second = Duration::from_secs(1);
    for (served_requests, length, delay, sent, expected) in [
        (1, 3, Duration::ZERO, &b""[..], Some(true)),
        (1, 3, second, b"", Some(true)),
        // The backend closes the connection before the request is written.
        (1, LONG, second, b"", Some(false)),
        (1, 3, Duration::ZERO, b"HTTP/1.1 2", None),
        // A connection that has carried no earlier request cannot be stale.
        (0, 3, Duration::ZERO, b"", None),
    ] {
        let (mut connection, mut peer) = connection_and_peer().await;
        connection.served_requests = served_requests;
        let closing = async {
            peer.read_u8().await.unwrap();
            tokio::time::advance(delay).await;
            peer.write_all(sent).await.unwrap();
            drop(peer);
        };
        let idle = IdlePool::default();
        let sending = connection.send(request_with_body(length), None, &idle);
        let was_written = match tokio::join!(sending, closing).0.unwrap_err() {
            SendError::StaleConnection {
                was_request_written,
            } => Some(was_request_written),
            SendError::Closed(_) => None,
            other => panic!("{other}"),
        };
        assert_eq!(
            was_written, expected,
            "{served_requests} {length} {delay:?} {sent:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn silence_in_a_body_is_an_error() {
    let (connection, mut peer) = connection_and_peer().await;
    let idle = IdlePool::default();
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab";
    let (response, sent) = tokio::join!(
        connection.send(request_with_body(3), None, &idle),
        peer.write_all(head)
    );
    sent.unwrap();
    let mut body = response.unwrap().into_body();
    body.max_silence = Some(Duration::from_mins(10));
    let began = clock::now();
    let mut read = 0;
    let error = loop {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
            .await
            .unwrap()
        {
            Ok(frame) => read += frame.into_data().unwrap().len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ConnectionError::Silent(_)), "{error}");
    assert_eq!(
        (read, clock::now() - began >= Duration::from_mins(10)),
        (2, true)
    );
}
