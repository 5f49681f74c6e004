//! The section `routes`: further paths that clients may use.

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;
use tokenweir_gateway::proxy::ConfiguredRoute;
use tokenweir_protocol::openai::route::{ApiRoute, RouteError};
use tokenweir_protocol::{settings_entry, units};
use tokenweir_settings::{
    CheckResult, ConfigSection, at_least_1ms, require, violation_at, violation_of,
};

settings_entry! {
    /// A path of the backends that clients may use in addition to the paths of the inference APIs.
    #[derive(Eq)]
    pub struct RouteConfig {
        /// The path, byte for byte. The backends get the same path.
        pub path: String,
        /// HTTP methods that the gateway forwards.
        #[serde(default = "default_methods")]
        pub methods: Vec<RouteMethod>,
        /// Timeout for the whole request, as `timeouts.total`. `None`: the timeout of the model, or
        /// else `timeouts.total`.
        #[serde(default, with = "units::OptionalDuration")]
        pub total: Option<Duration>,
        /// The model of all requests. The gateway then forwards each body unread, and sends the request
        /// once. `None`: the body names the model.
        pub model: Option<String>,
        /// Maximum length of a body that is forwarded unread. `None`: `limits.body`.
        #[serde(default, with = "units::OptionalSize")]
        pub max_body: Option<usize>,
    }
}

/// A method of a configured path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum RouteMethod {
    /// `GET`
    Get,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
}

/// Maximum number of configured paths.
const MAX_ROUTES: usize = 100;
/// Maximum length of a configured path, in bytes.
const MAX_PATH_BYTES: usize = 256;

impl RouteConfig {
    /// Checks the keys of the entry at `index`, except its path.
    fn check(&self, index: usize) -> CheckResult {
        let methods = format!("routes.{index}.methods");
        require(
            !self.methods.is_empty(),
            &methods,
            "write at least one method",
        )?;
        at_least_1ms(&format!("routes.{index}.total"), self.total)?;
        let model = format!("routes.{index}.model");
        let has_name = self.model.as_ref().is_none_or(|model| !model.is_empty());
        require(
            has_name,
            &model,
            "write the name of a model, or remove the key",
        )?;
        if self.max_body.is_some() && self.model.is_none() {
            let max_body = format!("routes.{index}.max_body");
            let problem = "this applies to routes with a `model` only: use limits.body";
            return Err(violation_of([&max_body, &model], problem));
        }
        Ok(())
    }

    /// Converts this entry of `routes` to the route for the proxy.
    pub(crate) fn to_route(&self) -> ConfiguredRoute {
        let methods = self.methods.iter().map(|method| method.to_http()).collect();
        let route = ConfiguredRoute::new(&self.path, methods, self.total);
        match &self.model {
            Some(model) => route.with_unread_body(model, self.max_body),
            None => route,
        }
    }
}

impl RouteMethod {
    const fn to_http(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Post => Method::POST,
            Self::Put => Method::PUT,
            Self::Patch => Method::PATCH,
            Self::Delete => Method::DELETE,
        }
    }
}

/// Values, rules and reload class of the section `routes`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = Vec<RouteConfig>;

    fn check(routes: &Vec<RouteConfig>, _: &C) -> CheckResult {
        check(routes)
    }
}

/// Checks that each path is plain, configured once, and none of the gateway's own paths.
fn check(routes: &[RouteConfig]) -> CheckResult {
    if routes.len() > MAX_ROUTES {
        return Err(violation_at(
            "routes",
            format!("too many paths: at most {MAX_ROUTES}"),
        ));
    }
    let mut seen = HashSet::new();
    for (index, route) in routes.iter().enumerate() {
        let path = format!("routes.{index}.path");
        let problem = "write a path such as `/v1/name`: a slash, then letters, digits and \
                       `-_.~/`, without `//` and without segments of dots";
        require(is_plain_path(&route.path), &path, problem)?;
        let known = ApiRoute::lookup(&Method::POST, &route.path);
        let is_free = known == Err(RouteError::NotFound);
        require(is_free, &path, "the gateway serves this path already")?;
        require(
            seen.insert(&route.path),
            &path,
            "this path is configured twice",
        )?;
        route.check(index)?;
    }
    Ok(())
}

/// Whether every server interprets the path in the same way.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let is_segment = |segment: &str| {
        !segment.is_empty() && !matches!(segment, "." | "..") && segment.bytes().all(is_plain)
    };
    path.len() <= MAX_PATH_BYTES
        && path
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(is_segment))
}

fn default_methods() -> Vec<RouteMethod> {
    vec![RouteMethod::Post]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &str) -> RouteConfig {
        RouteConfig {
            path: path.to_owned(),
            methods: default_methods(),
            total: None,
            model: None,
            max_body: None,
        }
    }

    #[test]
    fn only_plain_and_free_paths_are_accepted() {
        for path in ["/generative_scoring", "/cohere/v2/chat", "/v1/audio/speech"] {
            assert_eq!(check(&[route(path)]), Ok(()), "{path}");
        }
        for path in [
            "",
            "/",
            "no_slash",
            "//a",
            "/a/",
            "/a/../b",
            "/a%2fb",
            "/a?b",
            "/a;b",
            "/a b",
            "/v1/chat/completions",
            "/v1/models",
            "/v1/responses/resp_1",
        ] {
            assert!(check(&[route(path)]).is_err(), "{path}");
        }
        assert!(check(&[route("/a"), route("/a")]).is_err());
        assert!(
            check(&[RouteConfig {
                methods: Vec::new(),
                ..route("/a")
            }])
            .is_err()
        );
    }
}
