//! The backend executes the plan whose id is in the request, and records the time of each write of the
//! response.

use super::engine;
use super::generated_streams::exchange_case::{Case, Close};
use super::plan::{Plan, Write};
use super::request_reader::read_request;
use bytes::BytesMut;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::UnboundedSender;

/// The measurements of the backend for one request and its response.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) plan: usize,
    /// Whether the request that arrived here requested usage.
    pub(crate) was_usage_requested: bool,
    /// The time at which the backend made each write of the plan.
    pub(crate) writes: Vec<Instant>,
    /// The time of the last write. If the plan closes the connection in the middle, the time of closing it.
    pub(crate) ended: Instant,
    /// The time at which the gateway closed the connection. `None` if the backend did not see that.
    pub(crate) left: Option<Instant>,
}

/// Maximum time that the backend waits for a client to disconnect, if the plan states a disconnect.
const AFTER_DISCONNECT: Duration = Duration::from_secs(2);
const METRICS: &str = "vllm:num_requests_running{model_name=\"m\"} 1\n\
                       vllm:num_requests_waiting{model_name=\"m\"} 0\n\
                       vllm:kv_cache_usage_perc{model_name=\"m\"} 0.1\n";

/// Starts the backend, which executes the plan of each request, and returns its address. Sends the backend's
/// record of each request to `played`.
pub(crate) async fn start(plans: Arc<[Plan]>, played: UnboundedSender<Played>) -> SocketAddr {
    engine::start(move |stream| connection(stream, plans.clone(), played.clone())).await
}

async fn connection(
    stream: TcpStream,
    plans: Arc<[Plan]>,
    played: UnboundedSender<Played>,
) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let mut buffer = BytesMut::with_capacity(4 << 10);
    while let Some((head, body)) = read_request(&mut reader, &mut buffer).await {
        let path = head.split(' ').nth(1).unwrap();
        if let Some(page) = engine::page(path, "m", METRICS) {
            writer.write_all(page.as_bytes()).await?;
            continue;
        }
        let plan = plan_of(&head);
        let mut done = Played {
            plan,
            was_usage_requested: asks_for_usage(&body),
            writes: Vec::new(),
            ended: clock::now(),
            left: None,
        };
        let is_left = play(&plans[plan], &mut done, &mut reader, &mut writer)
            .await
            .is_err();
        done.ended = clock::now();
        done.left = is_left.then_some(done.ended);
        let goes_on = plans[plan].case.close == Close::Whole;
        played.send(done).unwrap();
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// Writes the response of the plan. Returns `Err` if the gateway closes the connection before the end of the
/// response.
async fn play(
    plan: &Plan,
    done: &mut Played,
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
) -> Result<(), ()> {
    let mut send = async |bytes: &[u8]| writer.write_all(bytes).await.map_err(|_| ());
    let Case {
        status,
        content_type,
        stream,
        close,
        ..
    } = &plan.case;
    // The response head is sent at once. The pauses of the plan, which stand for the engine, come after it.
    let head = format!(
        "HTTP/1.1 {status} OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    send(head.as_bytes()).await?;
    for Write { pause, body } in plan.writes.iter().filter(|write| !write.body.is_empty()) {
        stay(*pause, reader).await?;
        let size = format!("{:x}\r\n", body.len());
        let chunk = [size.as_bytes(), &stream.bytes[body.clone()], b"\r\n"].concat();
        done.writes.push(clock::now());
        send(&chunk).await?;
    }
    match close {
        Close::Whole => send(b"0\r\n\r\n").await,
        Close::Broken => Ok(()),
        Close::Left => stay(AFTER_DISCONNECT, reader).await,
    }
}

/// Waits for `pause`. Returns `Err` if the connection becomes readable meanwhile: the gateway sends nothing
/// during a response, so it has closed the connection.
async fn stay(pause: Duration, reader: &mut OwnedReadHalf) -> Result<(), ()> {
    if pause.is_zero() {
        return Ok(());
    }
    let mut nothing = [0];
    tokio::select! {
        () = tokio::time::sleep(pause) => Ok(()),
        _ = reader.read(&mut nothing) => Err(()),
    }
}

fn plan_of(head: &str) -> usize {
    let id = head
        .lines()
        .find_map(|line| line.strip_prefix("x-request-id: accuracy-"));
    id.unwrap().parse().unwrap()
}

fn asks_for_usage(body: &[u8]) -> bool {
    let request: Value = serde_json::from_slice(body).unwrap();
    request["stream_options"]["include_usage"] == true
}
