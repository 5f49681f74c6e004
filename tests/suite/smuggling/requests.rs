//! The requests of the smuggling tests, grouped by what is unusual in them, with the expected result of each.

use super::CHAT;

/// A request as raw bytes, and what must happen to it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) verdict: Verdict,
    /// Texts in lower case that must not reach the backend.
    pub(crate) gone: &'static [&'static str],
}

/// The expected result of a request and of its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict {
    /// The gateway rejects the request with this status. It does not reach the backend.
    Refused(u16),
    /// The request and the next one on the connection reach the backend.
    Served,
    /// The request reaches the backend. Then the gateway closes the connection.
    ServedLast,
    /// The request reaches the backend. The gateway rejects the bytes that follow it.
    ServedThenRefused,
}

impl Verdict {
    /// Number of requests of the case itself that the backend receives. The valid requests around it do not
    /// count.
    pub(crate) fn requests(self) -> usize {
        usize::from(!matches!(self, Self::Refused(_)))
    }
}

use Verdict::{Refused, Served, ServedLast, ServedThenRefused};

/// The body of the requests that the gateway must serve.
pub(crate) const BODY: &str = r#"{"model":"tiny","user":"attack"}"#;
/// A request inside bytes that can be a body. No server may read it as a request.
const HIDDEN: &str = "GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n";

pub(crate) fn all() -> Vec<Case> {
    let groups = [
        lengths(),
        encodings(),
        lines(),
        chunks(),
        heads(),
        targets(),
        hops(),
    ];
    groups.into_iter().flatten().collect()
}

fn case(name: &'static str, verdict: Verdict, bytes: impl Into<Vec<u8>>) -> Case {
    Case {
        name,
        bytes: bytes.into(),
        verdict,
        gone: &[],
    }
}

/// Builds a request with these header lines, followed by `rest`.
fn with(lines: &str, rest: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{lines}\r\n{rest}")
}

/// Builds a request with these header lines, and with [`BODY`] and its content length.
fn whole(lines: &str) -> String {
    with(&format!("{lines}content-length: {}\r\n", BODY.len()), BODY)
}

/// Returns [`BODY`] as one HTTP chunk, followed by the last chunk.
fn chunked() -> String {
    format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len())
}

/// Builds requests with forms of `Content-Length` that servers have parsed differently.
fn lengths() -> Vec<Case> {
    let length = BODY.len();
    let sent = |value: &str| with(&format!("content-length: {value}\r\n"), BODY);
    let twice = |one: usize, two: usize| {
        with(
            &format!("content-length: {one}\r\ncontent-length: {two}\r\n"),
            BODY,
        )
    };
    vec![
        case("a length", Served, sent(&length.to_string())),
        case(
            "a length with whitespace around it",
            Served,
            sent(&format!("\t {length} \t")),
        ),
        case("a length with zeros", Served, sent(&format!("000{length}"))),
        case("two lengths", Refused(400), twice(length, length + 1)),
        case(
            "two lengths, the first one short",
            Refused(400),
            twice(1, length),
        ),
        case("the same length twice", Refused(400), twice(length, length)),
        case(
            "a list of lengths",
            Refused(400),
            sent(&format!("{length}, {length}")),
        ),
        case(
            "a list of different lengths",
            Refused(400),
            sent(&format!("{length}, 0")),
        ),
        case(
            "a length with a sign",
            Refused(400),
            sent(&format!("+{length}")),
        ),
        case("a negative length", Refused(400), sent("-1")),
        case("a length in hexadecimal", Refused(400), sent("0x20")),
        case("a length with an exponent", Refused(400), sent("3e1")),
        case(
            "a length with a fraction",
            Refused(400),
            sent(&format!("{length}.0")),
        ),
        case("a length with an underscore", Refused(400), sent("3_2")),
        case("a length with a space in it", Refused(400), sent("3 2")),
        case(
            "a length with a comma behind it",
            Refused(400),
            sent(&format!("{length},")),
        ),
        case(
            "a length in quotes",
            Refused(400),
            sent(&format!("\"{length}\"")),
        ),
        case("no digits of a length", Refused(400), sent("")),
        case(
            "digits of another script",
            Refused(400),
            sent("\u{663}\u{662}"),
        ),
        case(
            "a length of 2^64",
            Refused(400),
            sent("18446744073709551616"),
        ),
        case(
            "a length of 2^64 plus the body length",
            Refused(400),
            sent("18446744073709551648"),
        ),
        case(
            "a length of 2^63",
            Refused(413),
            sent("9223372036854775808"),
        ),
        case(
            "a length that is too short",
            ServedThenRefused,
            with(
                &format!("content-length: {length}\r\n"),
                &format!("{BODY}0\r\n\r\n"),
            ),
        ),
    ]
}

