//! Authenticates requests by API key. A reload of the key file replaces the whole [`ApiKeys`].

use super::caps::RequestCaps;
use super::charge::TokenCharge;
use super::digest::KeyDigest;
use super::key_file::{KeyEntry, KeyFile, TenantEntry};
use super::model_allowlist::{self, ModelAllowlist};
use super::tokens::{SubjectLimiters, TokenGrant, TokenRefusal};
use super::usage::{
    self, ConcurrencyPermit, CountedAs, Limiters, ModelPermit, QuotaRegistry, RateLimitStatus,
    SubjectUsage, UsageLimiter, UsageLimits,
};
use crate::continuation::ContinuationMode;
use crate::error::GatewayError;
use crate::record::{ClientIdentity, ModelLabel, Tier};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_protocol::openai::Permissions;

/// The keys of all tenants, indexed by their digests.
#[derive(Debug, Default)]
pub struct ApiKeys {
    by_digest: HashMap<u64, Arc<ApiKey>>,
    /// Keys of earlier key files. They are refused, but logs name their tenant and key.
    removed: HashMap<u64, Arc<ApiKey>>,
    tenants: HashMap<Arc<str>, Arc<Tenant>>,
    /// Tenants of earlier key files. A tenant that returns keeps its earlier usage. While a program replaces a
    /// file of a folder, the tenants of this file are absent for a moment.
    absent: HashMap<Arc<str>, Arc<Tenant>>,
    /// Names of tenants that are label values of metrics: tenants of this key file and of earlier ones, at most
    /// [`MAX_TENANT_LABELS`]. All other tenants share one label value.
    tenant_labels: BTreeSet<Arc<str>>,
    /// Limits and usage of the subjects of tokens. They survive a reload of the key file.
    subjects: Arc<SubjectLimiters>,
    registry: Arc<QuotaRegistry>,
}

/// A key of the key file, its tenant, and the usage of both.
#[derive(Debug)]
pub struct ApiKey {
    digest: KeyDigest,
    /// Principal of requests with this key: the names of the tenant and of the key.
    pub caller: Arc<ClientIdentity>,
    /// The tenant to which requests with this key are charged.
    pub tenant: Arc<Tenant>,
    /// Limits and usage of this key alone. `None`: the key has no limits of its own.
    usage_limiter: Option<Arc<UsageLimiter>>,
    /// For a key that stands for a token: the rights that the token has instead of the tenant's. `None`: a key
    /// of the key file.
    token: Option<Box<TokenRights>>,
}

#[derive(Debug)]
struct TokenRights {
    tier: Option<Tier>,
    models: ModelAllowlist,
}

/// A tenant of the key file, with the usage of all its keys.
#[derive(Debug)]
pub struct Tenant {
    /// Tier of the tenant. `None`: the key file has no tier for the tenant.
    pub tier: Option<Tier>,
    /// The list of models of the tenant.
    pub models: ModelAllowlist,
    /// Permissions for engine-control fields that the tenant may use.
    pub permissions: Permissions,
    /// How another backend continues streams of the tenant. `None`: the setting of the model applies.
    pub continuation: Option<ContinuationMode>,
    /// Limits on the fields of each request. `None`: no caps.
    pub caps: Option<RequestCaps>,
    usage_limiter: Arc<UsageLimiter>,
    /// Limits and usage of each key that has limits of its own, by key name.
    key_usage_limiters: HashMap<Box<str>, Arc<UsageLimiter>>,
    model_usage_limiters: Vec<ModelLimiter>,
}

/// Limits and usage of a tenant's models whose names match a pattern.
#[derive(Debug)]
struct ModelLimiter {
    /// A name, or a prefix followed by `*`.
    pattern: Box<str>,
    limiter: Arc<UsageLimiter>,
}

/// Maximum number of tenants of earlier key files whose usage is kept.
const MAX_ABSENT_TENANTS: usize = 1_000;
/// Maximum number of keys of earlier key files that are remembered.
const MAX_REMOVED_KEYS: usize = 1_000;
/// Maximum number of tenants whose names are label values of metrics.
const MAX_TENANT_LABELS: usize = 1_000;

/// Checks the tokens of requests.
pub trait TokenSource: Send + Sync {
    /// The key that stands for the token of a request. This method does no I/O. `None`: the credentials do not
    /// look like a token, so they are looked up in the key file. Credentials that look like a token are never
    /// looked up there.
    fn authenticate(
        &self,
        headers: &HeaderMap,
        keys: &Arc<ApiKeys>,
        now: SystemTime,
    ) -> Option<Result<Arc<ApiKey>, TokenRefusal>>;
}

/// Header in which Anthropic clients send their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Maximum length of a key in bytes. A longer key is rejected before it is hashed, so that long headers cost no
/// CPU time.
const MAX_KEY_BYTES: usize = 512;

