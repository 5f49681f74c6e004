//! The options of the list in `options.rs`, and what follows from the list.

use super::diagnosis;
use crate::config::{BackendConfig, Config};
use crate::options::with_options;
use tokenweir_gateway::metric::{counted, counts};
use tokenweir_gateway::proxy::option::RequestOptions;
use tokenweir_gateway::telemetry::catalog;
use tokenweir_gateway::telemetry::otel;
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

/// The metric of the background tasks.
const TASK_ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_task_panics_total",
    "Panics of background tasks. The log has the location.",
    &[counted("task", |_| {
        let tasks = background_tasks().into_iter();
        tasks.map(|task| (task.as_str(), task.panics())).collect()
    })],
)];

/// The settings of an option in a configuration: its section, or what its entry reads from other sections.
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
                parts: &mut OptionParts,
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

            /// Number of pages that options scrape.
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

            /// Where options write requests.
            pub(super) fn outputs(config: &Config) -> Vec<OutputTarget> {
                let mut outputs = Vec::new();
                $(outputs.extend(<$option>::output(&settings::$key(config)));)*
                outputs
            }
        }

        /// The settings of each option.
        #[cfg(feature = "options")]
        mod settings {
            use super::{Config, GatewayOption};

            $(
                pub(super) fn $key(config: &Config) -> <$option as GatewayOption>::Settings {
                    settings!(config, $key $($description)? $($read)?)
                }
            )*
        }

        /// The metrics of each option.
        const ROWS: &[&[MetricDescriptor]] = &[$(<$option>::ROWS,)*];
        /// What each option adds to an entry of the decision log.
        const DECISION_PARTS: &[&[DecisionPart]] = &[$(<$option>::DECISION_PARTS,)*];
        /// The checks of each option by `tokenweir doctor`.
        const STATUS_CHECKS: &[&[StatusCheck]] = &[$(<$option>::STATUS_CHECKS,)*];
        /// The background tasks of each option.
        const TASKS: &[&[BackgroundTask]] = &[$(<$option>::TASKS,)*];
    };
}

with_options!(define_attached {});

/// What options may know of a configuration. `env` returns the value of an environment variable.
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

/// What options add to an entry of the decision log.
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

/// Returns the rows of all metrics, in the order of the metrics reference: those of the core, and those of
/// each option.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    let core = [TASK_ROWS, diagnosis::rows::ROWS, otel::rows::ROWS];
    let rows = core.into_iter().chain(ROWS.iter().copied());
    catalog::rows().chain(rows.flatten())
}