/// Builds requests with forms of `Transfer-Encoding`, alone and together with a content length.
fn encodings() -> Vec<Case> {
    let encoded = |line: &str| with(&format!("{line}\r\n"), &chunked());
    let length = |value: &str, body: &str| {
        let te = "transfer-encoding: chunked\r\n";
        [
            with(&format!("content-length: {value}\r\n{te}"), body),
            with(&format!("{te}content-length: {value}\r\n"), body),
        ]
    };
    let [cl_te, te_cl] = length("5", &format!("0\r\n\r\n{HIDDEN}"));
    let [zero_te, te_zero] = length("0", &chunked());
    let [bad_te, te_bad] = length("x", &chunked());
    let refused = [
        ("an unknown encoding", "transfer-encoding: xchunked"),
        ("identity", "transfer-encoding: identity"),
        (
            "chunked, then identity",
            "transfer-encoding: chunked, identity",
        ),
        (
            "identity, then chunked",
            "transfer-encoding: identity, chunked",
        ),
        ("gzip, then chunked", "transfer-encoding: gzip, chunked"),
        ("chunked twice", "transfer-encoding: chunked, chunked"),
        (
            "two encodings",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        ),
        (
            "an encoding and identity",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        ),
        ("a comma before", "transfer-encoding: ,chunked"),
        ("a comma after", "transfer-encoding: chunked,"),
        ("a parameter", "transfer-encoding: chunked;q=1"),
        ("in quotes", "transfer-encoding: \"chunked\""),
        ("a vertical tab before", "transfer-encoding: \x0bchunked"),
        ("a form feed before", "transfer-encoding: \x0cchunked"),
        ("a NUL behind", "transfer-encoding: chunked\0"),
        (
            "a letter of another script",
            "transfer-encoding: ch\u{fc}nked",
        ),
        ("no encoding", "transfer-encoding:"),
        ("a space before the colon", "transfer-encoding : chunked"),
        ("a tab before the colon", "transfer-encoding\t: chunked"),
        ("a NUL before the colon", "transfer-encoding\0: chunked"),
        ("a space before the name", " transfer-encoding: chunked"),
        (
            "a vertical tab before the name",
            "\x0btransfer-encoding: chunked",
        ),
        ("folded", "transfer-encoding:\r\n chunked"),
        (
            "folded after another",
            "x: a\r\n\ttransfer-encoding: chunked",
        ),
        ("after a bare LF", "x: a\ntransfer-encoding: chunked"),
        ("after a bare CR", "x: a\rtransfer-encoding: chunked"),
        ("behind CR CR LF", "x: a\r\r\ntransfer-encoding: chunked"),
    ];
    let old = with("transfer-encoding: chunked\r\n", &chunked()).replace("HTTP/1.1", "HTTP/1.0");
    let mut cases = vec![
        case("chunks", Served, encoded("transfer-encoding: chunked")),
        case(
            "chunked in upper case",
            Served,
            encoded("TRANSFER-ENCODING:\tCHUNKED "),
        ),
        case("a length, then chunks", Refused(400), cl_te),
        case("chunked, then a length", Refused(400), te_cl),
        case("a length of zero, then chunked", Refused(400), zero_te),
        case("chunked, then a length of zero", Refused(400), te_zero),
        case("an invalid length, then chunked", Refused(400), bad_te),
        case("chunked, then an invalid length", Refused(400), te_bad),
        case("chunks in HTTP/1.0", Refused(400), old),
    ];
    cases.extend(refused.map(|(name, line)| case(name, Refused(400), encoded(line))));
    let mut hidden = case(
        "an underscore in the name",
        Served,
        whole("transfer_encoding: chunked\r\n"),
    );
    hidden.gone = &["chunked"];
    cases.push(hidden);
    cases
}

