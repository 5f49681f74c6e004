//! Who comes in, and what is counted, without a socket.

use super::*;
use crate::error::{Error, Limited};
use crate::record::Caller;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEY: &str = "sk-tw-one";

fn start() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    Instant::now()
}

fn after(start: Instant, seconds: f64) -> Instant {
    start + Duration::from_secs_f64(seconds)
}

fn limits(requests: u32, tokens: u32, concurrency: u32) -> Limits {
    let some = |limit| Some(limit).filter(|limit| *limit > 0);
    Limits {
        requests_per_minute: some(requests),
        tokens_per_minute: some(tokens),
        concurrency: some(concurrency),
    }
}

fn entry(name: &str, key: &str, limits: Limits) -> KeyEntry {
    KeyEntry { name: name.into(), hash: KeyDigest::of(key.as_bytes()), limits }
}

/// One tenant with these keys.
fn roster(limits: Limits, keys: Vec<KeyEntry>) -> Roster {
    let tenant =
        TenantEntry { name: "a".into(), tier: None, models: None, allow: Vec::new(), limits, keys };
    Roster { tenants: vec![tenant] }
}

fn keys(limits: Limits, key_limits: Limits) -> Keys {
    Keys::new(&roster(limits, vec![entry("one", KEY, key_limits)]), &Keys::default())
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    pairs.iter().map(header).collect()
}

fn one(keys: &Keys) -> Arc<Key> {
    keys.of(&headers(&[("x-api-key", KEY)])).unwrap().clone()
}

fn refused(entered: (Standing, Result<Place, Error>)) -> Option<(Limited, u32)> {
    match entered.1 {
        Err(Error::RateLimited { limited, retry_after, .. }) => Some((limited, retry_after)),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    }
}

