//! Scripts of the backend for the section `behavior`: streams that show what a proxy does to unusual events.

use super::engine::{STREAM_HEAD, framed};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// In a prompt, this text precedes the number of a script. The number is in the prompt, because some routers
/// remove unknown fields.
pub(crate) const SCRIPT: &str = "script number ";
/// Streams that a server may send, as different from usual ones as each comment says. Their format is not
/// that of one provider, because other programs treat known providers by name.
pub(crate) const STREAMS: [&str; 6] = [
    // Members of the JSON object in another order, and members that OpenAI does not define.
    "data: {\"model\":\"tiny\",\"x\":{\"y\":[1,2]},\"object\":\"chat.completion.chunk\",\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null,\"index\":0,\"token_ids\":[7]}],\"created\":1}\n\ndata: {\"model\":\"tiny\",\"object\":\"chat.completion.chunk\",\"id\":\"a\",\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"index\":0}],\"created\":1}\n\ndata: [DONE]\n\n",
    // SSE comments, carriage returns before line feeds, event ids.
    ": OPENROUTER PROCESSING\r\n\r\nid: 1\r\ndata: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n",
    // Events with a name (`event:`).
    "event: progress\ndata: {\"prompt\":0.5}\n\nevent: message\ndata: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    // Escapes and characters that a proxy would write differently if it decoded and encoded them again.
    "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u00e4\\/ä\\ud83d\\ude00\"},\"finish_reason\":\"stop\"}],\"logprob\":-0.10}\n\ndata: [DONE]\n\n",
    // No `[DONE]` at the end.
    "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\n",
    // An error event in the stream.
    "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\ndata: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"code\":500}}\n\ndata: [DONE]\n\n",
];
/// The scripts of streams that break after their first event: the connection is closed, or reset.
pub(crate) const BROKEN: [usize; 2] = [100, 101];
/// The script of a stream with one event of a channel that no API defines. After it, the stream is silent.
pub(crate) const UNKNOWN: usize = 102;
const UNKNOWN_EVENT: &str = "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"thoughts_v9\":\"Hm\"},\"finish_reason\":null}]}\n\n";
/// When the backend saw that the client of the script [`UNKNOWN`] disconnected. `None`: it has not seen that
/// yet.
pub(crate) static LEFT: Mutex<Option<Instant>> = Mutex::new(None);

/// Plays the backend: writes the response of the script with this number.
pub(crate) async fn play(stream: &mut TcpStream, number: usize) -> io::Result<()> {
    stream.write_all(STREAM_HEAD.as_bytes()).await?;
    if let Some(text) = STREAMS.get(number) {
        return stream
            .write_all(format!("{}0\r\n\r\n", framed(text)).as_bytes())
            .await;
    }
    let event = if number == UNKNOWN {
        UNKNOWN_EVENT
    } else {
        STREAMS[0]
            .split_inclusive("\n\n")
            .next()
            .unwrap_or_default()
    };
    stream.write_all(framed(event).as_bytes()).await?;
    if number == UNKNOWN {
        let _ = stream.read_u8().await;
        *LEFT.lock().unwrap() = Some(clock::now());
    } else {
        // Without this pause, the end of the connection could arrive before the first event.
        sleep(Duration::from_millis(50)).await;
        if number == BROKEN[1] {
            socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}
