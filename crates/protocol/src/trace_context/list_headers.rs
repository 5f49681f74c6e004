//! The list headers `tracestate` and `baggage`. Each may occur several times in a request. Clients control
//! their size, so the gateway limits what it forwards.

use std::collections::HashSet;

/// Longest `tracestate` that is forwarded, in bytes: the minimum that W3C Trace Context requires.
const MAX_TRACE_STATE_BYTES: usize = 512;
/// Maximum number of members of a `tracestate`. A `tracestate` with more members is not forwarded.
const MAX_TRACE_STATE_MEMBERS: usize = 32;
/// If a `tracestate` is too long, members longer than this number of bytes are removed first.
const LONG_TRACE_STATE_MEMBER_BYTES: usize = 128;
/// Longest `baggage` that is forwarded, in bytes: the minimum that W3C Baggage requires.
const MAX_BAGGAGE_BYTES: usize = 8_192;
/// Maximum number of members of a `baggage` that are read. Later members are not forwarded.
const MAX_BAGGAGE_MEMBERS: usize = 64;

/// The `tracestate` to forward. `None`: the headers are empty or invalid.
///
/// If a `tracestate` is too long, its long members are removed first. Its last members, which are the oldest,
/// follow.
pub(super) fn filter_trace_state<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Box<str>> {
    let members = headers.flat_map(|header| header.split(',')).map(str::trim);
    let mut members: Vec<&str> = members
        .filter(|member| !member.is_empty())
        .take(MAX_TRACE_STATE_MEMBERS + 1)
        .collect();
    let mut keys = HashSet::new();
    let is_valid = members.len() <= MAX_TRACE_STATE_MEMBERS
        && members
            .iter()
            .all(|member| trace_state_key(member).is_some_and(|key| keys.insert(key)));
    if !is_valid || members.is_empty() {
        return None;
    }
    if joined_length(&members) > MAX_TRACE_STATE_BYTES {
        members.retain(|member| member.len() <= LONG_TRACE_STATE_MEMBER_BYTES);
    }
    while joined_length(&members) > MAX_TRACE_STATE_BYTES {
        members.pop();
    }
    (!members.is_empty()).then(|| members.join(",").into())
}

/// The `baggage` to forward: the members whose names are in `allowed_names`. `None`: no member is
/// forwarded.
pub(super) fn filter_baggage<'a>(
    headers: impl Iterator<Item = &'a str>,
    allowed_names: &[Box<str>],
) -> Option<Box<str>> {
    let members = headers
        .flat_map(|header| header.split(','))
        .take(MAX_BAGGAGE_MEMBERS);
    let is_allowed = |member: &&str| {
        let name = member.split_once('=').map(|(name, _)| name.trim());
        name.is_some_and(|name| allowed_names.iter().any(|allowed| **allowed == *name))
    };
    let mut forwarded: Vec<&str> = members.map(str::trim).filter(is_allowed).collect();
    while joined_length(&forwarded) > MAX_BAGGAGE_BYTES {
        forwarded.pop();
    }
    (!forwarded.is_empty()).then(|| forwarded.join(",").into())
}

/// The key of a `tracestate` member. `None` if the member violates the W3C syntax.
fn trace_state_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    let is_key =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    let is_valid = (1..=256).contains(&key.len())
        && key.bytes().all(is_key)
        && (1..=256).contains(&value.len())
        && value.bytes().all(is_value);
    is_valid.then_some(key)
}

/// Length of the members joined by commas, in bytes.
fn joined_length(members: &[&str]) -> usize {
    members
        .iter()
        .map(|member| member.len() + 1)
        .sum::<usize>()
        .saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered_state(headers: &[&str]) -> Option<String> {
        filter_trace_state(headers.iter().copied()).map(Into::into)
    }

    #[test]
    fn a_valid_trace_state_is_forwarded_in_order() {
        assert_eq!(
            filtered_state(&["a=1, b=2", "c@d=x;y"]).as_deref(),
            Some("a=1,b=2,c@d=x;y")
        );
        assert_eq!(filtered_state(&["a=1,,", ""]).as_deref(), Some("a=1"));
    }

    #[test]
    fn an_invalid_tracestate_header_is_not_forwarded() {
        let many = (0..33)
            .map(|n| format!("k{n}=v"))
            .collect::<Vec<_>>()
            .join(",");
        let long = format!("a={}", "v".repeat(257));
        for invalid in [
            "", "a", "A=1", "a=", "a=1=2", "a=1,a=2", "a=é", &many, &long,
        ] {
            assert_eq!(filtered_state(&[invalid]), None, "{invalid}");
        }
    }

    #[test]
    fn long_trace_states_lose_long_then_old_members() {
        let long = format!("long={}", "v".repeat(200));
        let short = |n: usize| format!("k{n:02}={}", "v".repeat(60));
        let members: Vec<String> = [long].into_iter().chain((0..10).map(short)).collect();
        let filtered = filtered_state(&[&members.join(",")]).unwrap();
        assert!(
            filtered.len() <= MAX_TRACE_STATE_BYTES
                && filtered.starts_with("k00=")
                && !filtered.contains("k09=")
        );
        assert_eq!(filtered.split(',').count(), 7);
    }

    #[test]
    fn only_allowed_baggage_is_forwarded() {
        let listed: [Box<str>; 2] = ["tenant".into(), "tier".into()];
        let filtered =
            |headers: &[&str]| filter_baggage(headers.iter().copied(), &listed).map(String::from);
        let all = ["secret=1, tenant = a;ttl=1", "tier=gold,tenants=x,tier"];
        assert_eq!(
            filtered(&all).as_deref(),
            Some("tenant = a;ttl=1,tier=gold")
        );
        assert_eq!(filtered(&["secret=1"]), None);
        let large = format!("tenant={}", "v".repeat(5_000));
        assert_eq!(filtered(&[&large, &large]), Some(large));
        assert_eq!(filter_baggage(["tenant=a"].into_iter(), &[]), None);
    }
}