/// Builds requests with unusual line endings, and with characters that other parsers treat as line endings.
fn lines() -> Vec<Case> {
    let plain = whole("");
    let head = plain.len() - BODY.len();
    let first = plain.find('\n').unwrap_or_default();
    let put = |at: usize, text: &str| format!("{}{text}{}", &plain[..at], &plain[at..]);
    let mut latin = whole("x: a#\r\n").into_bytes();
    latin
        .iter_mut()
        .filter(|byte| **byte == b'#')
        .for_each(|byte| *byte = 0xe4);
    let bare = format!("{}{BODY}", plain[..head].replace("\r\n", "\n"));
    vec![
        case("bare LF everywhere", Refused(400), bare),
        case(
            "bare LF after the request line",
            Refused(400),
            plain.replacen("\r\n", "\n", 1),
        ),
        case("bare LF after a header", Refused(400), whole("x: a\n")),
        case(
            "bare LF at the end",
            Refused(400),
            with("content-length: 0\r\n", "").replace("\r\n\r\n", "\r\n\n"),
        ),
        case("LF CR", Refused(400), plain.replacen("\r\n", "\n\r", 1)),
        case(
            "CR CR LF",
            Refused(400),
            plain.replacen("\r\n", "\r\r\n", 1),
        ),
        case("a bare CR in a value", Refused(400), whole("x: a\rb\r\n")),
        case("a NUL in a value", Refused(400), whole("x: a\0b\r\n")),
        case("a NUL in a name", Refused(400), whole("x\0: a\r\n")),
        case("a NUL at the start", Refused(400), format!("\0{plain}")),
        case("a DEL in a value", Refused(400), whole("x: a\x7fb\r\n")),
        case("an ESC in a value", Refused(400), whole("x: a\x1bb\r\n")),
        case("a folded header", Refused(400), whole("x: a\r\n b\r\n")),
        case(
            "a folded length",
            Refused(400),
            with("content-length: 2\r\n x\r\n", BODY),
        ),
        case(
            "a first header that is folded",
            Refused(400),
            put(first + 1, " x: a\r\n"),
        ),
        case("a header without a colon", Refused(400), whole("x\r\n")),
        case("a header without a name", Refused(400), whole(": a\r\n")),
        case("a name in brackets", Refused(400), whole("x(a): a\r\n")),
        case(
            "a name of another script",
            Refused(400),
            whole("x\u{e4}: a\r\n"),
        ),
        case("a blank line before it", Served, format!("\r\n{plain}")),
        case(
            "two blank lines before it",
            Served,
            format!("\r\n\r\n{plain}"),
        ),
        case("a bare LF before it", Refused(400), format!("\n{plain}")),
        case("a space before it", Refused(400), format!(" {plain}")),
        case("an empty header", Served, whole("x:\r\n")),
        case("Latin-1 in a value", Served, latin),
    ]
}

/// Builds requests with chunked bodies that servers have parsed differently.
#[expect(clippy::too_many_lines, reason = "one table of cases")]
fn chunks() -> Vec<Case> {
    let length = BODY.len();
    let sent = |body: &str| with("transfer-encoding: chunked\r\n", body);
    let end = "0\r\n\r\n";
    let sized = |size: &str| sent(&format!("{size}\r\n{BODY}\r\n{end}"));
    let (half, rest) = BODY.split_at(length / 2);
    let two = format!(
        "{:X}\r\n{half}\r\n{:x}\r\n{rest}\r\n{end}",
        half.len(),
        rest.len()
    );
    let whole = |more: &str| sent(&format!("{length:x}\r\n{BODY}{more}"));
    vec![
        case("two chunks", Served, sent(&two)),
        case(
            "a size with zeros",
            Served,
            sized(&format!("000{length:x}")),
        ),
        case(
            "an extension",
            Served,
            sized(&format!("{length:x};a=\"b\"")),
        ),
        case(
            "a trailer",
            Served,
            whole("\r\n0\r\nx: a\r\ncontent-length: 9\r\n\r\n"),
        ),
        case(
            "a size and a bare LF",
            Refused(400),
            sent(&format!("{length:x}\n{BODY}\r\n{end}")),
        ),
        case(
            "a size and a bare CR",
            Refused(400),
            sent(&format!("{length:x}\r{BODY}\r\n{end}")),
        ),
        case("a size of 2^64", Refused(400), sized("10000000000000020")),
        case(
            "a size with a prefix",
            Refused(400),
            sized(&format!("0x{length:x}")),
        ),
        case(
            "a size with a sign",
            Refused(400),
            sized(&format!("+{length:x}")),
        ),
        case("a negative size", Refused(400), sized("-1")),
        case("a size with an underscore", Refused(400), sized("2_0")),
        case(
            "a size with a space after it",
            Refused(400),
            sized(&format!("{length:x} ")),
        ),
        case(
            "a size with a space before it",
            Refused(400),
            sized(&format!(" {length:x}")),
        ),
        case(
            "a size with a tab after it",
            Refused(400),
            sized(&format!("{length:x}\t")),
        ),
        case("no size", Refused(400), sized("")),
        case("an extension without a size", Refused(400), sized(";a")),
        case(
            "an extension and a bare LF",
            Refused(400),
            sent(&format!("{length:x};a\n{BODY}\r\n{end}")),
        ),
        case(
            "an extension with a LF in it",
            Refused(400),
            sized(&format!("{length:x};a\nb")),
        ),
        case(
            "an extension with a CR in it",
            Refused(400),
            sized(&format!("{length:x};a\rb")),
        ),
        case("no line end after a chunk", Refused(400), whole(end)),
        case(
            "a bare LF after a chunk",
            Refused(400),
            whole(&format!("\n{end}")),
        ),
        case(
            "a bare CR after a chunk",
            Refused(400),
            whole(&format!("\r{end}")),
        ),
        case(
            "two more bytes after a chunk",
            Refused(400),
            whole(&format!("ab\r\n{end}")),
        ),
        case(
            "a chunk that is longer than its size",
            Refused(400),
            sent(&format!("1\r\n{BODY}\r\n{end}")),
        ),
        case(
            "a bare LF after the last chunk",
            Refused(400),
            whole("\r\n0\n\r\n"),
        ),
        case("a bare LF at the end", Refused(400), whole("\r\n0\r\n\n")),
        case(
            "a bare LF in a trailer",
            Refused(400),
            whole("\r\n0\r\nx: a\n\r\n"),
        ),
    ]
}