/// The token of an `Authorization: Bearer` header. `None`: the request has no such header.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// Removes the credentials of the client, which no backend may receive.
pub fn remove_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    headers.remove(X_API_KEY);
}

/// The key in a request. `Authorization` takes precedence over `x-api-key`.
pub fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    if headers.contains_key(AUTHORIZATION) {
        return bearer(headers);
    }
    headers.get(X_API_KEY).map(HeaderValue::as_bytes)
}

fn find_key<'a>(
    keys: &'a HashMap<u64, Arc<ApiKey>>,
    headers: &HeaderMap,
) -> Option<&'a Arc<ApiKey>> {
    let token = presented_key(headers).filter(|token| token.len() <= MAX_KEY_BYTES)?;
    let digest = KeyDigest::from_key(token);
    let key = keys.get(&digest.lookup_hash());
    key.filter(|key| key.has_digest(&digest))
}

impl ApiKeys {
    /// An empty set of keys. Keys that a later reload adds have their quotas in `registry`.
    pub fn with_registry(registry: Arc<QuotaRegistry>) -> Self {
        Self {
            registry,
            ..Self::default()
        }
    }

    /// The keys of a validated key file. Tenants and keys keep the usage that `previous` has for
    /// the same names.
    pub fn new(key_file: &KeyFile, previous: &Self) -> Self {
        let mut api_keys = Self {
            tenant_labels: previous.tenant_labels.clone(),
            subjects: previous.subjects.clone(),
            ..Self::with_registry(previous.registry.clone())
        };
        for entry in &key_file.tenants {
            let name: Arc<str> = entry.name.as_str().into();
            if api_keys.tenant_labels.len() < MAX_TENANT_LABELS {
                api_keys.tenant_labels.insert(name.clone());
            }
            let known = previous.known_tenant(&name);
            let tenant = Tenant::new(entry, &api_keys.registry, known);
            let tenant = Arc::new(tenant);
            for key in &entry.keys {
                let principal = previous.unchanged_identity(key, &name).unwrap_or_else(|| {
                    Arc::new(ClientIdentity {
                        tenant: name.clone(),
                        key: key.name.as_str().into(),
                        is_tenant_label: api_keys.tenant_labels.contains(&name),
                    })
                });
                let key = ApiKey::new(key, principal, tenant.clone());
                api_keys
                    .by_digest
                    .insert(key.digest.lookup_hash(), Arc::new(key));
            }
            api_keys.tenants.insert(name, tenant);
        }
        let earlier = previous.by_digest.iter().chain(&previous.removed);
        let removed = earlier.filter(|(hash, _)| !api_keys.by_digest.contains_key(*hash));
        let removed = removed.map(|(hash, key)| (*hash, key.clone()));
        api_keys.removed = removed.take(MAX_REMOVED_KEYS).collect();
        let earlier = previous.tenants.iter().chain(&previous.absent);
        let absent = earlier.filter(|(name, _)| !api_keys.tenants.contains_key(*name));
        let absent = absent.map(|(name, tenant)| (name.clone(), tenant.clone()));
        api_keys.absent = absent.take(MAX_ABSENT_TENANTS).collect();
        api_keys
    }

    /// The tenant of this name, from this key file or an earlier one.
    fn known_tenant(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.tenants.get(name).or_else(|| self.absent.get(name))
    }

    /// The identity of the key in `self` with the same secret, name and tenant as `entry`. `None`: no such key.
    /// A key that a reload does not change keeps its identity. So an open request can compare identities to
    /// check whether its key is still valid.
    fn unchanged_identity(&self, entry: &KeyEntry, tenant: &str) -> Option<Arc<ClientIdentity>> {
        let key = self.by_digest.get(&entry.hash.lookup_hash())?;
        let is_same = key.digest.is_same(&entry.hash)
            && *key.caller.key == *entry.name
            && *key.caller.tenant == *tenant;
        is_same.then(|| key.caller.clone())
    }

    /// The tenant and key names of all keys.
    pub fn identities(&self) -> impl Iterator<Item = &Arc<ClientIdentity>> {
        self.by_digest.values().map(|key| &key.caller)
    }

