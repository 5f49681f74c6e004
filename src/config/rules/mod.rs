//! Validation rules that types cannot express: ranges of values and consistency between values. A
//! violation names the value by its path, independent of its source.

mod failure_handling;
mod gpu;
mod objectives;
mod payload_log;
mod quality;
pub(super) mod tls;
mod values;

use super::root::Config;
use super::sections::backends::{self, BackendConfig};
use super::sections::{access, discovery, identities, limits, peer_exchange, routes, webhooks};
use super::violation::{RuleViolation, violation_at, violation_of};
use http::Uri;
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_request::error::listed;
use tokenweir_routing::admission::DEFAULT_CLASS;

/// Maximum of `routing.decision_log_size`.
const MAX_DECISION_LOG_SIZE: usize = 16_384;

/// Maximum number of entries in `tiers.names`.
const MAX_TIERS: usize = 20;

/// Maximum number of `models`.
const MAX_MODEL_NAMES: usize = 100;
/// Maximum length of a model name, in bytes.
const MAX_MODEL_NAME_BYTES: usize = 256;

/// Checks the rules of the whole configuration and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    values::check(config)?;
    backends::check(&config.backends)?;
    discovery::check(&config.discovery)?;
    check_model_names(&config.models)?;
    check_model_backends(config)?;
    routes::check(&config.routes)?;
    check_listeners_distinct(config)?;
    check_intervals(config)?;
    limits::check(&config.limits)?;
    tls::check(config)?;
    check_kv_aware_horizon(config)?;
    check_cost(config)?;
    gpu::check(config)?;
    webhooks::check(&config.webhooks)?;
    identities::check(&config.identities)?;
    peer_exchange::check(&config.peer_exchange)?;
    check_admission(config)?;
    check_decision_log(config)?;
    check_tiers(config)?;
    check_stream_detection(config)?;
    check_tracing(config)?;
    failure_handling::check(config)?;
    payload_log::check(&config.log)?;
    quality::check(&config.quality, &config.log.payloads)?;
    access::check(&config.access)?;
    objectives::check(config)
}

