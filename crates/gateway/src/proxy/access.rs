//! Authenticates requests by API key or token, and checks which models and engine-control fields their
//! principals may use. Charges tokens to tenants when requests have ended.

use crate::backend::pool::BackendPool;
use crate::backend::routes::{ModelRoute, RouteTable};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::openai::{Api, ApiRoute, Permissions, RequestFields, RouteError};
use tokenweir_request::access::{
    ApiKey, ApiKeys, CapEdits, CappedRequest, ConcurrencyPermit, Cors, KeyFile, ModelAllowlist,
    QuotaRegistry, RateLimitStatus, RefusedToken, SaltKey, TokenCharge, TokenRefusal, TokenSource,
    remove_credentials,
};
use tokenweir_request::error::{self, GatewayError};
use tokenweir_request::observe::{Exchange, ExchangeRegistry, Sink};
use tokenweir_request::record::{ClientIdentity, RequestRecord};

/// The API keys, permissions and CORS settings of the client listener. The keys can be replaced while requests
/// are open.
#[derive(Default)]
pub struct AccessControl {
    /// The accepted API keys. `None`: no API key is required.
    keys: ArcSwapOption<ApiKeys>,
    /// Which web origins may use the gateway.
    pub cors: Cors,
    /// The engine-control permissions of all clients. An API key can add further ones.
    pub permissions: Permissions,
    /// The secret key from which the `cache_salt` of each tenant is derived. `None`: the gateway
    /// forwards the `cache_salt` of the client unchanged.
    pub salt_key: Option<SaltKey>,
    /// The reason why the last reload of the key file failed. `None`: the reload succeeded, so the gateway uses
    /// the keys of the file.
    reload_error: ArcSwapOption<String>,
    /// The source of principals for requests with a token instead of an API key. Empty: no source.
    token_source: OnceLock<Arc<dyn TokenSource>>,
    /// The quotas of tenants, keys and models of tenants.
    pub quotas: Arc<QuotaRegistry>,
}

/// Finds the open streams whose API key was removed from the key file.
#[derive(Default)]
pub struct RevocationSweep {
    /// The API keys at the previous sweep. `None`: no API key was required.
    keys: Option<Arc<ApiKeys>>,
    /// The client identities of all current keys, each as the memory address of its `ClientIdentity`.
    /// `None`: the keys have not changed so far, or no API key is required.
    valid: Option<HashSet<usize>>,
}

/// The concurrency permit of the tenant, or the error with which the gateway rejects the request. `Ok(None)`:
/// no concurrency limit applies to the request.
pub type PermitResult = Result<Option<ConcurrencyPermit>, GatewayError>;

/// The identity that authentication derived for a request. The default has no API key and no
/// permissions.
#[derive(Default)]
pub struct Principal {
    /// The API key of the request. `None`: the request was not authenticated by an API key.
    key: Option<Arc<ApiKey>>,
    /// The identity of a key that the current key file does not have any more.
    removed: Option<Arc<ClientIdentity>>,
    /// Why the token of the request was refused. `None`: the request has no token, or a valid one.
    refused_token: Option<RefusedToken>,
    /// The engine-control fields that the principal may use.
    pub permissions: Permissions,
    /// The rate limits of tenant and key that remain after this request.
    rate_limit_status: RateLimitStatus,
    /// The rate limits of the model that remain after this request. Empty: the tenant has no limits for the
    /// model, or the model is not known yet.
    model_status: OnceLock<RateLimitStatus>,
}

impl AccessControl {
    /// Access control with the keys of a key file. `None`: no API key is required.
    pub fn new(key_file: Option<&KeyFile>, cors: Cors) -> Self {
        Self::with_quotas(key_file, cors, Arc::default())
    }

    /// Like [`Self::new`], with quotas that another `AccessControl` may share.
    pub fn with_quotas(key_file: Option<&KeyFile>, cors: Cors, quotas: Arc<QuotaRegistry>) -> Self {
        let access = Self {
            cors,
            quotas,
            ..Self::default()
        };
        access.replace_keys(key_file);
        access
    }

