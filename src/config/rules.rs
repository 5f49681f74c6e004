//! What types cannot say: rules about the size of a value, and about values that must agree. A
//! broken rule names the value by its path, wherever it came from.

use super::{
    Config, Otlp, access, backends::BackendConfig, content, discovery, failures, limits,
    objectives, quality, transport,
};
use crate::backend::routes::Named;
use http::{HeaderName, Uri};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::admission::DEFAULT_CLASS;
use tokenweir_core::error::listed;
use tokenweir_core::record::BackendId;

/// A rule that is broken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// The values that break it. The first one that is no default is at fault.
    pub(super) paths: Vec<String>,
    /// What is wrong.
    pub(super) problem: String,
}

/// Fewest bytes of a capture: a file that is full has room for several of the longest lines.
const MIN_CAPTURE: usize = 1 << 20;

/// The largest weight of a replica.
const MAX_WEIGHT: u32 = 1_000_000;

/// Most decisions that are kept.
const MAX_EXPLAINED: usize = 16_384;

/// Most tiers.
const MAX_TIERS: usize = 20;

/// Most names of models, and the longest, in bytes.
const MAX_MODELS: usize = 100;
const MAX_MODEL: usize = 256;

/// The first rule that is broken.
pub(super) fn check(config: &Config) -> Result<(), Broken> {
    backends_are_usable(&config.backends)?;
    discovery::check(&config.discovery)?;
    names_are_usable(&config.models)?;
    names_have_backends(config)?;
    listeners_differ(config)?;
    durations_are_usable(config)?;
    sizes_are_usable(config)?;
    limits::check(config)?;
    transport::check(config)?;
    weights_are_usable(config)?;
    sessions_are_usable(config)?;
    admission_is_usable(config)?;
    explanations_are_bounded(config)?;
    labels_are_usable(config)?;
    searches_are_usable(config)?;
    tracing_is_usable(config)?;
    pushes_are_usable(&config.metrics.otlp)?;
    capture_is_usable(config)?;
    failures::check(config)?;
    content::check(&config.log.content)?;
    quality::check(&config.quality, &config.log.content)?;
    access::check(&config.access)?;
    objectives::check(config)
}

pub(super) fn broken(path: &str, problem: impl Into<String>) -> Broken {
    Broken { paths: vec![path.to_owned()], problem: problem.into() }
}

/// Whether no two are the same, and none has too much weight.
pub(super) fn backends_are_usable(backends: &[BackendConfig]) -> Result<(), Broken> {
    backends_differ(backends)?;
    match backends.iter().position(|backend| is_too_heavy(backend.weight)) {
        Some(index) => {
            let problem = format!("a weight is at most {MAX_WEIGHT}");
            Err(broken(&format!("backends.{index}.weight"), problem))
        }
        None => Ok(()),
    }
}

/// Whether a replica cannot have this weight.
pub(super) fn is_too_heavy(weight: u32) -> bool {
    weight > MAX_WEIGHT
}

fn backends_differ(backends: &[BackendConfig]) -> Result<(), Broken> {
    for (index, backend) in backends.iter().enumerate() {
        for (earlier_index, earlier) in backends.iter().take(index).enumerate() {
            let also = format!("backends[{earlier_index}]");
            if is_same_place(&earlier.url, &backend.url) {
                let problem = format!("{} is already the url of {also}", backend.url);
                return Err(broken(&format!("backends.{index}.url"), problem));
            }
            if earlier.id() == backend.id() {
                let problem = format!("`{}` is already the name of {also}", backend.id());
                let paths = [index, earlier_index].map(|index| format!("backends.{index}.name"));
                return Err(Broken { paths: paths.into(), problem });
            }
        }
    }
    Ok(())
}

/// `http://vllm` and `http://VLLM:80` are one place.
fn is_same_place(a: &Address, b: &Address) -> bool {
    let ((a_host, a_port), (b_host, b_port)) = (a.host_and_port(), b.host_and_port());
    a_port == b_port && a_host.eq_ignore_ascii_case(&b_host)
}

