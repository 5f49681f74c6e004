//! Tests of the backend that the pool offers for a prompt.

use super::tests::{lease, lease_offered, long_prompt, pool, pool_with_peers, requirements};
use super::*;

#[test]
fn an_offer_loses_the_tokens_that_only_a_saturated_backend_has_cached() {
    let thresholds = SaturationThresholds { waiting: None, kv_usage: None, in_flight: Some(1) };
    let (pool, known, new) = (pool(&[None, None]), long_prompt("known "), long_prompt("new "));
    let lost_tokens = |prompt| {
        let requirements = BackendRequirements { prompt, ..requirements(None) };
        pool.offer(&thresholds, requirements, clock::now()).unwrap().unwrap().lost_tokens()
    };
    assert!(lost_tokens(&known) <= 0.0);
    let requirements = BackendRequirements { prompt: &known, ..requirements(None) };
    let _lease = lease_offered(&pool, &thresholds, requirements, clock::now()).unwrap();
    assert!(lost_tokens(&known) > 10_000.0, "{}", lost_tokens(&known));
    assert!(lost_tokens(&new) <= 0.0);
}

#[test]
fn gateways_with_a_key_send_a_new_prompt_to_the_same_backend_and_others_take_turns() {
    let pick = |peers: Peers, text: &str| {
        let pool = pool_with_peers(&[None; 8], peers);
        let prompt = long_prompt(text);
        // The gateways have sent different numbers of requests before.
        for _ in 0..text.len() {
            drop(lease(&pool, None));
        }
        let requirements = BackendRequirements { prompt: &prompt, ..requirements(None) };
        let (lease, decision) = pool.lease(requirements, &[], clock::now()).unwrap();
        (lease.backend().identity.id.clone(), decision.reason())
    };
    let with_key = || Peers { key: ExchangeKey::new(&[7; 32]).ok(), exchange: None };
    let texts = ["one ", "two  ", "three ", "four    ", "five "];
    let picks = texts.map(|text| pick(with_key(), text));
    assert!(picks.iter().all(|(_, reason)| *reason == "rendezvous"), "{picks:?}");
    assert_eq!(picks, texts.map(|text| pick(with_key(), text)));
    assert!(picks.iter().any(|(id, _)| *id != picks[0].0), "{picks:?}");
    assert_eq!(pick(Peers::default(), texts[0]).1, "lowest_ttft");
}