    /// Replaces the API keys for new requests, and clears the reload error. Rate limits and quotas keep their
    /// used parts, and open requests continue. `None`: no API key is required any more.
    pub fn replace_keys(&self, key_file: Option<&KeyFile>) {
        self.keys.rcu(|previous| {
            let no_keys = ApiKeys::with_registry(self.quotas.clone());
            let previous = previous.as_deref().unwrap_or(&no_keys);
            key_file.map(|key_file| Arc::new(ApiKeys::new(key_file, previous)))
        });
        self.reload_error.store(None);
    }

    /// Also accepts the tokens that `source` accepts, if an API key is required. Later calls have no effect.
    pub fn accept_tokens(&self, source: Arc<dyn TokenSource>) {
        let _ = self.token_source.set(source);
    }

    /// Records the reason why a reload of the key file failed. [`Self::replace_keys`] clears the
    /// reason.
    pub fn set_reload_error(&self, problem: String) {
        self.reload_error.store(Some(Arc::new(problem)));
    }

    /// The reason why the last reload of the key file failed. `None`: the reload succeeded, so the gateway uses
    /// the keys of the file.
    pub fn reload_error(&self) -> Option<Arc<String>> {
        self.reload_error.load_full()
    }

    /// The keys that the last successful reload read. `None`: no API key is required.
    pub fn keys(&self) -> Option<Arc<ApiKeys>> {
        self.keys.load_full()
    }

    /// The response to a CORS preflight request. `methods` returns the methods of the path, or `None` for an
    /// unknown path. `None`: the request is no preflight.
    pub(super) fn preflight<B>(
        &self,
        request: &Request<B>,
        methods: impl FnOnce() -> Option<&'static str>,
    ) -> Option<Response<Full<Bytes>>> {
        let headers = self
            .cors
            .preflight(request.method(), request.headers(), methods)?;
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        *response.headers_mut() = headers;
        Some(response)
    }

    /// Authenticates a request by its token or API key, and counts the request towards the limits of the key.
    /// `/health` and `/version` need no key, as in vLLM. For every other path, the error about a missing key
    /// precedes other errors, so that a client without a key does not learn which paths exist.
    pub(super) fn authenticate(
        &self,
        route: Result<(ApiRoute, &str), RouteError>,
        headers: &HeaderMap,
        now: Instant,
    ) -> (Principal, PermitResult) {
        let keys = self.keys.load();
        let keys = match (&*keys, route) {
            (None, _) | (_, Ok((ApiRoute::Health | ApiRoute::Version, _))) => {
                let principal = Principal {
                    permissions: self.permissions,
                    ..Principal::default()
                };
                return (principal, Ok(None));
            }
            (Some(keys), _) => keys,
        };
        let tokens = self.token_source.get();
        let by_token =
            tokens.and_then(|source| source.authenticate(headers, keys, clock::wall_time()));
        let key = match by_token {
            Some(Ok(key)) => key,
            Some(Err(refusal)) => return Principal::refused(refusal),
            None => match keys.authenticate(headers) {
                Some(key) => key.clone(),
                None => return Principal::unknown(keys.removed_identity(headers)),
            },
        };
        let (rate_limit_status, permit) = match route {
            Ok((route, _)) if route.is_forwarded() => {
                let (rate_limit_status, permit) = key.enter(now);
                (rate_limit_status, permit.map(Some))
            }
            _ => (RateLimitStatus::default(), Ok(None)),
        };
        let permissions = self.permissions | key.tenant.permissions;
        (
            Principal {
                key: Some(key),
                removed: None,
                refused_token: None,
                permissions,
                rate_limit_status,
                model_status: OnceLock::new(),
            },
            permit,
        )
    }
}

impl RevocationSweep {
    /// A sweep that finds the open streams whose API key is removed after this call.
    pub fn new(access: &AccessControl) -> Self {
        Self {
            keys: access.keys(),
            valid: None,
        }
    }

    /// Marks the open streams whose API key is no longer among the keys as revoked. After the first change of
    /// the keys, each call examines all streams, because a request from before the change can begin its stream
    /// later.
    pub fn sweep(&mut self, access: &AccessControl, streams: &ExchangeRegistry, now: Instant) {
        let address = |identity: &Arc<ClientIdentity>| Arc::as_ptr(identity).addr();
        let keys = access.keys.load();
        if keys.as_ref().map(Arc::as_ptr) != self.keys.as_ref().map(Arc::as_ptr) {
            self.keys.clone_from(&keys);
            self.valid = self
                .keys
                .as_ref()
                .map(|keys| keys.identities().map(address).collect());
        }
        if let (Some(valid), Some(keys)) = (&self.valid, &self.keys) {
            // A token remains valid until its request ends, if its tenant still exists.
            let is_valid = |identity: &Arc<ClientIdentity>| {
                valid.contains(&address(identity))
                    || identity.is_of_token() && keys.has_tenant(&identity.tenant)
            };
            streams.mark_revoked(is_valid, now);
        }
    }
}

