//! Mutates requests in the ways of fuzzers for HTTP servers.

use fastrand::Rng;

/// Tokens of message framing, and bytes that parsers have mistaken for them.
const TOKENS: [&str; 34] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    "\t",
    " ",
    "\x0b",
    "\x7f",
    "\u{2028}",
    ":",
    ";",
    ",",
    "/",
    "%0d%0a",
    "\r\n\r\n",
    "0\r\n\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding:\x0bchunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive, content-length\r\n",
    "Upgrade: h2c\r\n",
    "Host: other\r\n",
    "HTTP/1.0",
    "HTTP/2.0",
    "GET /health HTTP/1.1\r\nhost: g\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "ffffffffffffffff",
    "7fffffff\r\n",
    "-1",
];

/// Maximum number of mutations per request.
const MAX_MUTATIONS: usize = 4;

pub(super) struct Mutator {
    bases: Vec<Vec<u8>>,
}

impl Mutator {
    pub(super) fn new(bases: Vec<Vec<u8>>) -> Self {
        Self { bases }
    }

    /// Returns a random one of the base requests, with one to four mutations.
    pub(super) fn mutate(&self, random: &mut Rng) -> Vec<u8> {
        let mut bytes = self.base(random).to_vec();
        for _ in 0..random.usize(1..=MAX_MUTATIONS) {
            match random.u8(0..4) {
                0 => change_bytes(&mut bytes, random),
                1 => change_lines(&mut bytes, random),
                2 => put_token(&mut bytes, random),
                _ => self.splice(&mut bytes, random),
            }
        }
        bytes
    }

    fn base(&self, random: &mut Rng) -> &[u8] {
        &self.bases[random.usize(..self.bases.len())]
    }

    /// Keeps the beginning of `bytes` and appends the end of another base request.
    fn splice(&self, bytes: &mut Vec<u8>, random: &mut Rng) {
        let second = self.base(random);
        bytes.truncate(random.usize(..=bytes.len()));
        bytes.extend_from_slice(&second[random.usize(..=second.len())..]);
    }
}

/// Draws a random range of at most 16 bytes within `length`.
fn range(length: usize, random: &mut Rng) -> std::ops::Range<usize> {
    let start = random.usize(..=length);
    start..(start + random.usize(..=16)).min(length)
}

fn change_bytes(bytes: &mut Vec<u8>, random: &mut Rng) {
    let range = range(bytes.len(), random);
    let Some(byte) = bytes.get_mut(range.start) else {
        return;
    };
    match random.u8(0..6) {
        0 => *byte ^= 1 << random.u8(0..8),
        1 => *byte = random.u8(..),
        2 => byte.make_ascii_uppercase(),
        3 => bytes.insert(range.start, random.u8(..)),
        4 => drop(bytes.drain(range)),
        _ => {
            let again = bytes[range.clone()].to_vec();
            bytes.splice(range.start..range.start, again);
        }
    }
}

/// Removes, duplicates or swaps lines, changes a line ending, or changes a number in a line.
fn change_lines(bytes: &mut Vec<u8>, random: &mut Rng) {
    let mut lines: Vec<Vec<u8>> = bytes
        .split_inclusive(|b| *b == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    if lines.is_empty() {
        return;
    }
    let (first, second) = (random.usize(..lines.len()), random.usize(..lines.len()));
    match random.u8(0..5) {
        0 => drop(lines.remove(first)),
        1 => lines.insert(second, lines[first].clone()),
        2 => lines.swap(first, second),
        3 => {
            let end = lines[first].iter().position(|byte| *byte == b'\r');
            end.map(|at| lines[first].remove(at));
        }
        _ => {
            for digit in lines[first].iter_mut().filter(|byte| byte.is_ascii_digit()) {
                *digit = random.u8(b'0'..=b'9');
            }
        }
    }
    *bytes = lines.concat();
}

/// Inserts a token of [`TOKENS`], or overwrites some bytes with it.
fn put_token(bytes: &mut Vec<u8>, random: &mut Rng) {
    let token = TOKENS[random.usize(..TOKENS.len())];
    let range = range(bytes.len(), random);
    let end = if random.bool() {
        range.start
    } else {
        range.end
    };
    bytes.splice(range.start..end, token.bytes());
}