/// Builds requests with unusual versions, methods and hosts.
fn heads() -> Vec<Case> {
    let version = |version: &str| whole("").replacen("HTTP/1.1", version, 1);
    let host = |lines: &str| whole("").replacen("host: g\r\n", lines, 1);
    let method = |method: &str| whole("").replacen("POST", method, 1);
    let long = format!("x: {}\r\n", "a".repeat(70_000));
    let tunnel = "CONNECT g:80 HTTP/1.1\r\nhost: g:80\r\n\r\n";
    vec![
        case("HTTP/1.0", ServedLast, version("HTTP/1.0")),
        case(
            "HTTP/1.0 without a host",
            ServedLast,
            host("").replacen("/1.1", "/1.0", 1),
        ),
        case(
            "HTTP/1.0 that is kept alive",
            Served,
            whole("connection: keep-alive\r\n").replacen("/1.1", "/1.0", 1),
        ),
        case("HTTP/1.2", Refused(400), version("HTTP/1.2")),
        case("HTTP/2.0", Refused(400), version("HTTP/2.0")),
        case("HTTP/0.9", Refused(400), version("HTTP/0.9")),
        case(
            "no version",
            Refused(400),
            whole("").replacen(" HTTP/1.1", "", 1),
        ),
        case("a version in lower case", Refused(400), version("http/1.1")),
        case(
            "a version with a zero more",
            Refused(400),
            version("HTTP/1.10"),
        ),
        case(
            "a version of another protocol",
            Refused(400),
            version("ICAP/1.1"),
        ),
        case("two spaces after the method", Refused(400), method("POST ")),
        case("a tab after the method", Refused(400), method("POST\t")),
        case("a method in brackets", Refused(400), method("(POST)")),
        case("a method in lower case", Refused(405), method("post")),
        case("an unknown method", Refused(405), method("FETCH")),
        case("TRACE", Refused(405), method("TRACE")),
        case("a tunnel", Refused(405), tunnel),
        case("a tunnel with a body", Refused(405), method("CONNECT")),
        case("the beginning of HTTP/2", Refused(405), method("PRI")),
        case("no host", Refused(400), host("")),
        case("two hosts", Refused(400), host("host: g\r\nhost: h\r\n")),
        case(
            "the same host twice",
            Refused(400),
            host("host: g\r\nhost: g\r\n"),
        ),
        case("a list of hosts", Refused(400), host("host: g, h\r\n")),
        case("an empty host", Served, host("host:\r\n")),
        case(
            "an empty host twice",
            Refused(400),
            host("host:\r\nhost:\r\n"),
        ),
        case("a host with a user", Refused(400), host("host: a@g\r\n")),
        case("a host with a path", Refused(400), host("host: g/v1\r\n")),
        case("a host with a space", Refused(400), host("host: g h\r\n")),
        case(
            "a host with an underscore for its dash",
            Served,
            whole("x_host: h\r\n"),
        ),
        case("a head that is too long", Refused(431), whole(&long)),
        case(
            "too many headers",
            Refused(431),
            whole(&"x: a\r\n".repeat(101)),
        ),
        case(
            "a path that is too long",
            Refused(431),
            whole("").replacen("/v1", &"/v".repeat(33_000), 1),
        ),
    ]
}