#[test]
fn a_key_is_known_where_clients_put_it_and_nothing_else_is() {
    let keys = keys(Limits::default(), Limits::default());
    let is_known = |pairs: &[(&'static str, &str)]| keys.of(&headers(pairs)).is_some();
    assert!(is_known(&[("authorization", "Bearer sk-tw-one")]));
    assert!(is_known(&[("authorization", "bearer  sk-tw-one")]), "a scheme has no case");
    assert!(is_known(&[("x-api-key", KEY)]));
    for stranger in ["Bearer sk-tw-on", "Bearer sk-tw-one2", "Bearer ", "Basic sk-tw-one", KEY, ""]
    {
        assert!(!is_known(&[("authorization", stranger)]), "{stranger}");
    }
    assert!(!is_known(&[("authorization", "Bearer x"), ("x-api-key", KEY)]), "one of them counts");
    assert!(!is_known(&[]));
    let hash = KeyDigest::of(KEY.as_bytes()).to_string();
    assert!(!is_known(&[("x-api-key", &hash)]), "the file is no key");
    let long = "k".repeat(513);
    let owner =
        Keys::new(&roster(Limits::default(), vec![entry("l", &long, Limits::default())]), &keys);
    assert!(owner.of(&headers(&[("x-api-key", &long)])).is_none(), "too long to be hashed");
}

#[test]
fn credentials_go_no_further() {
    let mut all = headers(&[("authorization", "Bearer k"), ("x-api-key", "k"), ("accept", "a")]);
    take_credentials(&mut all);
    assert_eq!(all, headers(&[("accept", "a")]));
}

#[test]
fn a_minutes_requests_may_come_at_once_and_come_back_evenly() {
    let key = one(&keys(limits(60, 0, 0), Limits::default()));
    let now = start();
    assert!((0..60).all(|_| refused(key.enter(now)).is_none()));
    let (standing, place) = key.enter(now);
    let left = standing.requests.unwrap();
    assert_eq!((left.limit, left.remaining, left.reset.as_secs()), (60, 0, 60));
    let message = place.unwrap_err().to_string();
    assert_eq!(message, "the limit of 60 requests in a minute is reached; retry after 1 s");
    assert_eq!(refused(key.enter(after(now, 0.9))), Some((Limited::Requests, 1)));
    assert_eq!(refused(key.enter(after(now, 1.1))), None);
    assert_eq!(refused(key.enter(after(now, 1.2))), Some((Limited::Requests, 1)));
}

#[test]
fn tokens_are_a_debt_that_is_paid_before_anything_starts() {
    let keys = keys(limits(0, 600, 0), Limits::default());
    let key = one(&keys);
    let now = start();
    let charge = |tokens, at| {
        keys.charge(&key.caller, Charge { input: tokens, output: 0 }, at);
    };
    charge(599, now);
    assert_eq!(refused(key.enter(now)), None, "one is left");
    charge(1_201, now);
    assert_eq!(refused(key.enter(now)), Some((Limited::Tokens, 120)));
    assert_eq!(refused(key.enter(after(now, 60.0))), Some((Limited::Tokens, 60)));
    assert_eq!(key.enter(after(now, 120.25)).0.tokens.unwrap().remaining, 2);
}

#[test]
fn the_limits_of_a_tenant_and_of_its_key_both_hold() {
    let file = roster(
        limits(0, 0, 3),
        vec![entry("one", KEY, limits(0, 0, 2)), entry("two", "sk-two", Limits::default())],
    );
    let keys = Keys::new(&file, &Keys::default());
    let two = keys.of(&headers(&[("x-api-key", "sk-two")])).unwrap();
    let (one, now) = (one(&keys), start());
    let first = [one.enter(now).1.unwrap(), one.enter(now).1.unwrap()];
    assert_eq!(refused(one.enter(now)), Some((Limited::Concurrency, 1)), "of the key");
    let third = two.enter(now).1.unwrap();
    assert_eq!(refused(two.enter(now)), Some((Limited::Concurrency, 1)), "of the tenant");
    drop(first);
    assert_eq!(keys.open().map(|(_, open)| open).collect::<Vec<_>>(), [1]);
    assert_eq!(refused(one.enter(now)), None);
    drop(third);
    assert_eq!(keys.open().map(|(_, open)| open).sum::<u32>(), 0);
}

#[test]
fn what_is_refused_uses_nothing_and_the_longest_wait_is_told() {
    let keys = keys(limits(60, 600, 0), limits(0, 0, 1));
    let (key, now) = (one(&keys), start());
    let place = key.enter(now).1.unwrap();
    for _ in 0..100 {
        assert_eq!(refused(key.enter(now)), Some((Limited::Concurrency, 1)));
    }
    drop(place);
    assert_eq!(key.enter(now).0.requests.unwrap().remaining, 58, "two came in");
    keys.charge(&key.caller, Charge { input: 0, output: 900 }, now);
    let place = key.enter(now);
    assert_eq!(refused(place), Some((Limited::Tokens, 30)));
}

#[test]
fn a_reload_gives_no_new_allowance_and_loses_no_place() {
    let before = keys(limits(0, 600, 2), Limits::default());
    let (key, now) = (one(&before), start());
    let place = key.enter(now).1.unwrap();
    before.charge(&key.caller, Charge { input: 1_200, output: 0 }, now);
    let file = roster(limits(0, 6_000, 1), vec![entry("new", "sk-new", Limits::default())]);
    let middle = Keys::new(&file, &before);
    assert!(middle.of(&headers(&[("x-api-key", KEY)])).is_none(), "its key is gone");
    let new = middle.of(&headers(&[("x-api-key", "sk-new")])).unwrap();
    assert_eq!(refused(new.enter(now)), Some((Limited::Concurrency, 1)), "the old one is open");
    drop(place);
    let (standing, entered) = new.enter(now);
    assert_eq!(standing.tokens.unwrap().remaining, 4_800, "under the new limit");
    drop(entered);
    // The request of the old key ends after the reload: its tenant pays.
    middle.charge(&key.caller, Charge { input: 4_800, output: 0 }, now);
    assert_eq!(refused(new.enter(now)).unwrap().0, Limited::Tokens);
    let nobody = Keys::new(&Roster { tenants: Vec::new() }, &middle);
    nobody.charge(&key.caller, Charge { input: 1, output: 0 }, now);
    assert!(nobody.is_empty() && nobody.open().count() == 0);
}

#[test]
fn however_often_tenants_change_their_labels_stay_bounded() {
    let mut keys = Keys::default();
    let mut last: Option<Arc<Caller>> = None;
    for round in 0..50 {
        let tenants = (0..100).map(|number| TenantEntry {
            name: format!("t{}", round * 100 + number),
            keys: vec![entry("k", &format!("sk-{number}"), Limits::default())],
            ..roster(Limits::default(), Vec::new()).tenants.remove(0)
        });
        keys = Keys::new(&Roster { tenants: tenants.collect() }, &keys);
        last = keys.of(&headers(&[("x-api-key", "sk-7")])).map(|key| key.caller.clone());
    }
    assert_eq!(keys.labels().count(), 1_000);
    assert_eq!(last.unwrap().label(), "_other");
    assert_eq!(keys.len(), 100, "nothing else of the old ones is kept");
}

proptest! {
    /// Requests come, end and are charged in any order; the limits hold all the time.
    #[test]
    fn limits_hold_whatever_comes(
        steps in prop::collection::vec((0_u8..4, 0_u32..3_000, 0_usize..8), 1..200)
    ) {
        let keys = keys(limits(30, 900, 5), limits(20, 0, 3));
        let (key, start) = (one(&keys), start());
        let mut at = 0.0;
        let mut open: Vec<Place> = Vec::new();
        let (mut begun, mut owed) = (0_u32, 0.0_f64);
        for (step, amount, which) in steps {
            at += f64::from(amount) / 1_000.0;
            owed = (owed - 15.0 * f64::from(amount) / 1_000.0).max(0.0);
            let now = after(start, at);
            match step {
                0 | 1 => match key.enter(now).1 {
                    Ok(place) => {
                        prop_assert!(owed < 900.0 + 1e-3, "{owed} are owed");
                        open.push(place);
                        begun += 1;
                    }
                    Err(Error::RateLimited { limited: Limited::Tokens, .. }) => {
                        prop_assert!(owed > 900.0 - 1e-3, "{owed} are owed");
                    }
                    Err(_) => {}
                },
                2 if !open.is_empty() => drop(open.swap_remove(which % open.len())),
                _ => {
                    keys.charge(&key.caller, Charge { input: 0, output: u64::from(amount) }, now);
                    owed += f64::from(amount);
                }
            }
            prop_assert!(open.len() <= 3);
            prop_assert_eq!(keys.open().map(|(_, open)| open as usize).sum::<usize>(), open.len());
            prop_assert!(f64::from(begun) <= 20.0 + 20.0 / 60.0 * at + 1e-6, "{begun} in {at} s");
        }
        drop(open);
        prop_assert_eq!(keys.open().map(|(_, open)| open).sum::<u32>(), 0);
    }
}
