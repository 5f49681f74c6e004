//! Floods of HTTP/2 frames that cost the server more than the client.

use super::valid_headers;
use crate::proxy::{assert_only_the_backend_stops, flooding};
use crate::smuggling::{echo_gateway, victim};
use crate::support::raw_http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Ended, HEADERS, Http2, PING,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, encode_headers, frame,
};
use crate::support::strict::answers;
use crate::support::test_gateway::Running;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);
const FRAMES_PER_WRITE: usize = 100;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Number of frames per flood. The environment variable `HTTP2_FRAMES` overrides it.
fn frames() -> usize {
    std::env::var("HTTP2_FRAMES").map_or(5_000, |frames| frames.parse().unwrap())
}

#[derive(Debug)]
struct Flooded {
    /// Number of frames that the client sent.
    sent: usize,
    /// How the connection ended. `None`: the connection stayed open, and a valid request on it was served.
    ended: Option<Ended>,
}

/// Sends the frames that `next` creates until the connection closes or all frames are sent. Meanwhile it
/// reads the frames of the gateway. If the connection is still open, it then sends a valid request on another
/// stream.
async fn flood(gateway: &Running, next: impl Fn(usize) -> Vec<u8>) -> Flooded {
    let Http2 {
        mut writer,
        mut reader,
    } = Http2::connect(gateway.addr, &[]).await;
    let (all, mut sent) = (frames(), 0);
    let last = u32::try_from(4 * all + 1).unwrap();
    let (_, expected) = victim("last");
    let writing = async {
        while sent < all {
            let piece: Vec<u8> = (sent..sent + FRAMES_PER_WRITE).flat_map(&next).collect();
            if writer.write_all(&piece).await.is_err() {
                return;
            }
            sent += FRAMES_PER_WRITE;
        }
        let head = frame(
            HEADERS,
            END_HEADERS,
            last,
            &encode_headers(&valid_headers()),
        );
        let body = frame(DATA, END_STREAM, last, expected.body.as_bytes());
        // Writing may fail, because the gateway may already have closed the connection.
        let _ = writer.write_all(&[head, body].concat()).await;
    };
    let both = async { tokio::join!(writing, reader.ended(last)).1 };
    let ended = tokio::time::timeout(WAIT_TIMEOUT, both)
        .await
        .expect("the flood ends within the timeout");
    let ended = (ended != Ended::Answered(expected.body.clone())).then_some(ended);
    Flooded { sent, ended }
}

/// Asserts that the gateway serves another client.
async fn assert_serves(gateway: &Running) {
    let (request, expected) = victim("other");
    let answer = tokio::time::timeout(WAIT_TIMEOUT, gateway.raw(request))
        .await
        .expect("an answer");
    assert_eq!(answers(&answer), Ok(vec![expected]));
}

#[tokio::test]
async fn rapid_resets_close_the_connection_early() {
    let (fake, gateway) = echo_gateway().await;
    let flooded = flood(&gateway, |number| {
        let stream = u32::try_from(2 * number + 1).unwrap();
        [
            frame(
                HEADERS,
                END_HEADERS,
                stream,
                &encode_headers(&valid_headers()),
            ),
            frame(DATA, END_STREAM, stream, br#"{"model":"tiny"}"#),
            frame(RST_STREAM, 0, stream, &CANCEL),
        ]
        .concat()
    })
    .await;
    let reached = fake.take_received().len();
    println!(
        "{flooded:?}, of {} frames; {reached} requests reached the backend",
        flooded.sent
    );
    assert!(
        matches!(
            flooded.ended,
            Some(Ended::Refused(ENHANCE_YOUR_CALM) | Ended::Closed)
        ),
        "{flooded:?}"
    );
    assert!(reached <= 220, "{reached} requests reached the backend");
    assert_serves(&gateway).await;
}

#[tokio::test]
async fn endless_http2_headers_close_the_client_connection() {
    let (fake, gateway) = echo_gateway().await;
    let flooded = flood(&gateway, |number| match number {
        0 => frame(HEADERS, 0, 1, &encode_headers(&valid_headers())),
        _ => frame(
            CONTINUATION,
            0,
            1,
            &encode_headers(&[("x", "a".repeat(16_000).as_str())]),
        ),
    })
    .await;
    println!("{flooded:?}");
    assert!(
        flooded.ended.is_some() && flooded.sent < frames(),
        "{flooded:?}"
    );
    assert_serves(&gateway).await;
    assert!(
        fake.seen()
            .iter()
            .all(|seen| seen.body.ends_with(b"\"other\"}"))
    );
}

#[tokio::test]
async fn floods_of_frames_affect_nobody_else() {
    type Make = fn(usize) -> Vec<u8>;
    let (_fake, gateway) = echo_gateway().await;
    let floods: [(&str, Make); 4] = [
        ("PING", |_| frame(PING, 0, 0, &[7; 8])),
        ("SETTINGS", |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("WINDOW_UPDATE", |_| {
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
        }),
        ("empty DATA", |number| match number {
            0 => frame(HEADERS, END_HEADERS, 1, &encode_headers(&valid_headers())),
            _ => frame(DATA, 0, 1, b""),
        }),
    ];
    for (name, make) in floods {
        let flooded = flood(&gateway, make).await;
        println!("{name}: {flooded:?}");
        assert_serves(&gateway).await;
    }
}

#[tokio::test]
async fn invalid_http2_window_updates_are_rejected() {
    let (fake, gateway) = echo_gateway().await;
    for wrong in [
        frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
        frame(WINDOW_UPDATE, 0, 0, &[127, 255, 255, 255]),
        frame(SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255]),
        frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
        frame(SETTINGS, 0, 0, &[0]),
        frame(PING, 0, 0, &[0]),
        frame(DATA, 0, 0, b"x"),
        frame(HEADERS, END_HEADERS, 2, &encode_headers(&valid_headers())),
    ] {
        let mut client = Http2::connect(gateway.addr, &[]).await;
        client.send(&wrong).await;
        let ended = tokio::time::timeout(WAIT_TIMEOUT, client.reader.ended(1))
            .await
            .expect("an end");
        assert!(
            matches!(ended, Ended::Refused(1..) | Ended::Closed),
            "{wrong:?}: {ended:?}"
        );
    }
    assert_serves(&gateway).await;
    assert_eq!(fake.seen().len(), 1);
}

/// A client that never opens its HTTP/2 flow-control window is a slow client. The gateway must stop reading
/// from the backend, and close the backend connection when the client disconnects.
#[tokio::test]
async fn a_closed_window_stops_reading() {
    let (flooding, gateway) = flooding().await;
    let mut client = Http2::connect(gateway.addr, &[(4, 0)]).await;
    let head = frame(HEADERS, END_HEADERS, 1, &encode_headers(&valid_headers()));
    client
        .send(&[head, frame(DATA, END_STREAM, 1, br#"{"model":"tiny"}"#)].concat())
        .await;
    while client.reader.next().await.expect("a head").kind != HEADERS {}
    assert_only_the_backend_stops(&flooding, &gateway, client).await;
}
