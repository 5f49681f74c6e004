//! Tests of authentication, limits and charges.

use super::*;
use crate::error::{GatewayError, RateLimitKind};
use crate::record::ClientIdentity;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;

const KEY: &str = "sk-tw-one";

fn after(start: Instant, seconds: f64) -> Instant {
    start + Duration::from_secs_f64(seconds)
}

/// Limits per minute, and the limit of open requests. 0 sets no limit.
fn limits(requests: u32, tokens: u32, concurrency: u32) -> UsageLimits {
    let unless_zero = |limit| Some(limit).filter(|limit| *limit > 0);
    UsageLimits {
        requests_per_minute: unless_zero(requests),
        tokens_per_minute: unless_zero(tokens),
        concurrency: unless_zero(concurrency),
        ..UsageLimits::default()
    }
}

fn entry(name: &str, key: &str, limits: UsageLimits) -> KeyEntry {
    KeyEntry {
        name: name.into(),
        hash: KeyDigest::from_key(key.as_bytes()),
        limits,
    }
}

fn one_tenant_file(limits: UsageLimits, keys: Vec<KeyEntry>) -> KeyFile {
    KeyFile {
        tenants: vec![TenantEntry {
            name: "a".into(),
            limits,
            keys,
            ..Default::default()
        }],
    }
}

/// The keys of a key file with the tenant `a` and its key [`KEY`].
fn keys(limits: UsageLimits, key_limits: UsageLimits) -> ApiKeys {
    ApiKeys::new(
        &one_tenant_file(limits, vec![entry("one", KEY, key_limits)]),
        &ApiKeys::default(),
    )
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    pairs.iter().map(header).collect()
}

fn find(keys: &ApiKeys, key: &str) -> Option<Arc<ApiKey>> {
    keys.authenticate(&headers(&[("x-api-key", key)])).cloned()
}

fn authenticated_key(keys: &ApiKeys) -> Arc<ApiKey> {
    find(keys, KEY).unwrap()
}

fn rejection(
    outcome: (RateLimitStatus, Result<ConcurrencyPermit, GatewayError>),
) -> Option<(RateLimitKind, u32)> {
    match outcome.1 {
        Err(GatewayError::RateLimited {
            limited,
            retry_after,
            ..
        }) => Some((limited, retry_after)),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    }
}