/// Charges the tokens of each request to its tenant when the request has ended, with any outcome.
impl Sink for AccessControl {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let Some(identity) = &record.caller else {
                continue;
            };
            if let Some(keys) = &*self.keys.load() {
                let ended = record.timings.end();
                keys.charge(identity, TokenCharge::from_record(record), ended);
            }
        }
    }
}

impl Principal {
    /// The principal of a request without a valid key, and the error. The client does not learn whether its key was valid
    /// before.
    fn unknown(removed: Option<Arc<ClientIdentity>>) -> (Self, PermitResult) {
        let principal = Self {
            removed,
            ..Self::default()
        };
        (principal, Err(GatewayError::InvalidApiKey))
    }

    /// The principal of a request whose token is refused, and the error.
    fn refused(refusal: TokenRefusal) -> (Self, PermitResult) {
        let principal = Self {
            refused_token: Some(RefusedToken(refusal.reason)),
            ..Self::default()
        };
        let error = if refusal.is_temporary {
            GatewayError::NoIssuerKeys
        } else {
            GatewayError::InvalidToken
        };
        (principal, Err(error))
    }

    /// The tenant of the principal. `None`: the request was not authenticated by an API key.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.key().map(|key| &*key.caller.tenant)
    }

    /// Counts a repetition of an open request towards all limits of the key except the limit of open requests.
    /// Fails if a limit is exceeded.
    pub fn count_repetition(&mut self, now: Instant) -> Result<(), GatewayError> {
        let Some(key) = &self.key else { return Ok(()) };
        let (rate_limit_status, result) = key.count_repetition(now);
        self.rate_limit_status = rate_limit_status;
        result
    }

    /// The rate limits that remain after this request.
    pub fn rate_limit_status(&self) -> RateLimitStatus {
        let of_model = self.model_status.get().copied().unwrap_or_default();
        self.rate_limit_status.most_restrictive(of_model)
    }

    /// Counts the request towards the limits of the tenant for its model, until the exchange ends. Fails if a
    /// limit is reached.
    fn enter_model(
        &self,
        pool: &BackendPool,
        exchange: &mut Exchange,
        fields: &RequestFields,
    ) -> Result<(), GatewayError> {
        let Some(key) = self.key().filter(|key| key.tenant.has_model_limits()) else {
            return Ok(());
        };
        let routes = pool.routes();
        let model = effective_model(fields.model.as_deref(), &routes);
        let entered = key.tenant.enter_model(model.unwrap_or(""), clock::now());
        let Some((status, permit)) = entered else {
            // For a request without a model, a backend would select one, perhaps one with a limit.
            return match model {
                Some(_) => Ok(()),
                None => Err(not_allowed(None)),
            };
        };
        let _ = self.model_status.set(status);
        exchange.keep(Box::new(permit?));
        Ok(())
    }

    /// The party to which the resources of a request are charged. `client`: the address of the client.
    pub(super) fn party(&self, client: IpAddr) -> Party {
        Party::new(self.tenant(), client)
    }

    /// The API key of the request. `None`: the request was not authenticated by an API key.
    pub fn key(&self) -> Option<&ApiKey> {
        self.key.as_deref()
    }

    pub(super) fn allowed_models(&self) -> &ModelAllowlist {
        static ALL: ModelAllowlist = ModelAllowlist::ALL;
        self.key.as_ref().map_or(&ALL, |key| key.models())
    }

    /// Writes the identity and the tier of the principal into the record. Removes the API key from the request
    /// headers, so that no backend gets the key.
    pub(super) fn annotate_record(&self, record: &mut RequestRecord, headers: &mut HeaderMap) {
        if let Some(refused) = self.refused_token {
            record.notes.set(refused);
        }
        record.caller.clone_from(&self.removed);
        let Some(key) = &self.key else { return };
        record.caller = Some(key.caller.clone());
        if let Some(tier) = key.tier() {
            record.tier = tier.clone();
        }
        remove_credentials(headers);
    }

    /// The route of the model that the request names. Records the label of the model. Fails if the
    /// principal may not use the model.
    pub fn model_route(
        &self,
        pool: &BackendPool,
        record: &mut RequestRecord,
        fields: &RequestFields,
    ) -> Result<Arc<ModelRoute>, GatewayError> {
        let routes = pool.routes();
        let route = routes.lookup(fields.model.as_deref()).clone();
        record.model = route.label.clone().requested_as(fields.model.as_deref());
        record.served_as.clone_from(&route.served_as);
        self.check_model_access(fields.model.as_deref(), &routes)?;
        Ok(route)
    }

    /// The route of the model that the request names, as [`Self::model_route`] returns it. If no backend lists
    /// the model any more, first reads the model lists again. Counts the request towards the limits of the
    /// tenant for the model, and fails if a limit is reached.
    pub(super) async fn find_route(
        &self,
        pool: &BackendPool,
        exchange: &mut Exchange,
        fields: &RequestFields,
    ) -> Result<Arc<ModelRoute>, GatewayError> {
        let mut route = self.model_route(pool, exchange.record(), fields)?;
        if route.absent_since.is_some() {
            drop(route);
            // Boxed, because few requests need the memory of this future.
            Box::pin(pool.read_models_again()).await;
            route = self.model_route(pool, exchange.record(), fields)?;
        }
        self.enter_model(pool, exchange, fields)?;
        Ok(route)
    }

    /// Fails if the principal may not use the model of a request. For a request without a model
    /// name or with an empty name, the default model of the backends is checked.
    fn check_model_access(
        &self,
        model: Option<&str>,
        routes: &RouteTable,
    ) -> Result<(), GatewayError> {
        let effective = effective_model(model, routes);
        if self.allowed_models().allow(effective) {
            return Ok(());
        }
        Err(not_allowed(effective))
    }

    /// Checks the request against the caps of the tenant and of the model. Returns the edits of its body.
    /// `priority`: the priority of its tier. `None`: the tier has no priority.
    pub(super) fn cap_request(
        &self,
        record: &RequestRecord,
        route: &ModelRoute,
        fields: &RequestFields,
        body: &[u8],
        priority: Option<i32>,
    ) -> Result<CapEdits, GatewayError> {
        // A background response ends before its tokens are known: only a later request returns them.
        let is_background = record.api == Some(Api::Responses) && fields.is_background;
        if is_background && self.key().is_some_and(ApiKey::has_token_limit) {
            let problem =
                "is not possible: this client has a limit of tokens, which would not count it";
            return Err(GatewayError::RequestCap {
                field: "background",
                problem: problem.to_owned(),
            });
        }
        let request = CappedRequest {
            tenant: self.key().and_then(|key| key.tenant.caps.as_ref()),
            model: route.caps.as_deref(),
            api: record.api,
            route: record.route,
            fields,
            prompt: record.options.prompt_bytes,
            body,
            priority,
        };
        request.check()
    }

    /// Removes the names of models that the principal may not use from an error text.
    pub(super) fn redact_error(&self, error: GatewayError, pool: &BackendPool) -> GatewayError {
        let GatewayError::UnknownModel { model, .. } = error else {
            return error;
        };
        let routes = pool.routes();
        let models = routes.models().iter().map(|model| &model.id);
        let allowed: Vec<_> = models
            .filter(|id| self.allowed_models().allow(Some(id)))
            .collect();
        GatewayError::UnknownModel {
            model,
            known: error::listed(allowed.into_iter()),
        }
    }
}

/// The error for a request for a model that the client may not use. `None`: the request names no model.
fn not_allowed(model: Option<&str>) -> GatewayError {
    let model = match model {
        Some(name) => format!("the model `{}`", error::truncate_model_name(name)),
        None => "the default model (the request names none)".to_owned(),
    };
    GatewayError::ModelNotAllowed { model }
}

/// The model of a request: the named model, or the default model of the backends.
fn effective_model<'a>(model: Option<&'a str>, routes: &'a RouteTable) -> Option<&'a str> {
    let named = model.filter(|name| !name.is_empty());
    named.or_else(|| routes.default_model())
}
