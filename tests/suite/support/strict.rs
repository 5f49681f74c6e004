//! Strict parsers for both sides of the gateway. One checks requests that a backend received: no server may
//! parse them in another way. The other parses the responses on a client connection.

use super::scripted_backend::Seen;

/// Headers that a client may send but that must not reach a backend: hop-by-hop headers, framing headers, and
/// headers that only the gateway may set.
const FORBIDDEN_HEADERS: [&str; 13] = [
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

/// The status and the body of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub status: u16,
    pub body: String,
}

/// Checks a forwarded request. Each line must end with CRLF, and each header name must be a token. There must
/// be one `content-length`, with the length of the body in digits, and no header of [`FORBIDDEN_HEADERS`].
/// Returns a description of the first violation.
pub(crate) fn check_forwarded_request(seen: &Seen) -> Result<(), String> {
    let require = |holds: bool, problem: &str| {
        if holds {
            Ok(())
        } else {
            Err(format!("{problem} in {:?}", seen.head))
        }
    };
    let head = seen
        .head
        .strip_suffix("\r\n\r\n")
        .ok_or("no end of the head")?;
    let mut lines = head.split("\r\n");
    let is_clean = |text: &str| !text.bytes().any(|byte| byte < b' ' && byte != b'\t');
    let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    require(
        request.len() == 3 && request[2] == "HTTP/1.1",
        "an invalid request line",
    )?;
    require(
        request[1].starts_with('/') && is_clean(request[1]),
        "an invalid path",
    )?;
    require(request[0].bytes().all(is_token), "an invalid method")?;
    let mut names = Vec::new();
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or(format!("no colon in {line:?}"))?;
        require(
            !name.is_empty() && name.bytes().all(is_token),
            "an invalid name",
        )?;
        require(!name.contains('_'), "a name with an underscore")?;
        require(is_clean(value), "a control character")?;
        names.push(name.to_ascii_lowercase());
        if names.last().is_some_and(|name| name == "content-length") {
            let length = value.trim().parse::<usize>().ok();
            require(length == Some(seen.body.len()), "an invalid length")?;
        }
    }
    let count = |name: &str| names.iter().filter(|existing| *existing == name).count();
    require(count("content-length") == 1, "no length or several")?;
    require(count("host") == 1, "no host or several")?;
    FORBIDDEN_HEADERS
        .iter()
        .try_for_each(|name| require(count(name) == 0, name))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Parses the final responses on a connection. Returns them in order, or `Err` if the bytes are not valid
/// responses.
pub(crate) fn answers(mut bytes: &[u8]) -> Result<Vec<Answered>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let error_at = |problem: &str| format!("{problem}: {:?}", String::from_utf8_lossy(bytes));
        let end = memchr::memmem::find(bytes, b"\r\n\r\n").ok_or_else(|| error_at("no head"))? + 4;
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = head
            .strip_prefix("http/1.")
            .and_then(|rest| rest.get(2..5)?.parse().ok());
        let status: u16 = status.ok_or_else(|| error_at("no status"))?;
        let length = head.split("\r\ncontent-length: ").nth(1);
        let length: usize = match length.and_then(|rest| rest.split("\r\n").next()) {
            _ if status < 200 => 0,
            Some(length) => length.parse().map_err(|_| error_at("an invalid length"))?,
            None => return Err(error_at("no length")),
        };
        let body = bytes
            .get(end..end + length)
            .ok_or_else(|| error_at("truncated"))?;
        if status >= 200 {
            all.push(Answered {
                status,
                body: String::from_utf8_lossy(body).into_owned(),
            });
        }
        bytes = &bytes[end + length..];
    }
    Ok(all)
}
