//! The options of the list in `options.rs`, and what follows from the list.

use crate::config::Config;
use crate::options::with_options;
use std::sync::Arc;
use tokenweir_api::StatusCheck;
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_option::{GatewayOption, OptionParts};

/// Defines [`AttachedOptions`] and the lists of constants from the options.
macro_rules! define_attached {
    ({} $($key:ident: $option:ty, $description:literal;)*) => {
        /// The options of the list.
        pub(in crate::app) struct AttachedOptions {
            $($key: Arc<$option>,)*
            /// What the options bring.
            pub(super) parts: OptionParts,
        }

        impl AttachedOptions {
            /// The options with the settings of a configuration.
            pub(super) fn new(config: &Config) -> Self {
                let mut parts = OptionParts::default();
                $(
                    let $key = Arc::new(<$option>::new(&config.$key));
                    $key.attach(&mut parts);
                )*
                Self { $($key,)* parts }
            }

            /// Applies the settings of a reload.
            pub(super) fn configure(&self, config: &Config) {
                $(self.$key.configure(&config.$key);)*
            }
        }

        /// The metrics of each option.
        pub(super) const ROWS: &[&[MetricDescriptor]] = &[$(<$option>::ROWS,)*];
        /// What each option adds to an entry of the decision log.
        pub(super) const DECISION_PARTS: &[&[DecisionPart]] = &[$(<$option>::DECISION_PARTS,)*];
        /// The checks of each option by `tokenweir doctor`.
        pub(super) const STATUS_CHECKS: &[&[StatusCheck]] = &[$(<$option>::STATUS_CHECKS,)*];
        /// The background tasks of each option.
        pub(super) const TASKS: &[&[BackgroundTask]] = &[$(<$option>::TASKS,)*];
    };
}

with_options!(define_attached {});