    /// The limits that are set, by their paths in the key file, such as `tenants[etl].limits.tokens_per_minute`.
    /// `tenant`: the limits of this tenant alone. `None`: those of all tenants.
    pub fn set_limits(&self, tenant: Option<&str>) -> BTreeMap<String, u64> {
        let mut set = BTreeMap::new();
        let is_asked = |name: &Arc<str>| tenant.is_none_or(|tenant| **name == *tenant);
        for (name, tenant) in self.tenants.iter().filter(|(name, _)| is_asked(name)) {
            let mut add = |path: String, limiter: &UsageLimiter| {
                for (limit, value) in limiter.limits.set() {
                    set.insert(format!("{path}.{limit}"), value);
                }
            };
            add(format!("tenants[{name}].limits"), &tenant.usage_limiter);
            for (key, limiter) in &tenant.key_usage_limiters {
                add(format!("tenants[{name}].keys[{key}].limits"), limiter);
            }
            for model in &tenant.model_usage_limiters {
                let path = format!("tenants[{name}].model_limits[{}]", model.pattern);
                add(path, &model.limiter);
            }
        }
        set
    }

    /// The key of a request. `None`: the request has no key, or the key is unknown.
    pub fn authenticate(&self, headers: &HeaderMap) -> Option<&Arc<ApiKey>> {
        find_key(&self.by_digest, headers)
    }

    /// The identity of the key of a refused request, if an earlier key file had the key. `None`: it is unknown.
    pub fn removed_identity(&self, headers: &HeaderMap) -> Option<Arc<ClientIdentity>> {
        let key = find_key(&self.removed, headers)?;
        Some(key.caller.clone())
    }

    /// The key that stands for a token. `None`: no tenant has this name.
    pub fn key_of_token(&self, grant: &TokenGrant) -> Option<Arc<ApiKey>> {
        let (name, tenant) = self.tenants.get_key_value(&grant.tenant)?;
        let caller = ClientIdentity {
            tenant: name.clone(),
            key: grant.key.clone(),
            is_tenant_label: self.tenant_labels.contains(name),
        };
        let rights = TokenRights {
            tier: grant.tier.clone(),
            models: tenant.models.narrowed(grant.models.as_deref()),
        };
        Some(Arc::new(ApiKey {
            digest: grant.digest,
            usage_limiter: self.subjects.limiter(&caller, grant, &self.registry),
            caller: Arc::new(caller),
            tenant: tenant.clone(),
            token: Some(Box::new(rights)),
        }))
    }

    /// Whether the present key file has a tenant of this name. Tenants of earlier files do not count.
    pub fn has_tenant(&self, name: &str) -> bool {
        self.tenants.contains_key(name)
    }

    /// Charges the tokens of a request that has ended to its tenant and its key. If a reload removed
    /// the key, only the tenant is charged.
    pub fn charge(&self, principal: &ClientIdentity, charge: TokenCharge, now: Instant) {
        let Some(tenant) = self.known_tenant(&principal.tenant) else {
            return;
        };
        tenant.usage_limiter.charge(charge.total(), now);
        if let Some(usage_limiter) = tenant.key_usage_limiters.get(&*principal.key) {
            usage_limiter.charge(charge.total(), now);
        } else if principal.is_of_token()
            && let Some(usage_limiter) = self.subjects.find(principal)
        {
            usage_limiter.charge(charge.total(), now);
        }
    }

    /// Names of the tenants that are label values of metrics.
    pub fn labels(&self) -> impl Iterator<Item = &Arc<str>> {
        self.tenant_labels.iter()
    }

    /// Number of keys in the key file.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether the set has no key. Clients with valid tokens may be admitted nevertheless.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// All tenants with their numbers of open requests.
    pub fn open(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        self.tenants
            .iter()
            .map(|(name, tenant)| (name, tenant.usage_limiter.open()))
    }

    /// The label values of all tenants, with their numbers of open requests. Several tenants can share a label
    /// value.
    pub fn open_by_label(&self) -> impl Iterator<Item = (&str, u32)> {
        self.open().map(|(name, open)| {
            let is_label = self.tenant_labels.contains(name);
            (if is_label { name } else { ModelLabel::OTHER }, open)
        })
    }

    /// The tenants, keys and models that have quotas.
    pub fn quota_subjects(&self) -> impl Iterator<Item = Arc<SubjectUsage>> {
        let tenants = self.tenants.values().chain(self.absent.values());
        let limiters = tenants.flat_map(|tenant| {
            let models = tenant.model_usage_limiters.iter();
            let models = models.map(|model| &model.limiter);
            let keys = tenant.key_usage_limiters.values();
            [&tenant.usage_limiter]
                .into_iter()
                .chain(keys)
                .chain(models)
        });
        let of_keys = limiters.filter_map(|limiter| limiter.subject_with_quotas());
        of_keys.cloned().chain(self.subjects.with_quotas())
    }
}

impl ApiKey {
    fn new(entry: &KeyEntry, caller: Arc<ClientIdentity>, tenant: Arc<Tenant>) -> Self {
        let usage_limiter = tenant.key_usage_limiters.get(&*caller.key).cloned();
        Self {
            digest: entry.hash,
            caller,
            tenant,
            usage_limiter,
            token: None,
        }
    }

