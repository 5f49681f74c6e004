//! The clients: each asks, reads, and notes the moment of each read. A client knows HTTP chunks
//! but no events: the plan knows at which byte of the body an event ends.

use super::script::{Ending, Plan};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a client saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) plan: usize,
    /// Just before the request was written.
    pub(crate) asked: Instant,
    /// The body, without the framing of its chunks.
    pub(crate) body: Vec<u8>,
    /// How long the body was after each read, and when.
    pub(crate) reads: Vec<(usize, Instant)>,
    /// The body ended as HTTP says it should.
    pub(crate) is_whole: bool,
    /// When it did, or the connection ended, or the client left.
    pub(crate) ended: Instant,
}

/// One client, with its connection if that can be used again.
pub(crate) struct Client {
    address: SocketAddr,
    kept: Option<TcpStream>,
}

/// The bytes of an answer so far.
#[derive(Default)]
struct Answer {
    raw: Vec<u8>,
    /// How much of `raw` has been read.
    at: usize,
    body: Vec<u8>,
    framing: Framing,
    is_whole: bool,
}

#[derive(Default, Clone, Copy)]
enum Framing {
    #[default]
    Head,
    /// Before the size of a chunk.
    Size,
    /// Bytes left of a chunk.
    Chunk(usize),
    /// Bytes left of a body of known length.
    Length(usize),
}

/// How long a client that leaves early stays after the head.
const EARLY: Duration = Duration::from_millis(30);

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, kept: None }
    }

    /// Plays the client's part of a plan.
    pub(crate) async fn ask(&mut self, index: usize, plan: &Plan) -> Seen {
        tokio::time::sleep(plan.think).await;
        let mut stream = match self.kept.take() {
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
        let asked = clock::now();
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
                    tokio::time::sleep(EARLY).await;
                }
                break clock::now();
            }
        };
        let is_whole = answer.is_whole;
        self.kept = is_whole.then_some(stream);
        Seen { plan: index, asked, body: answer.body, reads, is_whole, ended }
    }
}

impl Answer {
    /// Reads on in what has come.
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