/// Checks that model names are valid metric labels and unique, and that no alias has an alias as
/// its target.
fn check_model_names(models: &[ModelConfig]) -> Result<(), RuleViolation> {
    if models.len() > MAX_MODEL_NAMES {
        let problem = "too many models: at most 100, because each adds time series";
        return Err(violation_at("models", problem));
    }
    let is_valid = |name: &str| {
        (1..=MAX_MODEL_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
    };
    for (index, model) in models.iter().enumerate() {
        let ModelConfig { name, served_as, .. } = model;
        let path = |key: &str| format!("models.{index}.{key}");
        let texts = [("name", Some(name)), ("served_as", served_as.as_ref())];
        if let Some((key, _)) =
            texts.iter().find(|(_, text)| text.is_some_and(|text| !is_valid(text)))
        {
            return Err(violation_at(
                &path(key),
                "a model name has 1 to 256 bytes and no control characters",
            ));
        }
        if let Some(earlier) = models.iter().take(index).position(|other| other.name == *name) {
            let problem = format!("`{name}` is already the name of models[{earlier}]");
            return Err(violation_at(&path("name"), problem));
        }
        let Some(target) = served_as else { continue };
        let target_model = models.iter().find(|other| other.name == *target);
        if let Some(served) = target_model.and_then(ModelConfig::alias_of) {
            let problem =
                format!("`{target}` is itself an alias of `{served}`; write `{served}` here");
            return Err(violation_at(&path("served_as"), problem));
        }
    }
    Ok(())
}

/// Checks that the `backends` of each model are not empty and are configured.
fn check_model_backends(config: &Config) -> Result<(), RuleViolation> {
    let ids: Vec<BackendId> = config.backends.iter().map(BackendConfig::id).collect();
    // If `backends` is empty, flags or variables may name backends later. Discovery may find
    // backends that `backends` does not list.
    let are_ids_complete = !ids.is_empty() && config.discovery.is_empty();
    for (index, model) in config.models.iter().enumerate() {
        let Some(names) = &model.backends else { continue };
        if names.is_empty() {
            let problem = "list at least one backend, or write null for all that serve the model";
            return Err(violation_at(&format!("models.{index}.backends"), problem));
        }
        let is_configured = |name: &String| ids.iter().any(|id| id.as_str() == name);
        let unknown = names.iter().position(|name| are_ids_complete && !is_configured(name));
        if let Some(unknown) = unknown {
            let listed_ids = listed(ids.iter());
            let name = &names[unknown];
            let problem = format!("unknown backend `{name}`; `backends` has {listed_ids}");
            let mut paths =
                vec![format!("models.{index}.backends.{unknown}"), "backends".to_owned()];
            paths.extend((0..ids.len()).map(|index| format!("backends.{index}.name")));
            return Err(RuleViolation { paths, problem });
        }
    }
    Ok(())
}

fn check_listeners_distinct(config: &Config) -> Result<(), RuleViolation> {
    // Port 0 means any free port.
    if config.listen != config.admin || config.listen.port() == 0 {
        return Ok(());
    }
    let problem = format!("listen and admin cannot both be {}", config.admin);
    Err(violation_of(["admin", "listen"], problem))
}

fn check_intervals(config: &Config) -> Result<(), RuleViolation> {
    if config.scrape.max_interval < config.scrape.min_interval {
        let problem = "scrape.max_interval must not be less than scrape.min_interval";
        return Err(violation_of(["scrape.max_interval", "scrape.min_interval"], problem));
    }
    if config.sleep.idle.is_some() && !config.sleep.wake {
        let problem = "an engine that is put to sleep must be woken: set `sleep.wake: true`";
        return Err(violation_of(["sleep.idle", "sleep.wake"], problem));
    }
    Ok(())
}

fn check_cost(config: &Config) -> Result<(), RuleViolation> {
    match config.cost.gpu_hour_price.filter(|price| !backends::is_price(*price)) {
        Some(price) => Err(violation_at(
            "cost.gpu_hour_price",
            format!("{price} is not a price: write 0 or more"),
        )),
        None => Ok(()),
    }
}

fn check_decision_log(config: &Config) -> Result<(), RuleViolation> {
    let routing = &config.routing;
    if routing.decision_log_size > MAX_DECISION_LOG_SIZE {
        return Err(violation_at(
            "routing.decision_log_size",
            format!("this must be at most {MAX_DECISION_LOG_SIZE}"),
        ));
    }
    for (index, kind) in routing.shadow.iter().enumerate() {
        if routing.shadow[..index].contains(kind) {
            let problem = format!("`{}` is listed twice: remove one", kind.as_str());
            return Err(violation_at(&format!("routing.shadow.{index}"), problem));
        }
    }
    Ok(())
}

fn check_kv_aware_horizon(config: &Config) -> Result<(), RuleViolation> {
    let horizon = config.routing.kv_aware.horizon_seconds;
    if !(horizon.is_finite() && horizon > 0.0) {
        return Err(violation_at("routing.kv_aware.horizon_seconds", "this must be more than 0"));
    }
    Ok(())
}

/// Maximum of `admission.max_kv_usage`. A usage above it cannot be distinguished from a full cache.
const MAX_KV_USAGE: f64 = 0.99;

fn check_admission(config: &Config) -> Result<(), RuleViolation> {
    let admission = &config.admission;
    let thresholds = [
        ("admission.max_waiting", admission.max_waiting),
        ("admission.max_in_flight", admission.max_in_flight),
    ];
    if let Some((path, _)) = thresholds.iter().find(|(_, threshold)| *threshold == Some(0)) {
        return Err(violation_at(path, "this must be 1 or more, or null for no threshold"));
    }
    if admission.max_kv_usage.is_some_and(|usage| !(0.01..=MAX_KV_USAGE).contains(&usage)) {
        let problem = "this must be between 0.01 and 0.99, or null for no threshold";
        return Err(violation_at("admission.max_kv_usage", problem));
    }
    for (index, class) in admission.classes.iter().enumerate() {
        let path = format!("admission.classes.{index}");
        if admission.classes[..index].contains(class) {
            return Err(violation_at(&path, format!("`{class}` is listed twice: remove one")));
        }
        let tiers = &config.tiers;
        if !tiers.names.contains(class) && class != DEFAULT_CLASS {
            let problem = format!("`{class}` is neither a tier of `tiers` nor `{DEFAULT_CLASS}`");
            let paths = [path.as_str(), "tiers", "tiers.names"];
            return Err(violation_of(paths, problem));
        }
    }
    Ok(())
}

fn check_tiers(config: &Config) -> Result<(), RuleViolation> {
    let tiers = &config.tiers;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_label = |name: &str| (1..=32).contains(&name.len()) && name.chars().all(is_plain);
    match tiers.names.iter().position(|name| !is_label(name)) {
        Some(index) => Err(violation_at(
            &format!("tiers.names.{index}"),
            "a tier has 1 to 32 characters: letters, digits and `-_.`",
        )),
        None if tiers.names.len() > MAX_TIERS => Err(violation_at(
            "tiers.names",
            "too many tiers: at most 20, because each adds time series",
        )),
        None => Ok(()),
    }
}

fn check_stream_detection(config: &Config) -> Result<(), RuleViolation> {
    if config.stalls.abort_after.is_some_and(|limit| limit < config.stalls.min_gap) {
        let paths = ["stalls.abort_after", "stalls.min_gap"];
        return Err(violation_of(paths, "this must not be less than stalls.min_gap"));
    }
    let phrases = &config.refusal_detection.refusal_phrases;
    match phrases.iter().position(|phrase| phrase.trim().len() < 3) {
        Some(index) => {
            let path = format!("refusal_detection.refusal_phrases.{index}");
            Err(violation_at(&path, "a phrase has at least 3 characters"))
        }
        None => Ok(()),
    }
}

fn check_tracing(config: &Config) -> Result<(), RuleViolation> {
    let is_link = |url: &String| {
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        is_web && url.contains("{trace_id}") && !url.contains('@')
    };
    if config.tracing.ui.as_ref().is_some_and(|url| !is_link(url)) {
        let problem = "write an http:// or https:// URL with {trace_id} and without a password";
        return Err(violation_at("tracing.ui", problem));
    }
    match config.tracing.endpoint.as_deref().map(check_collector_url) {
        Some(Err(problem)) => Err(violation_at("tracing.endpoint", problem)),
        _ => Ok(()),
    }
}

fn check_collector_url(endpoint: &str) -> Result<(), &'static str> {
    const NOT_URL: &str = "this is not a URL; write http://host:4317";
    let uri: Uri = endpoint.parse().map_err(|_| NOT_URL)?;
    let authority = uri.authority().ok_or(NOT_URL)?;
    if authority.as_str().contains('@') {
        return Err("remove the user name and password, because the URL is shown: use \
             OTEL_EXPORTER_OTLP_HEADERS");
    }
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok(()),
        Some(_) => Err("collectors need http:// or https://"),
    }
}
