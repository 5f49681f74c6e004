//! The hosts from which engines may fetch media. The gateway does not resolve names, because the engine would
//! resolve them again, perhaps with another result. So only a list of allowed hosts excludes names that resolve
//! to private addresses.

use std::net::{Ipv4Addr, Ipv6Addr};
use tokenweir_protocol::json::JsonText;

/// Maximum length of a media URL in bytes. URLs that contain their data are exempt.
const MAX_URL_BYTES: usize = 8 << 10;
/// Suffixes of names that resolve to hosts of the local network or cluster.
const PRIVATE_ENDS: [&str; 6] = [
    "localhost",
    "localdomain",
    "local",
    "internal",
    "svc",
    "home.arpa",
];
const DATA_SCHEME: &str = "data:";

const FOREIGN_SCHEME: &str = "must be an http, https or data URL";
const AMBIGUOUS: &str = "has a URL whose host programs read in different ways";
const FORBIDDEN: &str = "has a URL whose host is not allowed for this client";

/// Whether an entry of `media_hosts` is a valid host or host pattern.
pub(super) fn is_pattern(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    host == "*" || (is_host(name) && !name.bytes().any(|byte| byte.is_ascii_uppercase()))
}

/// Fails if engines may not fetch this URL. `allowed`: the list `media_hosts`. `None`: all public hosts.
pub(super) fn check_url(url: JsonText<'_>, allowed: Option<&[String]>) -> Result<(), &'static str> {
    // Data can be long, so it is not decoded.
    let scheme = url.raw().get(..DATA_SCHEME.len()).unwrap_or_default();
    if scheme.eq_ignore_ascii_case(DATA_SCHEME.as_bytes()) {
        return Ok(());
    }
    if url.len() > MAX_URL_BYTES {
        return Err("has a URL that is longer than 8 KiB");
    }
    let url = url.decode().ok_or(AMBIGUOUS)?.to_ascii_lowercase();
    if url.starts_with(DATA_SCHEME) {
        return Ok(());
    }
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let rest = rest.ok_or(FOREIGN_SCHEME)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = host_of(&rest[..end]).ok_or(AMBIGUOUS)?;
    let is_allowed = match allowed {
        Some(patterns) => patterns.iter().any(|pattern| matches(pattern, host)),
        None => is_public(host),
    };
    if is_allowed { Ok(()) } else { Err(FORBIDDEN) }
}

/// The host of an authority in lower case, without a final dot. `None`: the authority has a user name, or
/// characters that programs interpret differently.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    if authority.starts_with('[') {
        return host.parse::<Ipv6Addr>().is_ok().then_some(host);
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    is_host(host).then_some(host)
}

/// Whether a text is a valid host name or address.
fn is_host(host: &str) -> bool {
    if host.parse::<Ipv6Addr>().is_ok() {
        return true;
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_plain);
    // Programs interpret `127.1` and `0x7f.1` as addresses.
    let is_number = last_label(host).starts_with(|first: char| first.is_ascii_digit());
    host.split('.').all(is_label) && (!is_number || host.parse::<Ipv4Addr>().is_ok())
}

fn last_label(host: &str) -> &str {
    host.rsplit('.').next().unwrap_or(host)
}

fn matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some("") => true,
        Some(end) => host.len() > end.len() && host.ends_with(end),
        None => pattern == host,
    }
}

/// Whether a host is public: neither an address in a private or reserved network, nor a name of such an
/// address.
fn is_public(host: &str) -> bool {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return is_public_v4(address);
    }
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return is_public_v6(address);
    }
    let is_below = |end: &str| {
        host.strip_suffix(end)
            .is_some_and(|rest| rest.ends_with('.'))
    };
    host.contains('.') && !PRIVATE_ENDS.into_iter().any(is_below)
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_shared = first == 100 && (64..128).contains(&second);
    let is_protocol = first == 192 && second == 0 && third == 0;
    let is_benchmark = first == 198 && (second == 18 || second == 19);
    let is_reserved = first == 0 || first >= 224 || is_shared || is_protocol || is_benchmark;
    let is_local = address.is_private() || address.is_loopback() || address.is_link_local();
    !is_reserved && !is_local && !address.is_documentation()
}

/// Whether an address is in the global range and contains no IPv4 address.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_global = first & 0xe000 == 0x2000;
    let is_6to4 = first == 0x2002;
    let is_special = first == 0x2001 && (second < 0x200 || second == 0xdb8);
    is_global && !is_6to4 && !is_special
}
