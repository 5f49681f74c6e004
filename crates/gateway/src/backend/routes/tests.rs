//! Tests of the route table, which maps model names to backends.

use super::model_labels::DEFAULT_MAX_MODEL_LABELS;
use super::*;
use proptest::prelude::*;
use serde_json::json;
use tokenweir_engine::model::ModelList;
use tokenweir_protocol::clock;

/// A list of models. An adapter is written as `PARENT:ADAPTER`.
pub(in crate::backend) fn model_list(ids: &[&str]) -> Arc<[ServedModel]> {
    let entry = |id: &&str| match id.split_once(':') {
        Some((parent, id)) => json!({ "id": id, "parent": parent }),
        None => json!({ "id": id, "root": format!("/models/{id}") }),
    };
    let entries: Vec<_> = ids.iter().map(entry).collect();
    ModelList::read(json!({ "data": entries }).to_string().as_bytes())
        .unwrap()
        .models
}

/// The routes for these configured models and backends `r0`, `r1`, … with these model lists.
/// `None`: the backend has not listed its models.
fn route_table(models: &[ModelConfig], listed_ids: &[Option<&[&str]>]) -> RouteTable {
    let ids: Vec<BackendId> = (0..listed_ids.len())
        .map(|number| BackendId::new(&format!("r{number}")))
        .collect();
    let rules = RouteRule::resolve_all(models, &ids);
    let mut lists = ModelListInterner::default();
    let intern = |ids: Option<&[&str]>| ids.map(|ids| lists.intern(&model_list(ids)));
    let advertised: Vec<_> = listed_ids.iter().copied().map(intern).collect();
    let mut labels = ModelLabelTable::new(DEFAULT_MAX_MODEL_LABELS);
    labels.update(
        rules.iter().map(|rule| &rule.name),
        ModelListInterner::distinct_models(&advertised),
        clock::now(),
    );
    RouteTable::new(&rules, &advertised, &labels, &RouteTable::default(), false)
}

fn model_config(name: &str, served_as: Option<&str>, backends: Option<&[&str]>) -> ModelConfig {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    ModelConfig {
        name: name.into(),
        served_as: served_as.map(Into::into),
        backends: backends.map(owned),
        ..ModelConfig::default()
    }
}

fn model_ids(routes: &RouteTable) -> Vec<&str> {
    routes.models().iter().map(|model| &*model.id).collect()
}

#[test]
fn an_alias_has_the_entry_of_its_target() {
    let configs = [
        model_config("gpt", Some("qwen"), Some(&["r1"])),
        model_config("none", Some("x"), None),
    ];
    let all = route_table(&configs, &[Some(&["qwen"]), Some(&["qwen"]), None]);
    assert_eq!(model_ids(&all), ["gpt", "qwen"]);
    let entry = serde_json::to_value(&all.models()[0].entry).unwrap();
    assert_eq!(entry, json!({ "id": "gpt", "root": "/models/qwen" }));
    let others = route_table(&configs, &[Some(&["qwen"]), Some(&["llama"]), None]);
    assert_eq!(model_ids(&others), ["llama", "qwen"]);
    assert!(
        others.lookup(Some("gpt")).backends.is_empty(),
        "other backends may not serve it"
    );
}

#[test]
fn a_split_model_goes_to_its_versions() {
    let version = |model: &str| SplitVersion {
        model: model.into(),
        weight: 1,
    };
    let split = ModelConfig {
        split: vec![version("blue"), version("new")],
        ..model_config("chat", None, None)
    };
    let configs = [split, model_config("blue", Some("chat"), Some(&["r1"]))];
    let listed = [Some(&["chat"][..]), Some(&["chat"]), Some(&["new"])];
    let routes = route_table(&configs, &listed);
    let chat = routes.lookup(Some("chat"));
    assert_eq!((chat.is_split, &*chat.backends), (true, &[1, 2][..]));
    assert_eq!(model_ids(&routes), ["blue", "chat", "new"]);
    let blue = routes.lookup(Some("blue"));
    assert_eq!(
        (blue.served_as.as_deref(), &*blue.backends),
        (Some("chat"), &[1][..])
    );
    assert_eq!(routes.lookup(Some("new")).label.as_str(), "new");
    let none = route_table(&configs, &[Some(&["other"])]);
    assert!(none.lookup(Some("chat")).backends.is_empty());
    assert!(none.is_expected(Some("chat")) && none.is_expected(Some("new")));
}

