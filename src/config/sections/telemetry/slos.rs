//! The section `slos`: service level objectives.

use crate::config::sections::clients::tiers::TiersConfig;
use tokenweir_request::error::listed;
use tokenweir_request::slo::Objective;
use tokenweir_settings::{
    CheckResult, ConfigSection, ReloadClass, is_label, require, violation_at, violation_of,
};

const MAX_OBJECTIVES: usize = 20;

/// Values, rules and reload class of the section `slos`.
pub struct Section;

impl<C: AsRef<TiersConfig>> ConfigSection<C> for Section {
    type Values = Vec<Objective>;
    // Objectives determine bucket bounds of histograms, and have time series from the start.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(slos: &Vec<Objective>, config: &C) -> CheckResult {
        let problem = "too many objectives: at most 20, because each adds time series";
        require(slos.len() <= MAX_OBJECTIVES, "slos", problem)?;
        for (index, slo) in slos.iter().enumerate() {
            let path = format!("slos.{index}.name");
            let problem = "a name has 1 to 32 characters: letters, digits and `-_.`";
            require(is_label(&slo.name), &path, problem)?;
            let is_same = |other: &Objective| other.name == slo.name;
            if let Some(earlier) = slos[..index].iter().position(is_same) {
                let problem = format!("`{}` is already the name of slos[{earlier}]", slo.name);
                return Err(violation_at(&path, problem));
            }
            if let Some(tier) = &slo.tier {
                check_tier(&format!("slos.{index}.tier"), tier, config.as_ref())?;
            }
        }
        Ok(())
    }
}

fn check_tier(path: &str, tier: &String, tiers: &TiersConfig) -> CheckResult {
    if tiers.names.contains(tier) {
        return Ok(());
    }
    let known = match tiers.names.len() {
        0 => "no tiers".to_owned(),
        _ => listed(tiers.names.iter()),
    };
    let problem = format!("unknown tier `{tier}`: `tiers` has {known}");
    Err(violation_of([path, "tiers", "tiers.names"], problem))
}