/// Each name is a label, and each leads to a model in one step.
fn names_are_usable(models: &[Named]) -> Result<(), Broken> {
    if models.len() > MAX_MODELS {
        return Err(broken("models", "each name multiplies series; no more than 100"));
    }
    let is_fit =
        |name: &str| (1..=MAX_MODEL).contains(&name.len()) && !name.chars().any(char::is_control);
    for (index, model) in models.iter().enumerate() {
        let Named { name, served_as, .. } = model;
        let path = |key: &str| format!("models.{index}.{key}");
        let texts = [("name", Some(name)), ("served_as", served_as.as_ref())];
        if let Some((key, _)) =
            texts.iter().find(|(_, text)| text.is_some_and(|text| !is_fit(text)))
        {
            return Err(broken(
                &path(key),
                "a model has 1 to 256 bytes, and no control characters",
            ));
        }
        if let Some(earlier) = models.iter().take(index).position(|other| other.name == *name) {
            let problem = format!("`{name}` is already the name of models[{earlier}]");
            return Err(broken(&path("name"), problem));
        }
        let Some(target) = served_as else { continue };
        let next = models.iter().find(|other| other.name == *target).and_then(Named::alias_of);
        if let Some(next) = next {
            let problem = format!("`{target}` is itself a name for `{next}`; write `{next}` here");
            return Err(broken(&path("served_as"), problem));
        }
    }
    Ok(())
}

fn names_have_backends(config: &Config) -> Result<(), Broken> {
    let ids: Vec<BackendId> = config.backends.iter().map(BackendConfig::id).collect();
    // Without any, those of the command line are yet to come, as those that will be found.
    let are_all_known = !ids.is_empty() && config.discovery.is_empty();
    for (index, model) in config.models.iter().enumerate() {
        let Some(wanted) = &model.backends else { continue };
        if wanted.is_empty() {
            let problem = "name one backend or more; null is all that serve the model";
            return Err(broken(&format!("models.{index}.backends"), problem));
        }
        let is_known = |name: &String| ids.iter().any(|id| id.as_str() == name);
        let stray = wanted.iter().position(|name| are_all_known && !is_known(name));
        if let Some(stray) = stray {
            let known = listed(ids.iter());
            let problem = format!("there is no backend `{}`; there are {known}", wanted[stray]);
            return Err(broken(&format!("models.{index}.backends.{stray}"), problem));
        }
    }
    Ok(())
}

fn listeners_differ(config: &Config) -> Result<(), Broken> {
    // Port 0 is any free port.
    if config.listen != config.admin || config.listen.port() == 0 {
        return Ok(());
    }
    let problem = format!("listen and admin cannot both be {}", config.admin);
    Err(Broken { paths: vec!["admin".to_owned(), "listen".to_owned()], problem })
}

fn durations_are_usable(config: &Config) -> Result<(), Broken> {
    let positive = [
        ("timeouts.connect", config.timeouts.connect),
        ("timeouts.response_headers", config.timeouts.headers),
        ("timeouts.idle_connection", config.timeouts.idle),
        ("watch.min_interval", config.watch.min_interval),
        ("watch.max_interval", config.watch.max_interval),
        ("watch.timeout", config.watch.timeout),
        ("admission.max_wait", config.admission.max_wait),
        ("stalls.floor", config.stalls.floor),
        ("slow.ttft", config.slow.ttft),
        ("slow.tpot", config.slow.tpot),
        ("slow.whole", config.slow.whole),
        ("slow.write_stall", config.slow.write_stall),
    ];
    if let Some((path, _)) =
        positive.iter().find(|(_, duration)| *duration < Duration::from_millis(1))
    {
        return Err(broken(path, "this must be 1ms or more"));
    }
    if config.watch.max_interval < config.watch.min_interval {
        let paths = ["watch.max_interval", "watch.min_interval"].map(str::to_owned);
        let problem = "watch.max_interval must not be less than watch.min_interval".to_owned();
        return Err(Broken { paths: paths.into(), problem });
    }
    Ok(())
}