#[test]
fn unserved_models_have_the_label_other() {
    let configs = [model_config("gpt", Some("qwen"), None)];
    let routes = route_table(&configs, &[Some(&["a"])]);
    let listed = routes.lookup(Some("a"));
    assert_eq!(
        (listed.label.as_str(), listed.served_as.as_deref()),
        ("a", None)
    );
    assert_eq!(routes.lookup(Some("evil\n")).label.as_str(), "_other");
    assert_eq!(
        routes.lookup(Some("gpt")).label.as_str(),
        "gpt",
        "known, though not served"
    );
}

#[test]
fn requests_without_a_model_go_anywhere() {
    for (listed_ids, label) in [
        (
            &[Some(&["base", "adapter"][..]), Some(&["base"]), None][..],
            "base",
        ),
        (&[Some(&["a"]), Some(&["b"])], "_other"),
        (&[None], "_other"),
    ] {
        let routes = route_table(&[], listed_ids);
        for model in [None, Some("")] {
            let route = routes.lookup(model);
            assert_eq!(
                (route.label.as_str(), route.backends.len()),
                (label, listed_ids.len())
            );
        }
    }
}

#[test]
fn the_default_model_needs_equal_lists() {
    let renamed = [model_config("base", Some("other"), None)];
    for (configs, listed_ids, expected) in [
        (
            &[][..],
            &[Some(&["base", "adapter"][..]), Some(&["base"])][..],
            Some("base"),
        ),
        (&[], &[Some(&["base"]), None], None),
        (&[], &[Some(&["base"]), Some(&["other"])], None),
        (&[], &[], None),
        (&renamed, &[Some(&["base", "other"])], None),
    ] {
        assert_eq!(
            route_table(configs, listed_ids).default_model(),
            expected,
            "{listed_ids:?}"
        );
    }
}

#[test]
fn equal_lists_share_one_copy() {
    let mut lists = ModelListInterner::default();
    let first = lists.intern(&model_list(&["a"]));
    assert!(Arc::ptr_eq(&first, &lists.intern(&model_list(&["a"]))));
    assert!(!Arc::ptr_eq(&first, &lists.intern(&model_list(&["b"]))));
    drop(first);
    lists.intern(&model_list(&["c"]));
    assert_eq!(lists.0.len(), 1, "unused lists are dropped");
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_full_search(
        listed_ids in proptest::collection::vec(
            proptest::option::of(proptest::collection::vec("[a-d]", 0..5)), 0..6),
        configs in proptest::collection::btree_map("[a-f]", (
            proptest::option::of("[a-f]"),
            proptest::option::of(proptest::collection::vec("r[0-5]", 0..4)),
        ), 0..4),
        wanted in "[a-g]",
    ) {
        let configs: Vec<ModelConfig> = configs
            .into_iter()
            .map(|(name, (served_as, backends))| ModelConfig {
                name,
                served_as,
                backends,
                ..ModelConfig::default()
            })
            .collect();
        let texts: Vec<Option<Vec<&str>>> = listed_ids
            .iter()
            .map(|ids| ids.as_ref().map(|ids| ids.iter().map(String::as_str).collect()))
            .collect();
        let slices: Vec<Option<&[&str]>> = texts.iter().map(Option::as_deref).collect();
        let routes = route_table(&configs, &slices);
        let rule = configs.iter().find(|config| config.name == wanted);
        let target = rule.and_then(|rule| rule.served_as.as_ref()).unwrap_or(&wanted);
        let may_serve = |position: &usize| {
            let allowed = rule.and_then(|rule| rule.backends.as_ref());
            allowed.is_none_or(|allowed| allowed.contains(&format!("r{position}")))
                && listed_ids[*position].as_ref().is_none_or(|ids| ids.contains(target))
        };
        let expected: Vec<usize> = (0..listed_ids.len()).filter(may_serve).collect();
        let route = routes.lookup(Some(&wanted));
        prop_assert_eq!(&*route.backends, &*expected);
        prop_assert_eq!(route.served_as.as_deref().unwrap_or(&wanted), target);
        let is_listed = expected.iter().any(|position| listed_ids[*position].is_some());
        prop_assert_eq!(model_ids(&routes).contains(&&*wanted), is_listed);
    }
}
