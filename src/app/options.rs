//! Starts, reloads and stops the options of the list in `options.rs`, and collects their metrics and checks.

use crate::config::{BackendConfig, Config};
use crate::options::with_options;
use tokenweir_diagnose::FLEET_RULES;
use tokenweir_gateway::proxy::option::RequestOptions;
use tokenweir_gateway::telemetry::otel::resource::host_name;
use tokenweir_option::prelude::*;

/// The background tasks of the core, in the order of metrics.
const CORE_TASKS: &[BackgroundTask] = &[
    BackgroundTask::LISTENER,
    BackgroundTask::CONNECTION,
    BackgroundTask::ADMIN_LISTENER,
    BackgroundTask::REQUEST,
    BackgroundTask::ROUTING,
    BackgroundTask::STALL_SWEEP,
    BackgroundTask::MEMORY_WATCH,
    BackgroundTask::CERTIFICATES,
    BackgroundTask::ADMISSION,
    BackgroundTask::DRAIN_PROGRESS,
    BackgroundTask::RELOAD,
    BackgroundTask::SYSTEMD_WATCHDOG,
    BackgroundTask::HEALTH_CHECK,
    BackgroundTask::DISCOVERY,
    BackgroundTask::DIAGNOSIS,
    BackgroundTask::KEYS_FILE,
    BackgroundTask::SPAN_EXPORT,
    BackgroundTask::RECORD_SINK,
    BackgroundTask::LOG_WRITER,
];

/// The settings of an option in a configuration: its section, or values that its entry reads from other
/// sections.
#[cfg(feature = "options")]
macro_rules! settings {
    ($config:ident, $key:ident $description:literal) => {
        $config.$key.clone()
    };
    ($config:ident, $key:ident $read:expr) => {{
        let read: fn(&Config) -> _ = $read;
        read($config)
    }};
    ($config:ident, $key:ident) => {{
        let _ = $config;
    }};
}

/// Defines [`AttachedOptions`] and the lists of constants from the options.
macro_rules! define_attached {
    ({} $(
        $key:ident: $option:ty
        $(, $description:literal)?
        $(, reads $read:expr)?
        $(, facet $facet:expr)?
    ;)*) => {
        /// The options of the list.
        #[derive(Default)]
        pub struct AttachedOptions {
            $(
                #[doc = concat!("The option `", stringify!($key), "`.")]
                pub $key: Arc<$option>,
            )*
        }

        #[cfg_attr(
            not(feature = "options"),
            expect(unused_variables, unused_mut, reason = "the list is empty")
        )]
        impl AttachedOptions {
            /// Starts the options, before the first backend exists. Must be called inside a Tokio runtime.
            pub fn start(
                config: &Config,
                context: &StartContext<'_>,
                parts: &mut OptionParts,
            ) -> Result<Self, StartError> {
                let options = Self::default();
                $(options.$key.start(settings::$key(config), context, parts)?;)*
                Ok(options)
            }

            /// Adds the parts that need the gateway, and attaches the options to it.
            pub fn join(
                &self,
                config: &Config,
                gateway: &mut ProxyContext,
                parts: &mut GatewayParts,
            ) -> Result<(), StartError> {
                $(self.$key.join(settings::$key(config), gateway, parts)?;)*
                let requests = std::mem::take(&mut parts.requests);
                gateway.state.extensions = std::mem::take(&mut parts.extensions);
                gateway.state.extensions.add(Arc::new(RequestOptions(requests)));
                Ok(())
            }

            /// The parts of the options that belong to the backend of `entry`. Status blocks keep this order.
            pub fn facets(&self, config: &Config, entry: &BackendConfig) -> Vec<Box<dyn BackendFacet>> {
                let mut facets = Vec::new();
                $(
                    facets.extend(self.$key.facet());
                    $(
                        let create: fn(&Config, &BackendConfig) -> Box<dyn BackendFacet> = $facet;
                        facets.push(create(config, entry));
                    )?
                )*
                facets
            }

            /// Prepares the settings of a reload. An error changes nothing.
            pub(super) fn reload(
                &self,
                config: &Config,
                context: &StartContext<'_>,
            ) -> Result<Vec<Change>, StartError> {
                Ok(vec![$(self.$key.clone().reload(settings::$key(config), context)?,)*])
            }

            /// Adds the blocks of the options to a status.
            pub fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
                $(self.$key.add_status(status, now);)*
            }

            pub(super) fn scraped_pages(config: &Config) -> usize {
                let mut pages = 0;
                $(pages += <$option>::scraped_pages(&settings::$key(config));)*
                pages
            }

            /// Why options cannot start on this machine.
            pub(super) fn obstacles(config: &Config, context: &StartContext<'_>) -> Vec<Obstacle> {
                let mut found = Vec::new();
                $(found.extend(<$option>::obstacles(&settings::$key(config), context));)*
                found
            }

            /// The destinations to which options write requests.
            pub(super) fn outputs(config: &Config) -> Vec<OutputTarget> {
                let mut outputs = Vec::new();
                $(outputs.extend(<$option>::output(&settings::$key(config)));)*
                outputs
            }
        }

        #[cfg(feature = "options")]
        mod settings {
            use super::{Config, GatewayOption};

            $(
                pub(super) fn $key(config: &Config) -> <$option as GatewayOption>::Settings {
                    settings!(config, $key $($description)? $($read)?)
                }
            )*
        }

        pub(super) const ROWS: &[&[MetricDescriptor]] = &[$(<$option>::ROWS,)*];
        /// The rules of each option about the gateway.
        const RULES: &[&[DiagnosisRule]] = &[$(<$option>::RULES,)*];
        /// For each option, the parts that it adds to an entry of the decision log.
        const DECISION_PARTS: &[&[DecisionPart]] = &[$(<$option>::DECISION_PARTS,)*];
        /// The checks of each option by `tokenweir doctor`.
        const STATUS_CHECKS: &[&[StatusCheck]] = &[$(<$option>::STATUS_CHECKS,)*];
        const TASKS: &[&[BackgroundTask]] = &[$(<$option>::TASKS,)*];
    };
}

with_options!(define_attached {});

/// The context in which options start. `env` returns the value of an environment variable.
pub fn start_context<'a>(
    config: &Config,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> StartContext<'a> {
    let host = host_name();
    StartContext {
        env,
        admin_port: config.admin.port(),
        admin_url: config.admin_url(&host),
        max_file_bytes: config.log.max_file_bytes as u64,
        host,
    }
}

/// All rules about the fleet and the gateway: those of the core, and those of options.
pub fn fleet_rules() -> impl Iterator<Item = &'static DiagnosisRule> {
    FLEET_RULES
        .into_iter()
        .chain(RULES.iter().copied().flatten())
}

/// All rules: those about the fleet and the gateway, and then those about engines.
pub fn diagnosis_rules() -> impl Iterator<Item = &'static DiagnosisRule> {
    fleet_rules().chain(&tokenweir_diagnose::RULES)
}

/// The parts that options add to an entry of the decision log.
pub fn decision_parts() -> Vec<DecisionPart> {
    DECISION_PARTS.concat()
}

/// The checks of the options by `tokenweir doctor`.
pub fn status_checks() -> Vec<StatusCheck> {
    STATUS_CHECKS.concat()
}

/// The background tasks of the core and of options, in the order of metrics.
pub fn background_tasks() -> Vec<BackgroundTask> {
    [CORE_TASKS, &TASKS.concat()].concat()
}
