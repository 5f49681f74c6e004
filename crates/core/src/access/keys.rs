//! The keys that are known, as one value that a reload replaces whole.

use super::charge::Charge;
use super::digest::KeyDigest;
use super::limits::Standing;
use super::meter::{self, Account, Place};
use super::models::Models;
use super::roster::{KeyEntry, MAX_TENANTS, Roster, TenantEntry};
use crate::error::Error;
use crate::openai::control::Permissions;
use crate::record::{Caller, Tier};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// All keys, found by their digests.
#[derive(Debug, Default)]
pub struct Keys {
    by_digest: HashMap<u64, Arc<Key>>,
    tenants: HashMap<Arc<str>, Arc<Tenant>>,
    /// Every tenant that ever was here, up to a number: these are label values.
    labels: BTreeSet<Arc<str>>,
}

/// A key that is known.
#[derive(Debug)]
pub struct Key {
    digest: KeyDigest,
    /// Who comes with it.
    pub caller: Arc<Caller>,
    tenant: Arc<Tenant>,
    account: Account,
}

#[derive(Debug)]
struct Tenant {
    tier: Option<Tier>,
    models: Models,
    allowed: Permissions,
    account: Account,
    keys: HashMap<Arc<str>, Account>,
}

/// Where Anthropic's clients put their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Longest key that is hashed, in bytes: nobody buys time of this machine with a long header.
const MAX_KEY: usize = 512;

/// The token of an `Authorization: Bearer` header.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Takes out what a client proved itself with: it is for this gateway, and for nobody behind it.
pub fn take_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    headers.remove(X_API_KEY);
}

fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    if headers.contains_key(AUTHORIZATION) {
        return bearer(headers);
    }
    headers.get(X_API_KEY).map(HeaderValue::as_bytes)
}

// === impl Keys ===

impl Keys {
    /// Those of a file that has been checked. What tenants and keys of the same names have used
    /// goes on from `before`.
    pub fn new(roster: &Roster, before: &Self) -> Self {
        let mut all = Self { labels: before.labels.clone(), ..Self::default() };
        for entry in &roster.tenants {
            let name: Arc<str> = entry.name.as_str().into();
            if all.labels.len() < MAX_TENANTS {
                all.labels.insert(name.clone());
            }
            let tenant = Arc::new(Tenant::new(entry, before.tenants.get(&name)));
            for key in &entry.keys {
                let caller = Caller {
                    tenant: name.clone(),
                    key: key.name.as_str().into(),
                    is_label: all.labels.contains(&name),
                };
                let key = Key::new(key, caller, tenant.clone());
                all.by_digest.insert(key.digest.place(), Arc::new(key));
            }
            all.tenants.insert(name, tenant);
        }
        all
    }

    /// The key that a request came with, if it is known.
    pub fn of(&self, headers: &HeaderMap) -> Option<&Arc<Key>> {
        let token = credential(headers).filter(|token| token.len() <= MAX_KEY)?;
        let digest = KeyDigest::of(token);
        self.by_digest.get(&digest.place()).filter(|key| key.digest.is_same(&digest))
    }

    /// A request has ended that used so much. Also one whose key has been taken out of the file
    /// since: its tenant may still be there.
    pub fn charge(&self, caller: &Caller, charge: Charge, now: Instant) {
        let Some(tenant) = self.tenants.get(&caller.tenant) else { return };
        tenant.account.charge(charge.total(), now);
        if let Some(key) = tenant.keys.get(&caller.key) {
            key.charge(charge.total(), now);
        }
    }

    /// The names of the tenants that are label values.
    pub fn labels(&self) -> impl Iterator<Item = &Arc<str>> {
        self.labels.iter()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether nobody may come in.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// How many requests of each tenant are open.
    pub fn open(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        self.tenants.iter().map(|(name, tenant)| (name, tenant.account.open()))
    }
}

// === impl Key, Tenant ===

impl Key {
    fn new(entry: &KeyEntry, caller: Caller, tenant: Arc<Tenant>) -> Self {
        let account = tenant.keys.get(&caller.key).cloned().unwrap_or_default();
        Self { digest: entry.hash, caller: Arc::new(caller), tenant, account }
    }

    /// The tier of its tenant, if the file says one.
    pub fn tier(&self) -> Option<&Tier> {
        self.tenant.tier.as_ref()
    }

    /// The models that it may use.
    pub fn models(&self) -> &Models {
        &self.tenant.models
    }

    /// The engine-control fields that it may use.
    pub fn allowed(&self) -> Permissions {
        self.tenant.allowed
    }

    /// Lets a request in, if the limits allow it. Also what is left of them then.
    pub fn enter(&self, now: Instant) -> (Standing, Result<Place, Error>) {
        meter::enter([&self.tenant.account, &self.account], now)
    }
}

impl Tenant {
    fn new(entry: &TenantEntry, before: Option<&Arc<Self>>) -> Self {
        let account = |limits, before: Option<&Account>| Account {
            limits,
            meter: before.map(|account| account.meter.clone()).unwrap_or_default(),
        };
        let key = |key: &KeyEntry| {
            let name: Arc<str> = key.name.as_str().into();
            let before = before.and_then(|tenant| tenant.keys.get(&name));
            let account = account(key.limits, before);
            (name, account)
        };
        Self {
            tier: entry.tier.as_deref().map(|tier| Tier::Known(tier.into())),
            models: Models::new(entry.models.as_deref()),
            allowed: Permissions::new(&entry.allow),
            account: account(entry.limits, before.map(|tenant| &tenant.account)),
            keys: entry.keys.iter().map(key).collect(),
        }
    }
}