/// Builds requests with unusual targets.
fn targets() -> Vec<Case> {
    let to = |target: &str| whole("").replacen(CHAT, target, 1);
    vec![
        case(
            "an absolute form",
            Served,
            to(&format!("http://169.254.169.254{CHAT}")),
        ),
        case(
            "an absolute form with a user",
            Served,
            to(&format!("http://a:b@127.0.0.1:1{CHAT}")),
        ),
        case(
            "an absolute form of another scheme",
            Served,
            to(&format!("ftp://h{CHAT}")),
        ),
        case("a query", Served, to(&format!("{CHAT}?a=b&c=%0d%0a"))),
        case("a fragment", Served, to(&format!("{CHAT}#a"))),
        case("only a host", Refused(404), to("g:80")),
        case("an asterisk", Refused(404), to("*")),
        case(
            "an absolute form without a path",
            Refused(405),
            to("http://h"),
        ),
        case("two slashes", Refused(404), to(&format!("/{CHAT}"))),
        case("dot segments", Refused(404), to("/v1/../metrics")),
        case(
            "percent-encoded dot segments",
            Refused(404),
            to("/v1/%2e%2e/metrics"),
        ),
        case(
            "a percent-encoded slash",
            Refused(404),
            to("/v1%2fchat/completions"),
        ),
        case(
            "a percent-encoded letter",
            Refused(404),
            to("/v1/chat/%63ompletions"),
        ),
        case(
            "a slash after the path",
            Refused(404),
            to(&format!("{CHAT}/")),
        ),
        case(
            "a semicolon after the path",
            Refused(404),
            to(&format!("{CHAT};a=b")),
        ),
        case("backslashes", Refused(400), to("\\v1\\chat\\completions")),
        case(
            "a space in the path",
            Refused(400),
            to(&format!("{CHAT} HTTP/1.1 /x")),
        ),
        case("a bare CR in it", Refused(400), to(&format!("{CHAT}\rx"))),
        case("a NUL in it", Refused(400), to(&format!("{CHAT}\0"))),
        case("a tab in the path", Refused(400), to(&format!("{CHAT}\tx"))),
        case("nothing", Refused(400), to("")),
        case(
            "a request in the body of one that is not forwarded",
            Refused(404),
            format!(
                "POST /v1/x HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n{HIDDEN}",
                HIDDEN.len()
            ),
        ),
    ]
}

/// Builds requests with hop-by-hop headers.
fn hops() -> Vec<Case> {
    let hop = |name, verdict, lines: &str, gone| Case {
        gone,
        ..case(name, verdict, whole(lines))
    };
    let upgrade =
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    vec![
        hop(
            "an upgrade",
            Served,
            "connection: upgrade\r\nupgrade: foo\r\n",
            &["foo"],
        ),
        hop(
            "an upgrade to HTTP/2",
            Served,
            upgrade,
            &["h2c", "aamaaabk"],
        ),
        hop(
            "an upgrade that is not nominated",
            Served,
            "upgrade: websocket\r\n",
            &["websocket"],
        ),
        hop(
            "a header that is nominated",
            ServedLast,
            "connection: close, authorization\r\nauthorization: Bearer k\r\n",
            &["bearer"],
        ),
        hop(
            "a header that is nominated later",
            Served,
            "authorization: Bearer k\r\nconnection: x\r\nconnection: Authorization\r\n",
            &["bearer"],
        ),
        hop(
            "a length that is nominated",
            Served,
            "connection: content-length\r\n",
            &[],
        ),
        hop(
            "a host that is nominated",
            Served,
            "connection: host\r\n",
            &[],
        ),
        hop(
            "an id that is nominated",
            Served,
            "connection: x-request-id, x-forwarded-for\r\n",
            &[],
        ),
        hop(
            "an empty connection list",
            Served,
            "connection: ,, ,\r\n",
            &[],
        ),
        hop(
            "headers of old proxies",
            Served,
            "proxy-connection: keep-alive\r\nkeep-alive: timeout=1\r\n",
            &["timeout"],
        ),
        hop(
            "proxy credentials",
            Served,
            "proxy-authorization: Basic abc\r\n",
            &["basic"],
        ),
        hop(
            "trailers that are announced",
            Served,
            "te: trailers\r\ntrailer: x\r\n",
            &[],
        ),
        hop(
            "an expectation",
            Served,
            "expect: 100-continue\r\n",
            &["100-continue"],
        ),
        hop(
            "an underscore",
            Served,
            "content_length: 0\r\nx_forwarded_for: 1.2.3.4\r\n",
            &["1.2.3.4"],
        ),
        hop(
            "a selected engine",
            Served,
            "x-data-parallel-rank: 1\r\n",
            &["rank"],
        ),
    ]
}
