//! Which replicas serve which model, and what it is called.

use super::super::labels::MOST_LABELS;
use super::*;
use proptest::prelude::*;
use serde_json::json;
use tokenweir_core::clock;

fn said(ids: &[&str]) -> Arc<[Model]> {
    let entry = |id: &&str| json!({ "id": id, "root": format!("/models/{id}") });
    ids.iter().filter_map(|id| Model::of(&entry(id))).collect()
}

/// The routes to replicas `r0`, `r1`, …, by what they say that they serve.
fn routes(names: &[Named], fleet: &[Option<&[&str]>]) -> Routes {
    let ids: Vec<BackendId> =
        (0..fleet.len()).map(|number| BackendId::new(&format!("r{number}"))).collect();
    let rules: Vec<Rule> = names.iter().map(|named| Rule::of(named, &ids)).collect();
    let mut lists = Lists::default();
    let list = |ids: Option<&[&str]>| ids.map(|ids| lists.shared(&said(ids)));
    let said: Vec<_> = fleet.iter().copied().map(list).collect();
    let mut labels = Labels::new(MOST_LABELS);
    labels.renew(rules.iter().map(Rule::name), Lists::models(&said), clock::now());
    Routes::new(&rules, &said, &labels)
}

fn named(name: &str, served_as: Option<&str>, backends: Option<&[&str]>) -> Named {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Named {
        name: name.into(),
        served_as: served_as.map(Into::into),
        backends: backends.map(owned),
        ..Named::default()
    }
}

fn ids(routes: &Routes) -> Vec<&str> {
    routes.models().iter().map(|model| &*model.id).collect()
}

#[test]
fn an_alias_leads_to_the_replicas_of_its_target_by_their_name() {
    let names = [named("gpt", Some("qwen"), None)];
    let routes = routes(&names, &[Some(&["qwen"]), Some(&["llama"]), Some(&["qwen"])]);
    let route = routes.of(Some("gpt"));
    assert_eq!((&*route.replicas, route.served_as.as_deref()), (&[0, 2][..], Some("qwen")));
    assert_eq!(route.label.as_str(), "gpt");
    assert_eq!(routes.of(Some("qwen")).served_as, None);
}

#[test]
fn a_name_of_the_configuration_wins_over_a_model_and_goes_only_where_it_may() {
    let names = [named("b", Some("a"), None), named("a", None, Some(&["r1", "r2"]))];
    let routes = routes(&names, &[Some(&["a"]), Some(&["b"]), Some(&["a", "b"])]);
    assert_eq!(*routes.of(Some("a")).replicas, [2]);
    assert_eq!(*routes.of(Some("b")).replicas, [0, 2], "those of `a`, not of their `b`");
    assert_eq!(ids(&routes), ["a", "b"]);
}

#[test]
fn an_alias_is_listed_as_its_target_while_a_replica_of_it_serves_that() {
    let names = [named("gpt", Some("qwen"), Some(&["r1"])), named("none", Some("x"), None)];
    let all = routes(&names, &[Some(&["qwen"]), Some(&["qwen"]), None]);
    assert_eq!(ids(&all), ["gpt", "qwen"]);
    let entry = serde_json::to_value(&all.models()[0].entry).unwrap();
    assert_eq!(entry, json!({ "id": "gpt", "root": "/models/qwen" }));
    let others = routes(&names, &[Some(&["qwen"]), Some(&["llama"]), None]);
    assert_eq!(ids(&others), ["llama", "qwen"]);
    assert!(others.of(Some("gpt")).replicas.is_empty(), "the others may not");
}

#[test]
fn a_model_that_nobody_serves_has_the_label_of_all_others_and_an_alias_its_own() {
    let names = [named("gpt", Some("qwen"), None)];
    let routes = routes(&names, &[Some(&["a"])]);
    assert_eq!(routes.of(Some("a")).label.as_str(), "a");
    assert_eq!(routes.of(Some("evil\n")).label.as_str(), "_other");
    assert_eq!(routes.of(Some("gpt")).label.as_str(), "gpt", "known, though not served");
}

#[test]
fn a_request_without_a_model_goes_anywhere_and_has_the_label_of_the_only_one() {
    for (fleet, label) in [
        (&[Some(&["base", "adapter"][..]), Some(&["base"]), None][..], "base"),
        (&[Some(&["a"]), Some(&["b"])], "_other"),
        (&[None], "_other"),
    ] {
        let routes = routes(&[], fleet);
        for model in [None, Some("")] {
            let route = routes.of(model);
            assert_eq!((route.label.as_str(), route.replicas.len()), (label, fleet.len()));
        }
    }
}

#[test]
fn the_default_model_is_known_only_if_every_replica_has_said_the_same() {
    let renamed = [named("base", Some("other"), None)];
    for (names, fleet, expected) in [
        (&[][..], &[Some(&["base", "adapter"][..]), Some(&["base"])][..], Some("base")),
        (&[], &[Some(&["base"]), None], None),
        (&[], &[Some(&["base"]), Some(&["other"])], None),
        (&[], &[], None),
        (&renamed, &[Some(&["base", "other"])], None),
    ] {
        assert_eq!(routes(names, fleet).default_model(), expected, "{fleet:?}");
    }
}

#[test]
fn equal_lists_are_one_while_a_replica_has_it() {
    let mut lists = Lists::default();
    let first = lists.shared(&said(&["a"]));
    assert!(Arc::ptr_eq(&first, &lists.shared(&said(&["a"]))));
    assert!(!Arc::ptr_eq(&first, &lists.shared(&said(&["b"]))));
    drop(first);
    lists.shared(&said(&["c"]));
    assert_eq!(lists.0.len(), 1, "those that nobody has are forgotten");
}

proptest! {
    #[test]
    fn the_table_has_what_asking_each_replica_would_find(
        fleet in proptest::collection::vec(
            proptest::option::of(proptest::collection::vec("[a-d]", 0..5)), 0..6),
        names in proptest::collection::btree_map("[a-f]", (
            proptest::option::of("[a-f]"),
            proptest::option::of(proptest::collection::vec("r[0-5]", 0..4)),
        ), 0..4),
        wanted in "[a-g]",
    ) {
        let names: Vec<Named> = names
            .into_iter()
            .map(|(name, (served_as, backends))| Named {
                name,
                served_as,
                backends,
                ..Named::default()
            })
            .collect();
        let texts: Vec<Option<Vec<&str>>> = fleet
            .iter()
            .map(|ids| ids.as_ref().map(|ids| ids.iter().map(String::as_str).collect()))
            .collect();
        let slices: Vec<Option<&[&str]>> = texts.iter().map(Option::as_deref).collect();
        let routes = routes(&names, &slices);
        let rule = names.iter().find(|named| named.name == wanted);
        let target = rule.and_then(|rule| rule.served_as.as_ref()).unwrap_or(&wanted);
        let may = |position: &usize| {
            let only = rule.and_then(|rule| rule.backends.as_ref());
            only.is_none_or(|only| only.contains(&format!("r{position}")))
                && fleet[*position].as_ref().is_none_or(|ids| ids.contains(target))
        };
        let expected: Vec<usize> = (0..fleet.len()).filter(may).collect();
        let route = routes.of(Some(&wanted));
        prop_assert_eq!(&*route.replicas, &*expected);
        prop_assert_eq!(route.served_as.as_deref().unwrap_or(&wanted), target);
        let is_listed = expected.iter().any(|position| fleet[*position].is_some());
        prop_assert_eq!(ids(&routes).contains(&&*wanted), is_listed);
    }
}
