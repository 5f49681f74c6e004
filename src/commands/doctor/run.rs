//! Asks replicas, the configuration and a running gateway what is wrong with them.

use super::args::{Doctor, FailOn};
use crate::app::assembly::AssemblyError;
use crate::app::collectors;
use crate::app::parts::outbound;
use crate::app::sources::Sources;
use crate::backend::routes::Named;
use crate::commands::{Chain, variable, wrong};
use crate::config::{BackendConfig, Config, ConfigError, Loaded, Overrides, Secret, SecretError};
use crate::telemetry::otel::{Protocol, Settings};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_doctor::configuration::{self, Configuration};
use tokenweir_doctor::facts::{Collector, Facts, Gateway, Key, Replica};
use tokenweir_doctor::finding::{Finding, Severity};
use tokenweir_doctor::gather::{self, Plan, Target, Told};
use tokenweir_doctor::{checks, report};
use tokenweir_net::tls::{Alpn, Outbound};
use tokio::task::JoinSet;

/// The key of replicas that have none in a configuration, by the name that vLLM itself reads.
pub(crate) const REPLICA_KEY: &str = "VLLM_API_KEY";
/// The token of an admin port.
pub(crate) const ADMIN_TOKEN: &str = "TOKENWEIR_ADMIN_TOKEN";

/// How long sources of replicas are waited for.
const DISCOVERY: Duration = Duration::from_secs(2);
/// Replicas that are asked at the same time.
const AT_ONCE: usize = 64;
/// Columns of a line where nobody says how wide it is, and at most.
const WIDTH: usize = 100;

/// It cannot be run as asked.
const CANNOT: u8 = 2;

/// What is to be looked at.
struct Case {
    /// The configuration, and where it is from, if there is one.
    loaded: Option<Loaded>,
    replicas: Vec<BackendConfig>,
    told: Option<Told>,
}

pub(crate) async fn run(doctor: Doctor) -> ExitCode {
    let case = match case(&doctor).await {
        Ok(case) => case,
        Err(error) => return wrong(&error),
    };
    let facts = match facts(&doctor, case).await {
        Ok(facts) => facts,
        Err(error) => {
            eprintln!("error: {}", Chain(&error));
            return ExitCode::from(CANNOT);
        }
    };
    let findings = checks::examine(&facts);
    if doctor.json {
        show(&format_args!("{:#}\n", report::json(&facts, &findings)));
    } else {
        let width = textwrap::termwidth().min(WIDTH);
        show(&report::text(&facts, &findings, width));
    }
    code(&findings, doctor.fail_on)
}

/// On standard output, without colours where nobody wants them. A closed pipe is no failure.
pub(crate) fn show(report: &dyn Display) {
    let _ = write!(anstream::stdout(), "{report}");
}

fn code(findings: &[Finding], fail_on: FailOn) -> ExitCode {
    let limit = match fail_on {
        FailOn::Warning => Severity::Warning,
        FailOn::Error => Severity::Error,
    };
    let is_bad = findings.iter().any(|finding| finding.severity >= limit);
    if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

async fn case(doctor: &Doctor) -> Result<Case, ConfigError> {
    let named: Vec<BackendConfig> = doctor.backend.iter().cloned().map(BackendConfig::at).collect();
    let (loaded, told, found) = match (&doctor.admin, &doctor.config) {
        (Some(admin), _) => {
            let told = told(doctor, admin).await;
            let found = listed(&told);
            (None, Some(told), found)
        }
        (None, Some(file)) => {
            let loaded = Config::load(Some(file), Overrides::default())?;
            let found = if named.is_empty() {
                discovered(&loaded.config).await
            } else {
                loaded.config.backends.clone()
            };
            (Some(loaded), None, found)
        }
        (None, None) => (None, None, Vec::new()),
    };
    // Those that were named, with what is known of them.
    let known = |named: BackendConfig| {
        let found = found.iter().find(|found| found.url == named.url);
        found.cloned().unwrap_or(named)
    };
    let replicas: Vec<BackendConfig> = named.into_iter().map(known).collect();
    let replicas = if replicas.is_empty() { found } else { replicas };
    Ok(Case { loaded, replicas, told })
}

async fn told(doctor: &Doctor, admin: &Address) -> Told {
    let plan = plan(doctor, Outbound::of_machine(Alpn::Http1));
    let target = Target { id: "admin".into(), url: admin.clone(), key: key_in(ADMIN_TOKEN) };
    gather::gateway(&target, &plan).await
}

/// The replicas that a gateway has, with what its configuration says of them.
fn listed(told: &Told) -> Vec<BackendConfig> {
    let config = told.config.clone().and_then(|config| settings_in(config).ok());
    let configured = config.as_ref().map(|config| config.backends.as_slice());
    let listed = told.replicas.iter().map(|(id, url)| {
        let known = configured.unwrap_or_default().iter().find(|known| known.url == *url);
        let found = || BackendConfig { name: Some(id.clone()), ..BackendConfig::at(url.clone()) };
        known.cloned().unwrap_or_else(found)
    });
    listed.collect()
}

async fn discovered(config: &Config) -> Vec<BackendConfig> {
    let mut sources = Sources::start(&config.discovery);
    sources.first(DISCOVERY).await;
    sources.replicas(config)
}

async fn facts(doctor: &Doctor, case: Case) -> Result<Facts, AssemblyError> {
    let Case { loaded, replicas, told } = case;
    let (gateway, told_config) = match told {
        Some(told) => (Some(told.gateway), told.config),
        None => (None, None),
    };
    let (told_config, config_problem) = match told_config.map(settings_in).transpose() {
        Ok(config) => (config, None),
        Err(problem) => (None, Some(problem)),
    };
    let gateway = gateway.map(|gateway| gateway.map(|it| Gateway { config_problem, ..it }));
    let config = loaded.as_ref().map(|loaded| loaded.config.clone()).or(told_config);
    let is_configured = config.is_some();
    let config = config.unwrap_or_default();
    let outbound = match outbound(&config, &replicas) {
        // The files of a gateway may be on another machine.
        Err(_) if gateway.is_some() => Outbound::of_machine(Alpn::Http1),
        outbound => outbound?,
    };
    let plan = plan(doctor, outbound);
    let collector = collector(loaded.as_ref(), plan.timeout);
    let asking = ask(replicas.iter().map(target).collect(), &plan);
    let (collector, replicas) = tokio::join!(collector, asking);
    let config = compared(&config);
    Ok(Facts { config, is_configured, replicas, gateway, collector: collector? })
}

fn plan(doctor: &Doctor, outbound: Arc<Outbound>) -> Plan {
    let Doctor { timeout, idle, probe, .. } = *doctor;
    Plan { outbound, timeout, idle, probe }
}

fn target(replica: &BackendConfig) -> Target {
    let key = replica.api_key.as_ref().map_or_else(|| key_in(REPLICA_KEY), key);
    Target { id: replica.id().to_string(), url: replica.url.clone(), key }
}

fn key(secret: &Secret) -> Key {
    match secret.resolve(variable) {
        Ok(secret) => Key::Known(secret.bearer().clone()),
        Err(error) => Key::Missing(error.to_string()),
    }
}

/// The key in a variable of this name.
pub(crate) fn key_in(name: &str) -> Key {
    match Secret::Env(name.to_owned()).resolve(variable) {
        Ok(secret) => Key::Known(secret.bearer().clone()),
        Err(SecretError::Unset(_)) => Key::None,
        Err(error) => Key::Missing(error.to_string()),
    }
}

/// All of them, in their order.
async fn ask(targets: Vec<Target>, plan: &Plan) -> Vec<Replica> {
    let mut found = Vec::with_capacity(targets.len());
    let mut asking = JoinSet::new();
    for (place, target) in targets.into_iter().enumerate() {
        if asking.len() >= AT_ONCE {
            found.extend(asking.join_next().await.and_then(Result::ok));
        }
        let plan = plan.clone();
        asking.spawn(async move { (place, gather::replica(target, &plan).await) });
    }
    while let Some(asked) = asking.join_next().await {
        // One that panics is a defect of ours.
        found.extend(asked.ok());
    }
    found.sort_unstable_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, replica)| replica).collect()
}

