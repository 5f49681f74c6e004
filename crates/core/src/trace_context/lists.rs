//! The two lists that travel with a trace, `tracestate` and `baggage`. Both may stand in several
//! headers, and both come from outside: what is passed on is bounded.

use std::collections::HashSet;

/// Longest `tracestate` that is passed on, in bytes. W3C asks for no less.
const MAX_STATE: usize = 512;
/// Most members of it.
const MAX_STATE_MEMBERS: usize = 32;
/// Members of it that are longer go first.
const LONG_STATE_MEMBER: usize = 128;
/// Longest `baggage` that is passed on, in bytes. W3C asks for no less.
const MAX_BAGGAGE: usize = 8_192;
/// Most members of it that are looked at.
const MAX_BAGGAGE_MEMBERS: usize = 64;

/// What is passed on of a `tracestate`. `None` if it is none, or damaged.
///
/// One that is too long loses its long members first, and then the last, which are the oldest.
pub(super) fn trace_state<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Box<str>> {
    let members = headers.flat_map(|header| header.split(',')).map(str::trim);
    let mut members: Vec<&str> =
        members.filter(|member| !member.is_empty()).take(MAX_STATE_MEMBERS + 1).collect();
    let mut keys = HashSet::new();
    let is_sound = members.len() <= MAX_STATE_MEMBERS
        && members.iter().all(|member| state_key(member).is_some_and(|key| keys.insert(key)));
    if !is_sound || members.is_empty() {
        return None;
    }
    if length(&members) > MAX_STATE {
        members.retain(|member| member.len() <= LONG_STATE_MEMBER);
    }
    while length(&members) > MAX_STATE {
        members.pop();
    }
    (!members.is_empty()).then(|| members.join(",").into())
}

/// What is passed on of a `baggage`: the members whose names are listed.
pub(super) fn baggage<'a>(
    headers: impl Iterator<Item = &'a str>,
    listed: &[Box<str>],
) -> Option<Box<str>> {
    let members = headers.flat_map(|header| header.split(',')).take(MAX_BAGGAGE_MEMBERS);
    let is_listed = |member: &&str| {
        let name = member.split_once('=').map(|(name, _)| name.trim());
        name.is_some_and(|name| listed.iter().any(|listed| **listed == *name))
    };
    let mut kept: Vec<&str> = members.map(str::trim).filter(is_listed).collect();
    while length(&kept) > MAX_BAGGAGE {
        kept.pop();
    }
    (!kept.is_empty()).then(|| kept.join(",").into())
}

/// The key of a member, if the member is as W3C says.
fn state_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    let is_key =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    let is_sound = (1..=256).contains(&key.len())
        && key.bytes().all(is_key)
        && (1..=256).contains(&value.len())
        && value.bytes().all(is_value);
    is_sound.then_some(key)
}

/// Of the members, joined.
fn length(members: &[&str]) -> usize {
    members.iter().map(|member| member.len() + 1).sum::<usize>().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(headers: &[&str]) -> Option<String> {
        trace_state(headers.iter().copied()).map(Into::into)
    }

    #[test]
    fn a_sound_trace_state_goes_on_in_its_order() {
        assert_eq!(state(&["a=1, b=2", "c@d=x;y"]).as_deref(), Some("a=1,b=2,c@d=x;y"));
        assert_eq!(state(&["a=1,,", ""]).as_deref(), Some("a=1"));
    }

    #[test]
    fn a_damaged_trace_state_does_not_go_on_at_all() {
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        let long = format!("a={}", "v".repeat(257));
        for bad in ["", "a", "A=1", "a=", "a=1=2", "a=1,a=2", "a=é", &many, &long] {
            assert_eq!(state(&[bad]), None, "{bad}");
        }
    }

    #[test]
    fn a_long_trace_state_loses_its_long_members_and_then_the_oldest() {
        let long = format!("long={}", "v".repeat(200));
        let short = |n: usize| format!("k{n:02}={}", "v".repeat(60));
        let members: Vec<String> = [long].into_iter().chain((0..10).map(short)).collect();
        let kept = state(&[&members.join(",")]).unwrap();
        assert!(kept.len() <= MAX_STATE && kept.starts_with("k00=") && !kept.contains("k09="));
        assert_eq!(kept.split(',').count(), 7);
    }

    #[test]
    fn only_listed_baggage_goes_on_and_not_more_than_there_is_room_for() {
        let listed: [Box<str>; 2] = ["tenant".into(), "tier".into()];
        let of = |headers: &[&str]| baggage(headers.iter().copied(), &listed).map(String::from);
        let all = ["secret=1, tenant = a;ttl=1", "tier=gold,tenants=x,tier"];
        assert_eq!(of(&all).as_deref(), Some("tenant = a;ttl=1,tier=gold"));
        assert_eq!(of(&["secret=1"]), None);
        let large = format!("tenant={}", "v".repeat(5_000));
        assert_eq!(of(&[&large, &large]), Some(large));
        assert_eq!(baggage(["tenant=a"].into_iter(), &[]), None);
    }
}
