//! Gathers facts about backends, the configuration and a running gateway, runs the checks and
//! prints the findings.

use super::args::{DoctorArgs, DoctorFailOn};
use crate::app::check::file_obstacles;
use crate::app::discovery_sources::DiscoverySources;
use crate::app::options;
use crate::commands::{
    ADMIN_TOKEN_VARIABLE, BackendList, ErrorChain, report_config_error, report_problem,
    resolve_optional_secret, variable,
};
use crate::config::{BackendConfig, Config, ConfigError, LoadedConfig, Overrides, Secret};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_doctor::configuration::{self, GatewaySettings};
use tokenweir_doctor::facts::{
    BackendFacts, CollectorFacts, DoctorFacts, GatewayFacts, GatherError, TargetKey,
};
use tokenweir_doctor::finding::{Finding, FindingSeverity};
use tokenweir_doctor::gather::{self, GatherOptions, GatherTarget, ServerClient};
use tokenweir_doctor::text_report::without_styles;
use tokenweir_doctor::{checks, report};
use tokenweir_engine::address::BackendAddress;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_gateway::telemetry::otel::OtlpProtocol;
use tokenweir_net::tls::{Alpn, OutboundTls};
use tokenweir_option::StartError;
use tokio::sync::Semaphore;

/// Environment variable of the API key for backends without an `api_key` in a configuration. vLLM
/// reads the same variable.
pub(crate) const BACKEND_KEY_VARIABLE: &str = "VLLM_API_KEY";

/// Time limit for the first results of discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of backends that are examined concurrently.
const MAX_CONCURRENT_BACKENDS: usize = 64;
/// Maximum width of the report, in columns.
const MAX_COLUMNS: usize = 100;

/// Exit code if the checks cannot start, for example because a TLS file is unreadable. Invalid arguments have
/// the same exit code.
const EXIT_CANNOT_RUN: u8 = 2;

/// The configuration, the backends and the gateway that the arguments of `doctor` select.
#[derive(Default)]
struct DoctorInputs {
    /// The configuration of `--config`, with the source of each value. `None`: the flag is not set.
    loaded: Option<LoadedConfig>,
    backends: Vec<BackendConfig>,
    /// Facts about the running gateway of `--admin`, or the error while reading them. `None`: the flag is not
    /// set.
    gateway: Option<Result<GatewayFacts, GatherError>>,
    /// The configuration of the running gateway. `None`: no gateway was named, it did not respond, or its
    /// configuration cannot be parsed.
    gateway_config: Option<Config>,
}

pub(crate) async fn run(doctor: DoctorArgs) -> ExitCode {
    let inputs = match gather_inputs(&doctor).await {
        Ok(inputs) => inputs,
        Err(error) => return report_config_error(&error),
    };
    let facts = match Box::pin(gather_facts(&doctor, inputs)).await {
        Ok(facts) => facts,
        Err(error) => return report_problem(ErrorChain(&*error), EXIT_CANNOT_RUN),
    };
    let findings = checks::examine(&facts);
    if doctor.json {
        print_report(&format!("{:#}\n", report::json(&facts, &findings)));
    } else {
        let width = textwrap::termwidth().min(MAX_COLUMNS);
        print_report(&report::text(&facts, &findings, width));
    }
    exit_code(&findings, doctor.fail_on)
}

