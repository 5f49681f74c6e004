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
use futures_util::stream::{self, StreamExt};
use std::future::ready;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_doctor::configuration::{self, GatewaySettings};
use tokenweir_doctor::facts::{
    BackendFacts, CollectorFacts, DoctorFacts, GatewayFacts, GatherError, TargetKey,
};
use tokenweir_doctor::finding::{Finding, FindingSeverity};
use tokenweir_doctor::gather::{self, GatewayAnswers, GatherOptions, GatherTarget, ServerClient};
use tokenweir_doctor::{checks, report};
use tokenweir_engine::address::BackendAddress;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_gateway::telemetry::otel::OtlpProtocol;
use tokenweir_net::tls::{Alpn, OutboundTls};
use tokenweir_option::StartError;

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
struct DoctorInputs {
    /// The configuration of `--config`, with the source of each value. `None`: the flag is not set.
    loaded: Option<LoadedConfig>,
    /// The backends to check.
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
    let plain = (!has_colours).then(|| report::without_styles(report));
    let _ = io::stdout().write_all(plain.as_deref().unwrap_or(report).as_bytes());
}

fn exit_code(findings: &[Finding], fail_on: DoctorFailOn) -> ExitCode {
    let min_severity = match fail_on {
        DoctorFailOn::Warning => FindingSeverity::Warning,
        DoctorFailOn::Error => FindingSeverity::Error,
    };
    let has_failed = findings
        .iter()
        .any(|finding| finding.remark.severity >= min_severity);
    if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

async fn gather_inputs(doctor: &DoctorArgs) -> Result<DoctorInputs, ConfigError> {
    let flag_backends: Vec<BackendConfig> = BackendList::flatten(doctor.backend.clone())
        .into_iter()
        .map(BackendConfig::at)
        .collect();
    let (loaded, gateway, gateway_config, known_backends) = match (&doctor.admin, &doctor.config) {
        (Some(admin), _) => {
            let (gateway, config, backends) = query_gateway(doctor, admin).await;
            (None, Some(gateway), config, backends)
        }
        (None, Some(file)) => {
            let loaded = Config::load(Some(file), Overrides::default())?;
            let backends = if flag_backends.is_empty() {
                discover_backends(&loaded.config).await
            } else {
                loaded.config.backends.clone()
            };
            (Some(loaded), None, None, backends)
        }
        (None, None) => (None, None, None, Vec::new()),
    };
    // A backend of --backend gets the settings that the configuration or the gateway has for it.
    let with_settings = |flag_backend: BackendConfig| {
        let configured = known_backends
            .iter()
            .find(|backend| backend.url == flag_backend.url);
        configured.cloned().unwrap_or(flag_backend)
    };
    let selected: Vec<BackendConfig> = flag_backends.into_iter().map(with_settings).collect();
    let backends = if selected.is_empty() {
        known_backends
    } else {
        selected
    };
    Ok(DoctorInputs {
        loaded,
        backends,
        gateway,
        gateway_config,
    })
}

/// Queries a running gateway. Returns its facts, its configuration, and its backends with the settings
/// of the configuration. If the configuration is unknown, the backends have default settings.
async fn query_gateway(
    doctor: &DoctorArgs,
    admin: &BackendAddress,
) -> (
    Result<GatewayFacts, GatherError>,
    Option<Config>,
    Vec<BackendConfig>,
) {
    let key = key_from_env(ADMIN_TOKEN_VARIABLE);
    let outbound = OutboundTls::with_native_roots(Alpn::Http1);
    let client = ServerClient::new(admin.clone(), key, outbound, doctor.timeout);
    let GatewayAnswers {
        gateway,
        config,
        backends,
    } = gather::gateway(&client).await;
    let config = config.map(|shown| Config::from_view(&shown?));
    let (config, config_problem) = match config.transpose() {
        Ok(config) => (config, None),
        Err(problem) => (None, Some(problem)),
    };
    let facts = gateway.map(|gateway| GatewayFacts {
        config_problem,
        ..gateway
    });
    let configured = config
        .as_ref()
        .map_or(&[][..], |config| config.backends.as_slice());
    let backends = backends.into_iter().map(|(id, url)| {
        let settings = configured
            .iter()
            .find(|backend| backend.url == url)
            .cloned();
        settings.unwrap_or_else(|| BackendConfig {
            name: Some(id),
            ..BackendConfig::at(url)
        })
    });
    let backends = backends.collect();
    (facts, config, backends)
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
    let config = loaded
        .as_ref()
        .map(|loaded| loaded.config.clone())
        .or(gateway_config);
    let is_configured = config.is_some();
    let config = config.unwrap_or_default();
    let outbound = match config.outbound_tls(&backends) {
        // The TLS files of a remote gateway may not exist on this machine.
        Err(_) if gateway.is_some() => OutboundTls::with_native_roots(Alpn::Http1),
        outbound => outbound?,
    };
    let DoctorArgs {
        timeout,
        idle,
        probe,
        ..
    } = *doctor;
    let options = GatherOptions {
        outbound,
        timeout,
        idle,
        probe,
    };
    let start_problems = loaded
        .as_ref()
        .map(|loaded| file_obstacles(loaded, variable));
    let start_problems = start_problems
        .into_iter()
        .flatten()
        .map(|error| error.to_string());
    let start_problems = start_problems.collect();
    let collector = check_collector(loaded.as_ref(), options.timeout);
    let gathering = gather_backends(backends.iter().map(backend_target).collect(), &options);
    let (collector, backends) = tokio::join!(collector, gathering);
    let config = checked_settings(&config);
    let collector = collector?;
    Ok(DoctorFacts {
        config,
        is_configured,
        backends,
        gateway,
        start_problems,
        collector,
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
    let gather = |(index, target): (usize, GatherTarget)| {
        let options = options.clone();
        // Boxed, because the future is as large as a backend's facts.
        tokio::spawn(async move {
            (
                index,
                Box::pin(gather::gather_backend(target, &options)).await,
            )
        })
    };
    // Unordered, so that the slowest backend does not delay the next one.
    let gathering = stream::iter(targets.into_iter().enumerate())
        .map(gather)
        .buffer_unordered(MAX_CONCURRENT_BACKENDS);
    // A panicked task has no result. A panic is a defect of this program.
    let mut gathered: Vec<_> = gathering
        .filter_map(|result| ready(result.ok()))
        .collect()
        .await;
    gathered.sort_unstable_by_key(|(index, _)| *index);
    gathered.into_iter().map(|(_, backend)| backend).collect()
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
    let Config {
        admission,
        access,
        timeouts,
        scrape,
        ..
    } = config;
    GatewaySettings {
        listen: *config.listen,
        admin: *config.admin,
        has_keys: access.keys_file.is_some(),
        has_admin_token: access.admin_token.is_some(),
        backends: config.backends.iter().map(checked_backend).collect(),
        models: checked_models(&config.models),
        objective_models: config
            .slos
            .iter()
            .filter_map(|slo| Some((slo.name.clone(), slo.model.clone()?)))
            .collect(),
        policy: config.routing.policy,
        max_waiting: if admission.enabled {
            admission.max_waiting
        } else {
            None
        },
        idle_connection: timeouts.idle_connection,
        scrape_timeout: scrape.timeout,
        max_page: scrape.max_page,
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
            let listed = ModelConfig {
                name: version.model.clone(),
                ..ModelConfig::default()
            };
            let named = models.iter().find(|other| other.name == version.model);
            checked.push(checked_model(&model.name, named.unwrap_or(&listed)));
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
