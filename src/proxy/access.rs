//! The door: the keys in force, whoever comes with one of them, and what is charged when a request
//! has ended.

use crate::backend::pool::Pool;
use crate::backend::routes::Routes;
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::access::{
    Charge, Cors, Key, Keys, Models, Place, Roster, SaltKey, Standing, take_credentials,
};
use tokenweir_core::error::{self, Error};
use tokenweir_core::observe::Sink;
use tokenweir_core::openai::control::Permissions;
use tokenweir_core::openai::route::{NoRoute, Route};
use tokenweir_core::record::RequestRecord;

/// Who may come in. Keys can be replaced while requests run.
#[derive(Default)]
pub struct Access {
    /// `None`: nobody needs one.
    keys: ArcSwapOption<Keys>,
    cors: Cors,
    /// The engine-control fields that everybody may use.
    allowed: Permissions,
    /// Derives the `cache_salt` of each tenant. `None`: clients' own salts pass.
    salts: Option<SaltKey>,
    /// Why the file of the keys is not what is in force.
    problem: ArcSwapOption<String>,
}

/// A request at the door: whose it is, and whether it comes in.
pub(super) struct Entry {
    pub(super) visitor: Visitor,
    /// Its place, for as long as it is open. `None`: none is counted.
    pub(super) place: Result<Option<Place>, Error>,
}

/// Who sends a request.
#[derive(Default)]
pub(super) struct Visitor {
    key: Option<Arc<Key>>,
    /// The engine-control fields that it may use.
    pub(super) allowed: Permissions,
    /// What is left of the visitor's limits.
    pub(super) standing: Standing,
}

/// Longest name of a model that is told back to a client, in characters.
const MAX_MODEL: usize = 100;

// === impl Access ===

impl Access {
    /// With these keys, or open to everybody.
    pub fn new(roster: Option<&Roster>, cors: Cors) -> Self {
        let access = Self { cors, ..Self::default() };
        access.replace(roster);
        access
    }

    /// Lets everybody use these engine-control fields.
    #[must_use]
    pub fn with_allowed(self, allowed: Permissions) -> Self {
        Self { allowed, ..self }
    }

    /// Derives the `cache_salt` of requests from their tenants.
    #[must_use]
    pub fn with_salts(self, salts: Option<SaltKey>) -> Self {
        Self { salts, ..self }
    }

    /// Puts other keys in force, for requests that begin from now on. What was used of limits
    /// stays used, and requests that run go on. `None`: nobody needs a key any more.
    pub fn replace(&self, roster: Option<&Roster>) {
        self.keys.rcu(|before| {
            let nobody = Keys::default();
            let before = before.as_deref().unwrap_or(&nobody);
            roster.map(|roster| Arc::new(Keys::new(roster, before)))
        });
        self.problem.store(None);
    }

    /// Says why the keys in force are older than their file. [`Access::replace`] ends that.
    pub fn complain(&self, problem: String) {
        self.problem.store(Some(Arc::new(problem)));
    }

    /// The last complaint.
    pub fn problem(&self) -> Option<Arc<String>> {
        self.problem.load_full()
    }

    /// The keys in force. `None`: nobody needs one.
    pub fn keys(&self) -> Option<Arc<Keys>> {
        self.keys.load_full()
    }

    pub(super) const fn salt_key(&self) -> Option<&SaltKey> {
        self.salts.as_ref()
    }

    pub(super) const fn cors(&self) -> &Cors {
        &self.cors
    }

    /// The answer to a browser that asks whether a page may send a request.
    pub(super) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Full<Bytes>>> {
        let headers = self.cors.preflight(request.method(), request.headers())?;
        let mut answer = Response::default();
        *answer.status_mut() = StatusCode::NO_CONTENT;
        *answer.headers_mut() = headers;
        Some(answer)
    }

    /// Looks at a request's key. Health and version are for everybody, as they are at vLLM; for
    /// everything else the key comes first, so that a stranger learns nothing else.
    pub(super) fn enter(
        &self,
        route: Result<(Route, &str), NoRoute>,
        headers: &HeaderMap,
        now: Instant,
    ) -> Entry {
        let keys = self.keys.load();
        let keys = match (&*keys, route) {
            (None, _) | (_, Ok((Route::Health | Route::Version, _))) => {
                let visitor = Visitor { allowed: self.allowed, ..Visitor::default() };
                return Entry { visitor, place: Ok(None) };
            }
            (Some(keys), _) => keys,
        };
        let Some(key) = keys.of(headers).cloned() else {
            return Entry { visitor: Visitor::default(), place: Err(Error::InvalidApiKey) };
        };
        let (standing, place) = match route {
            Ok((Route::Forward(_), _)) => {
                let (standing, place) = key.enter(now);
                (standing, place.map(Some))
            }
            _ => (Standing::default(), Ok(None)),
        };
        let allowed = self.allowed | key.allowed();
        Entry { visitor: Visitor { key: Some(key), allowed, standing }, place }
    }
}

/// Requests are charged when they have ended, however they did.
impl Sink for Access {
    fn finished(&self, record: &RequestRecord) {
        let Some(caller) = &record.caller else { return };
        if let Some(keys) = &*self.keys.load() {
            let ended = record.timings.ended.unwrap_or(record.timings.accepted);
            keys.charge(caller, Charge::of(record), ended);
        }
    }
}

// === impl Visitor ===

impl Visitor {
    /// The models that it may use.
    pub(super) fn models(&self) -> &Models {
        static ALL: Models = Models::ALL;
        self.key.as_ref().map_or(&ALL, |key| key.models())
    }

    /// Says in the record whose request it is. Its key then goes no further.
    pub(super) fn sign(&self, record: &mut RequestRecord, headers: &mut HeaderMap) {
        let Some(key) = &self.key else { return };
        record.caller = Some(key.caller.clone());
        if let Some(tier) = key.tier() {
            record.tier = tier.clone();
        }
        take_credentials(headers);
    }

    /// Whether it may use the model that a request names. A request with no model, or an empty one,
    /// gets the default model of the backends, if that is known.
    pub(super) fn may_use(&self, model: Option<&str>, routes: &Routes) -> Result<(), Error> {
        let named = model.filter(|name| !name.is_empty());
        let meant = named.or_else(|| routes.default_model());
        if self.models().allow(meant) {
            return Ok(());
        }
        let model = match meant {
            Some(name) => format!("the model `{}`", shortened(name)),
            None => "a model that it does not name".to_owned(),
        };
        Err(Error::ModelNotAllowed { model })
    }

    /// The error without the models that are not for this visitor.
    pub(super) fn censor(&self, error: Error, pool: &Pool) -> Error {
        let Error::UnknownModel { model, .. } = error else { return error };
        let routes = pool.routes();
        let models = routes.models().iter().map(|model| &model.id);
        let known: Vec<_> = models.filter(|id| self.models().allow(Some(id))).collect();
        Error::UnknownModel { model, known: error::listed(known.into_iter()) }
    }
}

fn shortened(model: &str) -> String {
    model.chars().take(MAX_MODEL).collect()
}
