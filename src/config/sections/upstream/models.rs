//! The section `models`: model names and aliases for clients.

use crate::config::backends::section::BackendConfig;
use tokenweir_gateway::backend::routes::ModelConfig;
use tokenweir_request::access::RequestCaps;
use tokenweir_settings::{
    CheckResult, ConfigSection, KnownBackends, RuleViolation, require, share, violation_at,
};

const MAX_MODEL_NAMES: usize = 100;
const MAX_VERSIONS: usize = 10;
/// Maximum weight of a version.
const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum length of a model name, in bytes.
const MAX_MODEL_NAME_BYTES: usize = 256;

/// Values, rules and reload class of the section `models`.
pub struct Section;

impl<C: KnownBackends + AsRef<Vec<BackendConfig>>> ConfigSection<C> for Section {
    type Values = Vec<ModelConfig>;

    fn check(models: &Vec<ModelConfig>, config: &C) -> CheckResult {
        let problem = "too many models: at most 100, because each adds time series";
        let versions: usize = models.iter().map(|model| model.split.len()).sum();
        require(
            models.len() + versions <= MAX_MODEL_NAMES,
            "models",
            problem,
        )?;
        for (index, model) in models.iter().enumerate() {
            check_names(models, index, model)?;
            check_split(models, index, model)?;
            if let Some(names) = &model.backends {
                check_backends(index, names, config)?;
            }
            let path = format!("models.{index}.policy.continuous_usage");
            share(&path, model.policy.continuous_usage)?;
            if let Some(Err((key, problem))) = model.caps.as_ref().map(RequestCaps::check) {
                return Err(violation_at(&format!("models.{index}.caps.{key}"), problem));
            }
        }
        Ok(())
    }
}

/// Checks the names of the model at `index`: they must be valid metric labels, no earlier model may have the
/// same name, and no alias may refer to an alias.
fn check_names(models: &[ModelConfig], index: usize, model: &ModelConfig) -> CheckResult {
    let name = &model.name;
    let name_path = format!("models.{index}.name");
    let served_as_path = format!("models.{index}.served_as");
    check_name(&name_path, name)?;
    if let Some(target) = &model.served_as {
        check_name(&served_as_path, target)?;
    }
    if let Some(earlier) = models
        .iter()
        .take(index)
        .position(|other| other.name == *name)
    {
        let problem = format!("`{name}` is already the name of models[{earlier}]");
        return Err(violation_at(&name_path, problem));
    }
    let Some(target) = &model.served_as else {
        return Ok(());
    };
    let target_model = models.iter().find(|other| other.name == *target);
    if let Some(served) = target_model.and_then(ModelConfig::alias_of) {
        let problem = format!("`{target}` is itself an alias of `{served}`; write `{served}` here");
        return Err(violation_at(&served_as_path, problem));
    }
    Ok(())
}

/// Checks the versions of the model at `index`. The model must not have settings that belong to its versions.
fn check_split(models: &[ModelConfig], index: usize, model: &ModelConfig) -> CheckResult {
    let path = format!("models.{index}.split");
    let split = &model.split;
    #[cfg(not(feature = "options"))]
    require(split.is_empty(), &path, tokenweir_settings::WITHOUT_OPTIONS)?;
    if split.is_empty() {
        let problem = "this needs `split`";
        return require(
            model.guard.is_none(),
            &format!("models.{index}.guard"),
            problem,
        );
    }
    let of_versions = ModelConfig {
        name: model.name.clone(),
        split: split.clone(),
        guard: model.guard,
        rename_response: model.rename_response,
        ..ModelConfig::default()
    };
    let problem = "a split model has only `name`, `split`, `guard` and `rename_response`: write other keys at \
                   its versions";
    require(*model == of_versions, &path, problem)?;
    let problem = "a model has at most 10 versions";
    require(split.len() <= MAX_VERSIONS, &path, problem)?;
    for (number, version) in split.iter().enumerate() {
        let name_path = format!("{path}.{number}.model");
        check_name(&name_path, &version.model)?;
        let is_repeated = split[..number]
            .iter()
            .any(|earlier| earlier.model == version.model);
        require(
            !is_repeated,
            &name_path,
            "the split has this version already",
        )?;
        let is_split = |other: &ModelConfig| other.name == version.model && !other.split.is_empty();
        let problem = "a version must not be a split model";
        require(!models.iter().any(is_split), &name_path, problem)?;
        let problem = "a weight is at most 1000000";
        let weight_path = format!("{path}.{number}.weight");
        require(version.weight <= MAX_WEIGHT, &weight_path, problem)?;
    }
    let has_weight = split.iter().any(|version| version.weight > 0);
    require(has_weight, &path, "a version needs a weight above 0")
}

fn check_name(path: &str, name: &str) -> CheckResult {
    let has_length = (1..=MAX_MODEL_NAME_BYTES).contains(&name.len());
    let is_valid = has_length && !name.chars().any(char::is_control);
    require(
        is_valid,
        path,
        "a model name has 1 to 256 bytes and no control characters",
    )
}

/// Checks that the `backends` of the model at `index` are not empty and are configured.
fn check_backends(
    index: usize,
    names: &[String],
    config: &(impl KnownBackends + AsRef<Vec<BackendConfig>>),
) -> CheckResult {
    let path = format!("models.{index}.backends");
    let problem = "list at least one backend, or write null for all that serve the model";
    require(!names.is_empty(), &path, problem)?;
    for (number, name) in names.iter().enumerate() {
        if let Some(problem) = config.unknown_backend(name) {
            let mut paths = vec![format!("{path}.{number}"), "backends".to_owned()];
            let backends = 0..config.as_ref().len();
            paths.extend(backends.map(|index| format!("backends.{index}.name")));
            return Err(RuleViolation { paths, problem });
        }
    }
    Ok(())
}