fn sizes_are_usable(config: &Config) -> Result<(), Broken> {
    if config.watch.max_page == 0 {
        return Err(broken("watch.max_page", "this must be more than 0"));
    }
    Ok(())
}

fn sessions_are_usable(config: &Config) -> Result<(), Broken> {
    let names = &config.routing.session_headers;
    match names.iter().find(|name| name.parse::<HeaderName>().is_err()) {
        Some(name) => {
            Err(broken("routing.session_headers", format!("`{name}` is not the name of a header")))
        }
        None => Ok(()),
    }
}

fn explanations_are_bounded(config: &Config) -> Result<(), Broken> {
    let routing = &config.routing;
    if routing.explain_ring > MAX_EXPLAINED {
        return Err(broken("routing.explain_ring", format!("this is at most {MAX_EXPLAINED}")));
    }
    for (index, kind) in routing.shadow.iter().enumerate() {
        if routing.shadow[..index].contains(kind) {
            let problem = format!("`{}` is given twice", kind.name());
            return Err(broken(&format!("routing.shadow.{index}"), problem));
        }
    }
    Ok(())
}

fn weights_are_usable(config: &Config) -> Result<(), Broken> {
    let kv_aware = &config.routing.kv_aware;
    let weights = [
        ("routing.kv_aware.pressure", kv_aware.pressure),
        ("routing.kv_aware.interference", kv_aware.interference),
        ("routing.kv_aware.guard", kv_aware.guard),
        ("routing.kv_aware.session", kv_aware.session),
        ("routing.kv_aware.adapter_seconds", kv_aware.adapter_seconds),
    ];
    let is_weight = |weight: f64| weight.is_finite() && weight >= 0.0;
    if let Some((path, _)) = weights.iter().find(|(_, weight)| !is_weight(*weight)) {
        return Err(broken(path, "a weight must be 0 or more"));
    }
    let horizon = kv_aware.horizon_seconds;
    if !(horizon.is_finite() && horizon > 0.0) {
        return Err(broken("routing.kv_aware.horizon_seconds", "this must be more than 0"));
    }
    Ok(())
}

/// Beyond it, a cache cannot be told from a full one.
const MAX_KV_USAGE: f64 = 0.99;

fn admission_is_usable(config: &Config) -> Result<(), Broken> {
    let admission = &config.admission;
    let marks = [
        ("admission.max_waiting", admission.max_waiting),
        ("admission.max_in_flight", admission.max_in_flight),
    ];
    if let Some((path, _)) = marks.iter().find(|(_, mark)| *mark == Some(0)) {
        return Err(broken(path, "this must be 1 or more; null for no such mark"));
    }
    if admission.max_kv_usage.is_some_and(|mark| !(0.01..=MAX_KV_USAGE).contains(&mark)) {
        let problem = "this must be between 0.01 and 0.99; null for no such mark";
        return Err(broken("admission.max_kv_usage", problem));
    }
    let header = admission.tenant_header.as_ref();
    if header.is_some_and(|name| name.parse::<HeaderName>().is_err()) {
        return Err(broken("admission.tenant_header", "this is not the name of a header"));
    }
    for (index, class) in admission.classes.iter().enumerate() {
        let path = format!("admission.classes.{index}");
        if admission.classes[..index].contains(class) {
            return Err(broken(&path, format!("`{class}` stands here twice")));
        }
        let tiers = &config.tiers;
        let is_tier =
            tiers.names.contains(class) || tiers.keys.iter().any(|key| key.tier == *class);
        if !is_tier && class != DEFAULT_CLASS {
            let problem = format!("`{class}` is not a tier of `tiers`, nor `{DEFAULT_CLASS}`");
            return Err(broken(&path, problem));
        }
    }
    Ok(())
}