/// Whether the collector of a configuration takes spans. A gateway that runs knows better itself.
async fn collector(
    loaded: Option<&Loaded>,
    limit: Duration,
) -> Result<Option<Collector>, AssemblyError> {
    let Some(loaded) = loaded else { return Ok(None) };
    let settings = Settings::read(collectors::spans(loaded, variable), variable)?;
    let Some(reached) = settings.reach(limit).await else { return Ok(None) };
    let protocol = match settings.protocol {
        Protocol::Grpc => "grpc",
        Protocol::HttpProtobuf => "http/protobuf",
    };
    let endpoint = settings.endpoint.unwrap_or_default();
    Ok(Some(Collector { endpoint, protocol, problem: reached.err() }))
}

/// The configuration of a running gateway, from the values that its admin listener shows.
fn settings_in(shown: Result<serde_json::Value, String>) -> Result<Config, String> {
    serde_json::from_value(shown?).map_err(|error| error.to_string())
}

/// The settings that checks read.
fn compared(config: &Config) -> Configuration {
    let Config { admission, access, timeouts, watch, .. } = config;
    Configuration {
        listen: config.listen,
        admin: config.admin,
        has_keys: access.keys_file.is_some(),
        has_admin_token: access.admin_token.is_some(),
        backends: config.backends.iter().map(compared_backend).collect(),
        models: config.models.iter().map(compared_model).collect(),
        policy: config.routing.policy,
        max_waiting: admission.max_waiting.filter(|_| admission.enabled),
        idle_connection: timeouts.idle,
        scrape_timeout: watch.timeout,
        max_page: watch.max_page,
    }
}

fn compared_backend(backend: &BackendConfig) -> configuration::Backend {
    configuration::Backend {
        id: backend.id().to_string(),
        url: backend.url.clone(),
        has_key: backend.api_key.is_some(),
    }
}

fn compared_model(named: &Named) -> configuration::Model {
    let Named { name, served_as, backends, .. } = named;
    configuration::Model {
        name: name.clone(),
        served_as: served_as.clone(),
        backends: backends.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_checks_assume_the_defaults_of_the_gateway_where_there_is_no_configuration() {
        assert_eq!(compared(&Config::default()), Configuration::default());
    }

    #[test]
    fn a_configuration_is_read_back_from_what_the_admin_listener_shows() {
        let text = "backends:\n  - { url: 'http://a:1', name: a, api_key: { env: K }, weight: 0 }\n\
                    models: [{ name: gpt, served_as: tiny }]\n\
                    timeouts: { idle_connection: 7s, first_output: null }\n\
                    tracing: { endpoint: 'http://c:4317', protocol: grpc }\n\
                    limits: { memory: 4GiB }\n";
        let loaded = Config::parse(text, Path::new("a.yaml"), Overrides::default()).unwrap();
        let shown = gather::bare(loaded.view()["config"].clone());
        assert_eq!(settings_in(Ok(shown)), Ok(loaded.config));
    }
}