    /// Compares digests in constant time.
    pub fn has_digest(&self, digest: &KeyDigest) -> bool {
        self.digest.is_same(digest)
    }

    /// Tier of requests with this key. `None`: neither the token nor the tenant has a tier.
    pub fn tier(&self) -> Option<&Tier> {
        let of_token = self.token.as_ref().and_then(|token| token.tier.as_ref());
        of_token.or(self.tenant.tier.as_ref())
    }

    /// Models that requests with this key may use.
    pub fn models(&self) -> &ModelAllowlist {
        self.token
            .as_ref()
            .map_or(&self.tenant.models, |token| &token.models)
    }

    /// Starts a request if the limits of the tenant and of the key allow it. Also returns the quota that
    /// remains after the request. The error is [`GatewayError::RateLimited`].
    pub fn enter(
        &self,
        now: Instant,
    ) -> (RateLimitStatus, Result<ConcurrencyPermit, GatewayError>) {
        usage::enter(self.limiters(), now)
    }

    /// Counts a repetition of an open request like [`Self::enter`], but not as a further open request.
    pub fn count_repetition(&self, now: Instant) -> (RateLimitStatus, Result<(), GatewayError>) {
        usage::count(self.limiters(), CountedAs::Repetition, now)
    }

    /// Whether a limit of the key, of its tenant or of a model of the tenant counts tokens.
    pub fn has_token_limit(&self) -> bool {
        let tenant = &self.tenant;
        let of_key = self.usage_limiter.as_ref();
        let of_models = tenant.model_usage_limiters.iter();
        let limiters = of_key.into_iter().chain([&tenant.usage_limiter]);
        limiters
            .chain(of_models.map(|model| &model.limiter))
            .any(|limiter| limiter.limits.count_tokens())
    }

    fn limiters(&self) -> Limiters<'_> {
        Limiters {
            group: &self.tenant.usage_limiter,
            key: self.usage_limiter.as_deref(),
        }
    }
}

impl Tenant {
    fn new(
        entry: &TenantEntry,
        registry: &Arc<QuotaRegistry>,
        previous: Option<&Arc<Self>>,
    ) -> Self {
        let name = &entry.name;
        let limited_keys = entry
            .keys
            .iter()
            .filter(|key| key.limits != UsageLimits::default());
        let key_usage_limiter = |key: &KeyEntry| {
            let previous = previous.and_then(|tenant| tenant.key_usage_limiters.get(&*key.name));
            let subject = format!("{name}/key/{}", key.name);
            let limiter = UsageLimiter::new(subject, key.limits, registry, previous);
            (key.name.as_str().into(), limiter)
        };
        let model_usage_limiter = |(pattern, limits): (&String, &UsageLimits)| {
            let previous = previous.and_then(|tenant| tenant.model_limiter_of(pattern));
            let subject = format!("{name}/model/{pattern}");
            ModelLimiter {
                pattern: pattern.as_str().into(),
                limiter: UsageLimiter::new(subject, *limits, registry, previous),
            }
        };
        Self {
            tier: entry.tier.as_deref().map(|tier| Tier::Known(tier.into())),
            models: ModelAllowlist::new(entry.models.as_deref()),
            permissions: Permissions::new(&entry.allow),
            continuation: entry.continuation,
            caps: entry.caps.clone(),
            usage_limiter: UsageLimiter::new(
                name.clone(),
                entry.limits,
                registry,
                previous.map(|tenant| &tenant.usage_limiter),
            ),
            key_usage_limiters: limited_keys.map(key_usage_limiter).collect(),
            model_usage_limiters: entry.model_limits.iter().map(model_usage_limiter).collect(),
        }
    }

    fn model_limiter_of(&self, pattern: &str) -> Option<&Arc<UsageLimiter>> {
        let mut limiters = self.model_usage_limiters.iter();
        let found = limiters.find(|limiter| *limiter.pattern == *pattern);
        found.map(|found| &found.limiter)
    }

    /// Whether `model_limits` is set for the tenant.
    pub fn has_model_limits(&self) -> bool {
        !self.model_usage_limiters.is_empty()
    }

    /// Starts a request for a model if the tenant's limits for the model allow it. `None`: no such limits.
    pub fn enter_model(
        &self,
        model: &str,
        now: Instant,
    ) -> Option<(RateLimitStatus, Result<ModelPermit, GatewayError>)> {
        let limiters = self.model_usage_limiters.iter();
        let matching = limiters.filter(|limiter| model_allowlist::matches(&limiter.pattern, model));
        let longest = matching.max_by_key(|limiter| limiter.pattern.len())?;
        Some(ModelPermit::enter(&longest.limiter, now))
    }
}