fn labels_are_usable(config: &Config) -> Result<(), Broken> {
    let tiers = &config.tiers;
    if tiers.header.as_ref().is_some_and(|name| name.parse::<HeaderName>().is_err()) {
        return Err(broken("tiers.header", "this is not the name of a header"));
    }
    let keys = tiers.keys.iter().enumerate();
    let of_keys = keys.map(|(index, key)| (format!("tiers.keys.{index}.tier"), &key.tier));
    let names = tiers.names.iter().enumerate();
    let mut all = names.map(|(index, name)| (format!("tiers.names.{index}"), name)).chain(of_keys);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_label = |name: &str| (1..=32).contains(&name.len()) && name.chars().all(is_plain);
    match all.find(|(_, name)| !is_label(name)) {
        Some((path, _)) => {
            Err(broken(&path, "a tier has 1 to 32 letters, digits and any of `-_.`"))
        }
        None if tiers.names.len() + tiers.keys.len() > MAX_TIERS => {
            Err(broken("tiers.names", "each tier multiplies series; no more than 20"))
        }
        None => Ok(()),
    }
}

fn searches_are_usable(config: &Config) -> Result<(), Broken> {
    let factor = config.stalls.factor;
    if !(factor.is_finite() && factor >= 1.0) {
        return Err(broken("stalls.factor", "this must be 1 or more"));
    }
    if config.stalls.abort_after.is_some_and(|limit| limit < config.stalls.floor) {
        return Err(broken("stalls.abort_after", "this must not be less than stalls.floor"));
    }
    let phrases = &config.answers.refusal_phrases;
    match phrases.iter().position(|phrase| phrase.trim().len() < 3) {
        Some(index) => {
            let path = format!("answers.refusal_phrases.{index}");
            Err(broken(&path, "a phrase has 3 letters or more"))
        }
        None => Ok(()),
    }
}

fn tracing_is_usable(config: &Config) -> Result<(), Broken> {
    if config.tracing.ratio.is_some_and(|ratio| !(0.0..=1.0).contains(&ratio)) {
        return Err(broken("tracing.ratio", "a ratio is between 0 and 1"));
    }
    let is_link = |url: &String| {
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        is_web && url.contains("{trace_id}") && !url.contains('@')
    };
    if config.tracing.ui.as_ref().is_some_and(|url| !is_link(url)) {
        let problem = "write an http:// or https:// URL with {trace_id} in it, and no password";
        return Err(broken("tracing.ui", problem));
    }
    match config.tracing.endpoint.as_deref().map(collector) {
        Some(Err(problem)) => Err(broken("tracing.endpoint", problem)),
        _ => Ok(()),
    }
}

fn pushes_are_usable(otlp: &Otlp) -> Result<(), Broken> {
    if otlp.interval.is_some_and(|interval| interval < Duration::from_secs(1)) {
        return Err(broken("metrics.otlp.interval", "this must be 1s or more"));
    }
    match otlp.endpoint.as_deref().map(collector) {
        Some(Err(problem)) => Err(broken("metrics.otlp.endpoint", problem)),
        _ => Ok(()),
    }
}

fn capture_is_usable(config: &Config) -> Result<(), Broken> {
    let capture = &config.capture;
    if !(capture.sample > 0.0 && capture.sample <= 1.0) {
        return Err(broken("capture.sample", "a share is more than 0 and at most 1"));
    }
    if capture.max_bytes < MIN_CAPTURE {
        return Err(broken("capture.max_bytes", "this must be 1MiB or more"));
    }
    if capture.file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return Err(broken("capture.file", "write the path of a file, or null"));
    }
    Ok(())
}

fn collector(endpoint: &str) -> Result<(), &'static str> {
    const NOT_URL: &str = "this is not a URL; write http://host:4317";
    let uri: Uri = endpoint.parse().map_err(|_| NOT_URL)?;
    let authority = uri.authority().ok_or(NOT_URL)?;
    if authority.as_str().contains('@') {
        return Err(
            "a user name or password in a URL would be shown; use OTEL_EXPORTER_OTLP_HEADERS",
        );
    }
    match uri.scheme_str() {
        None | Some("http" | "https") => Ok(()),
        Some(_) => Err("only http:// and https:// can be spoken to a collector"),
    }
}