/// Prints a report to standard output. Removes the colours if standard output is no terminal or colours are
/// disabled. A closed pipe is not an error.
pub(crate) fn print_report(report: &str) {
    let is_disabled = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_forced = variable("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let is_capable = io::stdout().is_terminal() && variable("TERM").as_deref() != Some("dumb");
    let has_colours = !is_disabled && (is_capable || is_forced);
    let plain = (!has_colours).then(|| without_styles(report));
    let _ = io::stdout().write_all(plain.as_deref().unwrap_or(report).as_bytes());
}

fn exit_code(findings: &[Finding], fail_on: DoctorFailOn) -> ExitCode {
    let min = match fail_on {
        DoctorFailOn::Warning => FindingSeverity::Warning,
        DoctorFailOn::Error => FindingSeverity::Error,
    };
    let has_failed = findings
        .iter()
        .any(|finding| finding.remark.severity >= min);
    ExitCode::from(u8::from(has_failed))
}

async fn gather_inputs(doctor: &DoctorArgs) -> Result<DoctorInputs, ConfigError> {
    let flags = BackendList::flatten(doctor.backend.clone()).into_iter();
    let flags: Vec<BackendConfig> = flags.map(BackendConfig::at).collect();
    let mut inputs = DoctorInputs::default();
    if let Some(admin) = &doctor.admin {
        inputs = query_gateway(doctor, admin).await;
    } else if let Some(file) = &doctor.config {
        let loaded = Config::load(Some(file), Overrides::default())?;
        inputs.backends = if flags.is_empty() {
            discover_backends(&loaded.config).await
        } else {
            loaded.config.backends.clone()
        };
        inputs.loaded = Some(loaded);
    }
    if !flags.is_empty() {
        // A backend of --backend gets the settings that the configuration or the gateway has for it.
        let known = |flag: BackendConfig| find_backend(&inputs.backends, &flag.url).unwrap_or(flag);
        inputs.backends = flags.into_iter().map(known).collect();
    }
    Ok(inputs)
}

fn find_backend(backends: &[BackendConfig], url: &BackendAddress) -> Option<BackendConfig> {
    let mut backends = backends.iter();
    backends.find(|backend| backend.url == *url).cloned()
}

/// Queries a running gateway: its facts, its configuration, and its backends with the settings of the
/// configuration. If the configuration is unknown, the backends have default settings.
async fn query_gateway(doctor: &DoctorArgs, admin: &BackendAddress) -> DoctorInputs {
    let key = key_from_env(ADMIN_TOKEN_VARIABLE);
    let outbound = OutboundTls::with_native_roots(Alpn::Http1);
    let client = ServerClient::new(admin.clone(), key, outbound, doctor.timeout);
    let mut answers = gather::gateway(&client).await;
    let config = answers.config.map(|shown| Config::from_view(&shown?));
    let gateway_config = config.transpose().unwrap_or_else(|problem| {
        if let Ok(gateway) = &mut answers.gateway {
            gateway.config_problem = Some(problem);
        }
        None
    });
    let mut backends = Vec::new();
    for (id, url) in answers.backends {
        let configured = gateway_config.as_ref();
        let configured = configured.and_then(|config| find_backend(&config.backends, &url));
        backends.push(configured.unwrap_or_else(|| BackendConfig {
            name: Some(id),
            ..BackendConfig::at(url)
        }));
    }
    DoctorInputs {
        loaded: None,
        backends,
        gateway: Some(answers.gateway),
        gateway_config,
    }
}

/// Returns the backends of a configuration, and the backends that its discovery sources find within
/// [`DISCOVERY_TIMEOUT`].
async fn discover_backends(config: &Config) -> Vec<BackendConfig> {
    let mut sources = DiscoverySources::start(&config.discovery);
    sources.wait_for_all_sources(DISCOVERY_TIMEOUT).await;
    sources.backends(config)
}

async fn gather_facts(
    doctor: &DoctorArgs,
    inputs: DoctorInputs,
) -> Result<DoctorFacts, StartError> {
    let DoctorInputs {
        loaded,
        backends,
        gateway,
        gateway_config,
    } = inputs;
    let of_file = loaded.as_ref().map(|loaded| loaded.config.clone());
    let config = of_file.or(gateway_config);
    let is_configured = config.is_some();
    let config = config.unwrap_or_default();
    let outbound = match config.outbound_tls(&backends) {
        // The TLS files of a remote gateway may not exist on this machine.
        Err(_) if gateway.is_some() => OutboundTls::with_native_roots(Alpn::Http1),
        outbound => outbound?,
    };
    let options = GatherOptions {
        outbound,
        timeout: doctor.timeout,
        idle: doctor.idle,
        probe: doctor.probe,
    };
    let mut start_problems = Vec::new();
    if let Some(loaded) = &loaded {
        let obstacles = file_obstacles(loaded, variable);
        start_problems.extend(obstacles.iter().map(ToString::to_string));
    }
    let collector = check_collector(loaded.as_ref(), options.timeout);
    let gathering = gather_backends(backends.iter().map(backend_target).collect(), &options);
    let (collector, backends) = tokio::join!(collector, gathering);
    Ok(DoctorFacts {
        config: checked_settings(&config),
        is_configured,
        backends,
        gateway,
        start_problems,
        collector: collector?,
        status_checks: options::status_checks(),
    })
}

fn backend_target(backend: &BackendConfig) -> GatherTarget {
    let key = backend
        .api_key
        .as_ref()
        .map_or_else(|| key_from_env(BACKEND_KEY_VARIABLE), resolve_key);
    GatherTarget {
        id: backend.id().to_string(),
        url: backend.url.clone(),
        metrics_url: backend.metrics_url.clone(),
        key,
    }
}

fn resolve_key(secret: &Secret) -> TargetKey {
    match secret.resolve(variable) {
        Ok(secret) => TargetKey::Known(secret.into_bearer()),
        Err(error) => TargetKey::Missing(error.to_string()),
    }
}

/// Reads the key from the environment variable `name`. `TargetKey::None`: the variable is not set.
pub(crate) fn key_from_env(name: &str) -> TargetKey {
    match resolve_optional_secret(&Secret::Env(name.to_owned())) {
        Ok(key) => key.map_or(TargetKey::None, TargetKey::Known),
        Err(error) => TargetKey::Missing(error.to_string()),
    }
}

/// Gathers the facts of all backends concurrently. The result is in the order of `targets`.
async fn gather_backends(targets: Vec<GatherTarget>, options: &GatherOptions) -> Vec<BackendFacts> {
    let slots = Arc::new(Semaphore::new(MAX_CONCURRENT_BACKENDS));
    let gather = |target: GatherTarget| {
        let slots = slots.clone();
        let options = options.clone();
        tokio::spawn(async move {
            let _slot = slots.acquire().await;
            // Boxed, because the future is as large as a backend's facts.
            Box::pin(gather::gather_backend(target, &options)).await
        })
    };
    let tasks: Vec<_> = targets.into_iter().map(gather).collect();
    let mut gathered = Vec::new();
    for task in tasks {
        // A panicked task has no result. A panic is a defect of this program.
        gathered.extend(task.await);
    }
    gathered
}

/// Sends an empty export request to the trace collector of a configuration file. `None`: no file, or no
/// collector in it. The collector of a running gateway is not checked, because its `/status` reports failed
/// exports.
async fn check_collector(
    loaded: Option<&LoadedConfig>,
    timeout: Duration,
) -> Result<Option<CollectorFacts>, StartError> {
    let Some(loaded) = loaded else {
        return Ok(None);
    };
    let settings = loaded.tracing_settings(variable)?;
    let Some(result) = settings.reach(timeout).await else {
        return Ok(None);
    };
    let protocol = match settings.protocol {
        OtlpProtocol::Grpc => "grpc",
        OtlpProtocol::HttpProtobuf => "http/protobuf",
    };
    let endpoint = settings.endpoint.unwrap_or_default();
    Ok(Some(CollectorFacts {
        endpoint,
        protocol,
        problem: result.err(),
    }))
}

/// Returns the settings of a configuration that the checks of `doctor` read.
fn checked_settings(config: &Config) -> GatewaySettings {
    let objectives = config.slos.iter();
    let objectives = objectives.filter_map(|slo| Some((slo.name.clone(), slo.model.clone()?)));
    let mut max_waiting = config.admission.max_waiting;
    if !config.admission.enabled {
        max_waiting = None;
    }
    GatewaySettings {
        listen: *config.listen,
        admin: *config.admin,
        has_keys: config.access.keys_file.is_some(),
        has_admin_token: config.access.admin_token.is_some(),
        backends: config.backends.iter().map(checked_backend).collect(),
        models: checked_models(&config.models),
        objective_models: objectives.collect(),
        policy: config.routing.policy,
        max_waiting,
        idle_connection: config.timeouts.idle_connection,
        scrape_timeout: config.scrape.timeout,
        max_page: config.scrape.max_page,
        kv_events: config.kv_events.enabled,
    }
}

fn checked_backend(backend: &BackendConfig) -> configuration::ConfiguredBackend {
    configuration::ConfiguredBackend {
        id: backend.id().to_string(),
        url: backend.url.clone(),
        has_key: backend.api_key.is_some(),
        kv_events: backend.kv_events.as_ref().and_then(|source| source.enabled),
    }
}

/// The names that lead to models of backends. A split model leads to the models of all its versions.
fn checked_models(models: &[ModelConfig]) -> Vec<configuration::ConfiguredModel> {
    let mut checked = Vec::new();
    for model in models {
        if model.split.is_empty() {
            checked.push(checked_model(&model.name, model));
        }
        for version in &model.split {
            let named = models.iter().find(|other| other.name == version.model);
            let named = named.cloned().unwrap_or_else(|| ModelConfig {
                name: version.model.clone(),
                ..ModelConfig::default()
            });
            checked.push(checked_model(&model.name, &named));
        }
    }
    checked
}

fn checked_model(name: &str, target: &ModelConfig) -> configuration::ConfiguredModel {
    let served_as = target.served_as.as_ref().unwrap_or(&target.name);
    configuration::ConfiguredModel {
        name: name.to_owned(),
        served_as: Some(served_as.clone()).filter(|served| served != name),
        backends: target.backends.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    #[test]
    fn the_configuration_is_read_from_the_admin_listener() {
        let text = "backends:\n  - { url: 'http://a:1', name: a, api_key: { env: K }, weight: 0 }\n\
                    models: [{ name: gpt, served_as: tiny }]\n\
                    timeouts: { idle_connection: 7s, first_output: null }\n\
                    tracing: { endpoint: 'http://c:4317', protocol: grpc }\n\
                    limits: { memory: 4GiB }\n";
        let loaded = parse(text).unwrap();
        let shown = gather::bare(loaded.view()["config"].clone());
        assert_eq!(Config::from_view(&shown), Ok(loaded.config));
    }
}
