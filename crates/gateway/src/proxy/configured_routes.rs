//! Paths of the backends that the configuration adds to the paths of the inference APIs.

use http::Method;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::RouteError;

/// A configured path. The gateway forwards a request for this path to a backend of the requested
/// model, and reads model, stream and usage as in other JSON APIs.
#[derive(Debug)]
pub struct ConfiguredRoute {
    /// The path that a request must match byte for byte.
    pub(crate) path: &'static str,
    methods: Vec<Method>,
    /// The accepted methods, separated by commas, as in the `Allow` header.
    allowed: &'static str,
    /// Timeout of the whole request. `None`: the timeout of the model or, if it has none, the global timeout.
    pub(crate) total: Option<Duration>,
    /// The fixed model and the length limit of bodies that are forwarded unread. `None`: the gateway reads the
    /// bodies.
    pub(crate) unread: Option<UnreadBody>,
}

/// The model and the length limit of request bodies that are forwarded unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadBody {
    pub model: String,
    /// Maximum length of a body, in bytes. `None`: the limit of other request bodies.
    pub max_bytes: Option<usize>,
}

/// The entries of `routes`.
#[derive(Debug, Default)]
pub struct ConfiguredRoutes(Vec<Arc<ConfiguredRoute>>);

impl ConfiguredRoute {
    /// A route whose bodies the gateway reads. `total`: its timeout.
    pub fn new(path: &str, methods: Vec<Method>, total: Option<Duration>) -> Self {
        let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
        let allowed = intern(&names.join(", "));
        Self {
            path: intern(path),
            methods,
            allowed,
            total,
            unread: None,
        }
    }

    /// Forwards the bodies of this route unread to the backends of one model. `max_bytes`: maximum
    /// length of a body. `None`: the limit of other request bodies.
    #[must_use]
    pub fn with_unread_body(self, model: &str, max_bytes: Option<usize>) -> Self {
        let unread = UnreadBody {
            model: model.to_owned(),
            max_bytes,
        };
        Self {
            unread: Some(unread),
            ..self
        }
    }
}

impl ConfiguredRoutes {
    /// Collects the entries of `routes`.
    pub fn new(routes: impl Iterator<Item = ConfiguredRoute>) -> Self {
        Self(routes.map(Arc::new).collect())
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|route| route.path)
    }

    /// The methods of a path, as the value of `Allow`. `None`: the path is not configured.
    pub(crate) fn methods(&self, path: &str) -> Option<&'static str> {
        self.0
            .iter()
            .find(|route| route.path == path)
            .map(|route| route.allowed)
    }

    /// The route of a request. A HEAD request has the route of a GET request.
    pub(crate) fn lookup(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<Arc<ConfiguredRoute>, RouteError> {
        let route = self
            .0
            .iter()
            .find(|route| route.path == path)
            .ok_or(RouteError::NotFound)?;
        let served_as = if *method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        if route.methods.contains(method) || route.methods.contains(served_as) {
            Ok(route.clone())
        } else {
            Err(RouteError::MethodNotAllowed(route.allowed))
        }
    }
}

/// Returns the text as a static string, to which records can refer. Its memory is never freed. This is
/// acceptable, because a configuration has few paths, and a reload with the same paths allocates nothing.
fn intern(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = lock(&TEXTS);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_and_its_methods_match() {
        let methods = vec![Method::GET, Method::POST];
        let routes = [ConfiguredRoute::new("/a/b", methods, None)];
        let routes = ConfiguredRoutes::new(routes.into_iter());
        assert_eq!(routes.lookup(&Method::POST, "/a/b").unwrap().path, "/a/b");
        assert!(routes.lookup(&Method::HEAD, "/a/b").is_ok());
        let wrong = routes.lookup(&Method::DELETE, "/a/b").unwrap_err();
        assert_eq!(wrong, RouteError::MethodNotAllowed("GET, POST"));
        assert_eq!(
            (routes.methods("/a/b"), routes.methods("/a")),
            (Some("GET, POST"), None)
        );
        for path in ["/a", "/a/b/", "//a/b", "/A/b"] {
            assert_eq!(
                routes.lookup(&Method::POST, path).unwrap_err(),
                RouteError::NotFound
            );
        }
        assert_eq!(intern("/a/b").as_ptr(), routes.0[0].path.as_ptr());
    }
}
