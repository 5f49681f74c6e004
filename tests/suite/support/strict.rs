//! A strict reading of what passes on both sides of the gateway: of requests that a replica got,
//! which no server may read in another way, and of the answers on a client's connection.

use super::fake::Seen;

/// Headers that are for one hop, or that frame a body: a replica may get none of them.
const NEVER: [&str; 13] = [
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
    "expect",
    "forwarded",
    "x-data-parallel-rank",
    "x-vllm-priority",
];

/// One answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub status: u16,
    pub body: String,
}

/// What is wrong with a request as a replica got it. Every line ends in CRLF, every name is a token,
/// one `content-length` of digits says how long the body is, and nothing is for this hop only.
pub(crate) fn unsound(seen: &Seen) -> Result<(), String> {
    let is = |holds: bool, what: &str| {
        if holds { Ok(()) } else { Err(format!("{what} in {:?}", seen.head)) }
    };
    let head = seen.head.strip_suffix("\r\n\r\n").ok_or("no end of the head")?;
    let mut lines = head.split("\r\n");
    let is_clean = |text: &str| !text.bytes().any(|byte| byte < b' ' && byte != b'\t');
    let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    is(request.len() == 3 && request[2] == "HTTP/1.1", "a strange request line")?;
    is(request[1].starts_with('/') && is_clean(request[1]), "a strange path")?;
    is(request[0].bytes().all(is_token), "a strange method")?;
    let mut names = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(format!("no colon in {line:?}"))?;
        is(!name.is_empty() && name.bytes().all(is_token), "a strange name")?;
        is(!name.contains('_'), "a name with an underscore")?;
        is(is_clean(value), "a control character")?;
        names.push(name.to_ascii_lowercase());
        if names.last().is_some_and(|name| name == "content-length") {
            let length = value.trim().parse::<usize>().ok();
            is(length == Some(seen.body.len()), "a strange length")?;
        }
    }
    let count = |name: &str| names.iter().filter(|there| *there == name).count();
    is(count("content-length") == 1, "not one length")?;
    is(count("host") == 1, "not one host")?;
    NEVER.iter().try_for_each(|name| is(count(name) == 0, name))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The answers that came on one connection, one after the other. What cannot be read as one is an
/// error.
pub(crate) fn answers(mut bytes: &[u8]) -> Result<Vec<Answered>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let wrong = |what: &str| format!("{what}: {:?}", String::from_utf8_lossy(bytes));
        let end = memchr::memmem::find(bytes, b"\r\n\r\n").ok_or_else(|| wrong("no head"))? + 4;
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = head.strip_prefix("http/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status: u16 = status.ok_or_else(|| wrong("no status"))?;
        let length = head.split("\r\ncontent-length: ").nth(1);
        let length: usize = match length.and_then(|rest| rest.split("\r\n").next()) {
            _ if status < 200 => 0,
            Some(length) => length.parse().map_err(|_| wrong("a strange length"))?,
            None => return Err(wrong("no length")),
        };
        let body = bytes.get(end..end + length).ok_or_else(|| wrong("cut"))?;
        if status >= 200 {
            all.push(Answered { status, body: String::from_utf8_lossy(body).into_owned() });
        }
        bytes = &bytes[end + length..];
    }
    Ok(all)
}
