//! The section `tiers`: assignment of a tier to each request.

use std::collections::BTreeMap;
use tokenweir_protocol::settings;
use tokenweir_request::record::TierResolver;
use tokenweir_settings::{CheckResult, ConfigSection, header_name, is_label, require};

settings! {
    /// Assignment of a tier to each request. The tier is a label of metrics.
    #[derive(Default, Eq)]
    pub struct TiersConfig {
        /// Header that contains the tier of a request, such as `x-tier`. The tier of a tenant in the keys file
        /// takes precedence.
        pub header: Option<String>,
        /// Accepted values of the header. Other values count as `_other`.
        pub names: Vec<String>,
        /// vLLM's `priority` of the requests of a tier, by its name. Lower numbers come first. Tiers that are
        /// not listed leave `priority` as it is. Needs `--scheduling-policy priority` at the engines.
        pub priorities: BTreeMap<String, i32>,
    }
}

/// Maximum number of entries in `tiers.names`.
const MAX_TIERS: usize = 20;

impl TiersConfig {
    /// Builds the resolver, which determines the tier of each request.
    pub(crate) fn resolver(&self) -> TierResolver {
        TierResolver {
            // The rules have ensured that the name parses.
            header: self.header.as_ref().and_then(|name| name.parse().ok()),
            names: self.names.iter().map(|name| name.as_str().into()).collect(),
            priorities: self.priorities.clone(),
        }
    }
}

/// Values, rules and reload class of the section `tiers`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = TiersConfig;

    fn check(tiers: &TiersConfig, _: &C) -> CheckResult {
        header_name("tiers.header", tiers.header.as_ref())?;
        for (index, name) in tiers.names.iter().enumerate() {
            let problem = "a tier has 1 to 32 characters: letters, digits and `-_.`";
            require(is_label(name), &format!("tiers.names.{index}"), problem)?;
        }
        for name in tiers.priorities.keys() {
            let path = format!("tiers.priorities.{name}");
            require(
                tiers.names.contains(name),
                &path,
                "this is not a name of `tiers.names`",
            )?;
        }
        let problem = "too many tiers: at most 20, because each adds time series";
        require(tiers.names.len() <= MAX_TIERS, "tiers.names", problem)
    }
}