#[test]
fn keys_are_accepted_in_both_headers_only() {
    let keys = keys(UsageLimits::default(), UsageLimits::default());
    let is_known = |pairs: &[(&'static str, &str)]| keys.authenticate(&headers(pairs)).is_some();
    assert!(is_known(&[("authorization", "Bearer sk-tw-one")]));
    assert!(
        is_known(&[("authorization", "bearer  sk-tw-one")]),
        "the scheme is case-insensitive"
    );
    assert!(is_known(&[("x-api-key", KEY)]));
    for invalid in [
        "Bearer sk-tw-on",
        "Bearer sk-tw-one2",
        "Bearer ",
        "Basic sk-tw-one",
        KEY,
        "",
    ] {
        assert!(!is_known(&[("authorization", invalid)]), "{invalid}");
    }
    let both = [("authorization", "Bearer x"), ("x-api-key", KEY)];
    assert!(!is_known(&both), "authorization takes precedence");
    assert!(!is_known(&[]));
    let hash = KeyDigest::from_key(KEY.as_bytes()).to_string();
    assert!(
        find(&keys, &hash).is_none(),
        "a hash of the file is not a key"
    );
    let long = "k".repeat(513);
    let with_long_key = ApiKeys::new(
        &one_tenant_file(
            UsageLimits::default(),
            vec![entry("l", &long, UsageLimits::default())],
        ),
        &keys,
    );
    assert!(
        find(&with_long_key, &long).is_none(),
        "too long to be hashed"
    );
}

#[test]
fn unknown_usage_is_no_reached_limit() {
    let per_day = UsageLimits {
        requests_per_day: Some(10),
        ..UsageLimits::default()
    };
    let file = one_tenant_file(per_day, vec![entry("one", KEY, UsageLimits::default())]);
    let registry = Arc::new(QuotaRegistry::new(QuotaScope::Shared));
    let keys = ApiKeys::new(&file, &ApiKeys::with_registry(registry));
    let refused = authenticated_key(&keys).enter(clock::epoch()).1;
    assert!(matches!(refused, Err(GatewayError::UsageUnknown)));
}

#[test]
fn request_limits_allow_bursts_and_refill_evenly() {
    let key = authenticated_key(&keys(limits(60, 0, 0), UsageLimits::default()));
    let now = clock::epoch();
    assert!((0..60).all(|_| rejection(key.enter(now)).is_none()));
    let (status, permit) = key.enter(now);
    let quota = status.requests.unwrap();
    assert_eq!(
        (quota.limit, quota.remaining, quota.reset.as_secs()),
        (60, 0, 60)
    );
    let message = permit.unwrap_err().to_string();
    assert_eq!(
        message,
        "the limit of 60 requests per minute is reached; retry after 1 s"
    );
    assert_eq!(
        rejection(key.enter(after(now, 0.9))),
        Some((RateLimitKind::Requests, 1))
    );
    assert_eq!(rejection(key.enter(after(now, 1.1))), None);
    assert_eq!(
        rejection(key.enter(after(now, 1.2))),
        Some((RateLimitKind::Requests, 1))
    );
}

#[test]
fn exceeded_token_limits_block_until_usage_falls() {
    let keys = keys(limits(0, 600, 0), UsageLimits::default());
    let key = authenticated_key(&keys);
    let now = clock::epoch();
    let charge = |tokens, at| {
        keys.charge(
            &key.caller,
            TokenCharge {
                input: tokens,
                output: 0,
            },
            at,
        );
    };
    charge(599, now);
    assert_eq!(rejection(key.enter(now)), None, "one token is left");
    charge(1_201, now);
    assert_eq!(
        rejection(key.enter(now)),
        Some((RateLimitKind::Tokens, 120))
    );
    assert_eq!(
        rejection(key.enter(after(now, 60.0))),
        Some((RateLimitKind::Tokens, 60))
    );
    assert_eq!(key.enter(after(now, 120.25)).0.tokens.unwrap().remaining, 2);
}

#[test]
fn tenant_and_key_limits_both_apply() {
    let file = one_tenant_file(
        limits(0, 0, 3),
        vec![
            entry("one", KEY, limits(0, 0, 2)),
            entry("two", "sk-two", UsageLimits::default()),
        ],
    );
    let keys = ApiKeys::new(&file, &ApiKeys::default());
    let key_two = find(&keys, "sk-two").unwrap();
    let (key_one, now) = (authenticated_key(&keys), clock::epoch());
    let permits = [key_one.enter(now).1.unwrap(), key_one.enter(now).1.unwrap()];
    let concurrency = Some((RateLimitKind::Concurrency, 1));
    assert_eq!(
        rejection(key_one.enter(now)),
        concurrency,
        "limit of the key"
    );
    let third_permit = key_two.enter(now).1.unwrap();
    assert_eq!(
        rejection(key_two.enter(now)),
        concurrency,
        "limit of the tenant"
    );
    drop(permits);
    assert_eq!(keys.open().map(|(_, open)| open).collect::<Vec<_>>(), [1]);
    assert_eq!(rejection(key_one.enter(now)), None);
    drop(third_permit);
    assert_eq!(keys.open().map(|(_, open)| open).sum::<u32>(), 0);
}

#[test]
fn limits_of_months_and_models_apply() {
    let month = UsageLimits {
        requests_per_month: Some(2),
        ..UsageLimits::default()
    };
    let mut file = one_tenant_file(month, vec![entry("one", KEY, UsageLimits::default())]);
    let of_models = [("llama-*", limits(0, 0, 1)), ("llama-3", limits(0, 0, 2))];
    file.tenants[0].model_limits = of_models
        .map(|(model, limits)| (model.to_owned(), limits))
        .into();
    let keys = ApiKeys::new(&file, &ApiKeys::default());
    let (key, now) = (authenticated_key(&keys), clock::epoch());
    assert_eq!(key.enter(now).0.requests.unwrap().remaining, 1);
    assert_eq!(rejection(key.enter(now)), None);
    let (kind, wait) = rejection(key.enter(now)).unwrap();
    assert_eq!(kind, RateLimitKind::RequestsPerMonth);
    assert!(wait > 0);
    let enter = |model| Some(key.tenant.enter_model(model, now)?.1.ok());
    let first = enter("llama-2").unwrap();
    assert!(first.is_some());
    assert!(enter("llama-4").unwrap().is_none(), "one of all matches");
    assert!(enter("llama-3").unwrap().is_some(), "the longest match");
    assert!(enter("qwen").is_none(), "no limits");
    drop(first);
    assert!(enter("llama-4").unwrap().is_some());
}

#[test]
fn rejected_requests_use_no_quota() {
    let keys = keys(limits(60, 600, 0), limits(0, 0, 1));
    let (key, now) = (authenticated_key(&keys), clock::epoch());
    let permit = key.enter(now).1.unwrap();
    for _ in 0..100 {
        assert_eq!(
            rejection(key.enter(now)),
            Some((RateLimitKind::Concurrency, 1))
        );
    }
    drop(permit);
    assert_eq!(
        key.enter(now).0.requests.unwrap().remaining,
        58,
        "two requests started"
    );
    keys.charge(
        &key.caller,
        TokenCharge {
            input: 0,
            output: 900,
        },
        now,
    );
    let permit = key.enter(now);
    assert_eq!(rejection(permit), Some((RateLimitKind::Tokens, 30)));
}

#[test]
fn a_reload_keeps_usage_and_open_requests() {
    let before = keys(limits(0, 600, 2), UsageLimits::default());
    let (key, now) = (authenticated_key(&before), clock::epoch());
    let permit = key.enter(now).1.unwrap();
    before.charge(
        &key.caller,
        TokenCharge {
            input: 1_200,
            output: 0,
        },
        now,
    );
    let new_key = entry("new", "sk-new", UsageLimits::default());
    let file = one_tenant_file(limits(0, 6_000, 1), vec![new_key]);
    let reloaded = ApiKeys::new(&file, &before);
    assert!(find(&reloaded, KEY).is_none(), "the key was removed");
    let new = find(&reloaded, "sk-new").unwrap();
    assert_eq!(
        rejection(new.enter(now)),
        Some((RateLimitKind::Concurrency, 1)),
        "the request of the old key is open"
    );
    drop(permit);
    let (status, permit) = new.enter(now);
    assert_eq!(
        status.tokens.unwrap().remaining,
        4_800,
        "under the new limit"
    );
    drop(permit);
    // The request with the old key ends after the reload, and its tenant is charged.
    reloaded.charge(
        &key.caller,
        TokenCharge {
            input: 4_800,
            output: 0,
        },
        now,
    );
    assert_eq!(rejection(new.enter(now)).unwrap().0, RateLimitKind::Tokens);
    let empty = ApiKeys::new(
        &KeyFile {
            tenants: Vec::new(),
        },
        &reloaded,
    );
    empty.charge(
        &key.caller,
        TokenCharge {
            input: 1,
            output: 0,
        },
        now,
    );
    assert!(empty.is_empty() && empty.open().count() == 0);
    // A program removes a file of a folder and writes it again.
    let back = ApiKeys::new(
        &file,
        &ApiKeys::new(
            &KeyFile {
                tenants: Vec::new(),
            },
            &empty,
        ),
    );
    let new = find(&back, "sk-new").unwrap();
    assert_eq!(rejection(new.enter(now)).unwrap().0, RateLimitKind::Tokens);
}

#[test]
fn reloads_keep_tenant_labels_bounded() {
    let mut keys = ApiKeys::default();
    let mut last_principal: Option<Arc<ClientIdentity>> = None;
    for round in 0..50 {
        let tenants = (0..100).map(|number| TenantEntry {
            name: format!("t{}", round * 100 + number),
            keys: vec![entry("k", &format!("sk-{number}"), UsageLimits::default())],
            ..TenantEntry::default()
        });
        keys = ApiKeys::new(
            &KeyFile {
                tenants: tenants.collect(),
            },
            &keys,
        );
        last_principal = find(&keys, "sk-7").map(|key| key.caller.clone());
    }
    assert_eq!(keys.labels().count(), 1_000);
    assert_eq!(last_principal.unwrap().tenant_label(), "_other");
    assert_eq!(keys.len(), 100, "removed tenants keep only their label");
}

proptest! {
    /// Requests start, end and are charged in any order.
    #[test]
    fn limits_hold_for_any_sequence_of_requests(
        steps in prop::collection::vec((0_u8..4, 0_u32..3_000, 0_usize..8), 1..200)
    ) {
        let keys = keys(limits(30, 900, 5), limits(20, 0, 3));
        let (key, start) = (authenticated_key(&keys), clock::epoch());
        let mut at = 0.0;
        let mut open: Vec<ConcurrencyPermit> = Vec::new();
        let (mut started, mut used) = (0_u32, 0.0_f64);
        for (step, amount, permit_index) in steps {
            at += f64::from(amount) / 1_000.0;
            used = (used - 15.0 * f64::from(amount) / 1_000.0).max(0.0);
            let now = after(start, at);
            match step {
                0 | 1 => match key.enter(now).1 {
                    Ok(permit) => {
                        prop_assert!(used < 900.0 + 1e-3, "{used} tokens used");
                        open.push(permit);
                        started += 1;
                    }
                    Err(GatewayError::RateLimited { limited: RateLimitKind::Tokens, .. }) => {
                        prop_assert!(used > 900.0 - 1e-3, "{used} tokens used");
                    }
                    Err(_) => {}
                },
                2 if !open.is_empty() => drop(open.swap_remove(permit_index % open.len())),
                _ => {
                    let charge = TokenCharge { input: 0, output: u64::from(amount) };
                    keys.charge(&key.caller, charge, now);
                    used += f64::from(amount);
                }
            }
            prop_assert!(open.len() <= 3);
            prop_assert_eq!(keys.open().map(|(_, open)| open as usize).sum::<usize>(), open.len());
            let allowed = 20.0 + 20.0 / 60.0 * at + 1e-6;
            prop_assert!(f64::from(started) <= allowed, "{started} in {at} s");
        }
        drop(open);
        prop_assert_eq!(keys.open().map(|(_, open)| open).sum::<u32>(), 0);
    }
}

#[test]
fn used_quotas_of_tokens_outlast_restarts() {
    let grant = TokenGrant {
        digest: KeyDigest::from_key(b"token"),
        tenant: "a".into(),
        key: "_bob".into(),
        subject: KeyDigest::from_key(b"bob"),
        tier: None,
        models: None,
        limits: UsageLimits {
            requests_per_month: Some(2),
            ..UsageLimits::default()
        },
    };
    let restart = |saved: &[SavedQuota]| {
        let registry = Arc::<QuotaRegistry>::default();
        let file = one_tenant_file(UsageLimits::default(), Vec::new());
        let keys = ApiKeys::new(&file, &ApiKeys::with_registry(registry.clone()));
        registry.awaited.restore(saved, keys.quota_subjects());
        (registry, keys)
    };
    let saved = |keys: &ApiKeys| {
        let subjects = keys.quota_subjects();
        subjects
            .flat_map(|it| it.saved_quotas())
            .collect::<Vec<_>>()
    };
    let ask = |keys: &ApiKeys| rejection(keys.key_of_token(&grant).unwrap().enter(clock::epoch()));
    let (_, keys) = restart(&[]);
    assert!(ask(&keys).is_none());
    let used = saved(&keys);
    assert_eq!((used.len(), used[0].used), (1, 1));
    let (registry, keys) = restart(&used);
    assert_eq!(registry.awaited.list(), used, "until its next token");
    assert!(ask(&keys).is_none());
    assert!(registry.awaited.list().is_empty());
    assert_eq!(saved(&keys)[0].used, 2);
    let (kind, _) = ask(&keys).unwrap();
    assert_eq!(kind, RateLimitKind::RequestsPerMonth);
    let mut old = used[0].clone();
    old.number -= 1;
    assert!(restart(&[old]).0.awaited.list().is_empty());
}
