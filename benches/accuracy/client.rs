//! The clients: each sends requests, reads the responses, and records the time of each read. A
//! client parses HTTP chunks but no events: the plan contains the byte at which each event ends.

use super::script::{Ending, Plan};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The client's record of a request.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) plan: usize,
    /// The time just before the request was written.
    pub(crate) sent_at: Instant,
    /// The body without chunked framing.
    pub(crate) body: Vec<u8>,
    /// The length of the body after each read, with the time.
    pub(crate) reads: Vec<(usize, Instant)>,
    /// Whether the body ended completely in terms of HTTP.
    pub(crate) is_whole: bool,
    /// The time of the end of the body, of the connection, or of the disconnect.
    pub(crate) ended: Instant,
}

/// One client, with its connection if it can be reused.
pub(crate) struct Client {
    address: SocketAddr,
    idle_connection: Option<TcpStream>,
}

/// The response bytes so far.
#[derive(Default)]
struct Answer {
    raw: Vec<u8>,
    /// Number of bytes of `raw` that have been parsed.
    at: usize,
    body: Vec<u8>,
    framing: Framing,
    is_whole: bool,
}

#[derive(Default, Clone, Copy)]
enum Framing {
    #[default]
    Head,
    /// Before a chunk size.
    Size,
    /// Remaining bytes of a chunk.
    Chunk(usize),
    /// Remaining bytes of a body with a content length.
    Length(usize),
}

/// Time from the response head to an early disconnect.
const EARLY_DISCONNECT_DELAY: Duration = Duration::from_millis(30);

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, idle_connection: None }
    }

    /// Executes the client's part of a plan.
    pub(crate) async fn ask(&mut self, index: usize, plan: &Plan) -> Seen {
        tokio::time::sleep(plan.think).await;
        let mut stream = match self.idle_connection.take() {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await.unwrap(),
        };
        stream.set_nodelay(true).unwrap();
        let (path, length) = (plan.shape.path(), plan.request.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
             x-request-id: {}\r\ncontent-length: {length}\r\n\r\n{}",
            plan.id, plan.request
        );
        let sent_at = clock::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Answer { raw: Vec::with_capacity(128 << 10), ..Answer::default() };
        let mut reads = Vec::new();
        let last_event = plan.last_event();
        let ended = loop {
            let count = stream.read_buf(&mut answer.raw).await.unwrap_or(0);
            let now = clock::now();
            answer.take_in();
            reads.push((answer.body.len(), now));
            if answer.is_whole || count == 0 {
                break now;
            }
            let leaves = match plan.ending {
                Ending::LeavesEarly => !matches!(answer.framing, Framing::Head),
                Ending::LeavesAt(place) => answer.body.len() >= place,
                Ending::LeavesAtLast => answer.body.ends_with(last_event),
                _ => false,
            };
            if leaves {
                if plan.ending == Ending::LeavesEarly {
                    tokio::time::sleep(EARLY_DISCONNECT_DELAY).await;
                }
                break clock::now();
            }
        };
        let is_whole = answer.is_whole;
        self.idle_connection = is_whole.then_some(stream);
        Seen { plan: index, sent_at, body: answer.body, reads, is_whole, ended }
    }
}

impl Answer {
    /// Parses the bytes that have arrived.
    fn take_in(&mut self) {
        while !self.is_whole {
            let rest = &self.raw[self.at..];
            let used = match self.framing {
                Framing::Head => self.head(),
                Framing::Size => {
                    let Some(end) = memchr::memmem::find(rest, b"\r\n") else { return };
                    let size = std::str::from_utf8(&rest[..end]).unwrap();
                    match usize::from_str_radix(size, 16).unwrap() {
                        0 if rest.len() < end + 4 => return,
                        0 => self.is_whole = true,
                        size => self.framing = Framing::Chunk(size),
                    }
                    end + 2
                }
                Framing::Chunk(0) if rest.len() < 2 => return,
                Framing::Chunk(0) => {
                    self.framing = Framing::Size;
                    2
                }
                Framing::Chunk(left) => {
                    let used = self.body_bytes(left);
                    self.framing = Framing::Chunk(left - used);
                    used
                }
                Framing::Length(left) => {
                    let used = self.body_bytes(left);
                    self.framing = Framing::Length(left - used);
                    self.is_whole = left == used;
                    used
                }
            };
            if used == 0 {
                return;
            }
            self.at += used;
        }
    }

    fn head(&mut self) -> usize {
        let Some(end) = memchr::memmem::find(&self.raw, b"\r\n\r\n") else { return 0 };
        let head = String::from_utf8(self.raw[..end].to_vec()).unwrap().to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        self.framing = match length {
            Some(length) => Framing::Length(length.parse().unwrap()),
            None => Framing::Size,
        };
        end + 4
    }

    fn body_bytes(&mut self, most: usize) -> usize {
        let rest = &self.raw[self.at..];
        let used = most.min(rest.len());
        self.body.extend_from_slice(&rest[..used]);
        used
    }
}
