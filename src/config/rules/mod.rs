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
use super::sections::{
    access, backends, discovery, identities, limits, peer_exchange, routes, webhooks,
};
use super::violation::{RuleViolation, require, violation_at, violation_of};
use http::Uri;
use tokenweir_gateway::backend::routes::ModelConfig;
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
    backends::check_price("cost.gpu_hour_price", config.cost.gpu_hour_price)?;
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
    let problem = "too many models: at most 100, because each adds time series";
    require(models.len() <= MAX_MODEL_NAMES, "models", problem)?;
    let is_valid = |name: &str| {
        (1..=MAX_MODEL_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
    };
    for (index, model) in models.iter().enumerate() {
        let ModelConfig { name, served_as, .. } = model;
        let path = |key: &str| format!("models.{index}.{key}");
        for (key, text) in [("name", Some(name)), ("served_as", served_as.as_ref())] {
            let problem = "a model name has 1 to 256 bytes and no control characters";
            require(text.is_none_or(|text| is_valid(text)), &path(key), problem)?;
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
    for (index, model) in config.models.iter().enumerate() {
        let Some(names) = &model.backends else { continue };
        let problem = "list at least one backend, or write null for all that serve the model";
        require(!names.is_empty(), &format!("models.{index}.backends"), problem)?;
        for (number, name) in names.iter().enumerate() {
            let Some(problem) = values::unknown_backend(config, name) else { continue };
            let mut paths =
                vec![format!("models.{index}.backends.{number}"), "backends".to_owned()];
            let backends = 0..config.backends.len();
            paths.extend(backends.map(|index| format!("backends.{index}.name")));
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

fn check_decision_log(config: &Config) -> Result<(), RuleViolation> {
    let is_size = config.routing.decision_log_size <= MAX_DECISION_LOG_SIZE;
    let problem = format!("this must be at most {MAX_DECISION_LOG_SIZE}");
    require(is_size, "routing.decision_log_size", problem)
}

fn check_kv_aware_horizon(config: &Config) -> Result<(), RuleViolation> {
    let horizon = config.routing.kv_aware.horizon_seconds;
    let is_positive = horizon.is_finite() && horizon > 0.0;
    require(is_positive, "routing.kv_aware.horizon_seconds", "this must be more than 0")
}

/// Maximum of `admission.max_kv_usage`. A usage above it cannot be distinguished from a full cache.
const MAX_KV_USAGE: f64 = 0.99;

fn check_admission(config: &Config) -> Result<(), RuleViolation> {
    let admission = &config.admission;
    let thresholds = [
        ("admission.max_waiting", admission.max_waiting),
        ("admission.max_in_flight", admission.max_in_flight),
    ];
    for (path, threshold) in thresholds {
        require(threshold != Some(0), path, "this must be 1 or more, or null for no threshold")?;
    }
    let is_usage = |usage: f64| (0.01..=MAX_KV_USAGE).contains(&usage);
    let problem = "this must be between 0.01 and 0.99, or null for no threshold";
    require(admission.max_kv_usage.is_none_or(is_usage), "admission.max_kv_usage", problem)?;
    for (index, class) in admission.classes.iter().enumerate() {
        let path = format!("admission.classes.{index}");
        let is_first = !admission.classes[..index].contains(class);
        require(is_first, &path, format!("`{class}` is listed twice: remove one"))?;
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
    for (index, name) in tiers.names.iter().enumerate() {
        let problem = "a tier has 1 to 32 characters: letters, digits and `-_.`";
        require(values::is_label(name), &format!("tiers.names.{index}"), problem)?;
    }
    let problem = "too many tiers: at most 20, because each adds time series";
    require(tiers.names.len() <= MAX_TIERS, "tiers.names", problem)
}

fn check_stream_detection(config: &Config) -> Result<(), RuleViolation> {
    if config.stalls.abort_after.is_some_and(|limit| limit < config.stalls.min_gap) {
        let paths = ["stalls.abort_after", "stalls.min_gap"];
        return Err(violation_of(paths, "this must not be less than stalls.min_gap"));
    }
    for (index, phrase) in config.refusal_detection.refusal_phrases.iter().enumerate() {
        let path = format!("refusal_detection.refusal_phrases.{index}");
        require(phrase.trim().len() >= 3, &path, "a phrase has at least 3 characters")?;
    }
    Ok(())
}

fn check_tracing(config: &Config) -> Result<(), RuleViolation> {
    let is_link = |url: &String| {
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        is_web && url.contains("{trace_id}") && !url.contains('@')
    };
    let problem = "write an http:// or https:// URL with {trace_id} and without a password";
    require(config.tracing.ui.as_ref().is_none_or(is_link), "tracing.ui", problem)?;
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
