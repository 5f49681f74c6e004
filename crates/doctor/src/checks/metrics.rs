//! What a replica tells of its load.

use crate::configuration::Configuration;
use crate::facts::{Facts, Replica, Silence};
use crate::finding::{Remark, Severity};
use tokenweir_core::signals::{SIGNALS, Signal, metrics_flag};

/// Without these the gateway routes like any other.
const NEEDED: [&str; 2] = ["queue", "kv_usage"];

pub(super) fn metrics(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(server) = replica.server() else { return Vec::new() };
    if replica.load().is_some() {
        return Vec::new();
    }
    let seen = match &replica.metrics {
        Err(silence) => format!("/metrics: {silence}"),
        Ok(answer) if !answer.is_ok() => format!("/metrics answers {}", answer.status),
        Ok(_) => "/metrics has no page with the load of an engine".to_owned(),
    };
    let why = "It is routed by the requests in flight from here: neither its queue nor its KV \
               cache is seen.";
    let remark = Remark::error(seen).because(why);
    vec![match metrics_flag(server) {
        Some(flag) => remark.change(flag),
        None => remark,
    }]
}

pub(super) fn signals(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let (Some(load), Some(server)) = (replica.load(), replica.server()) else { return Vec::new() };
    let missing = SIGNALS.iter().filter(|signal| !signal.is_told(&load));
    let remark = |signal: &Signal| {
        let severity =
            if NEEDED.contains(&signal.name) { Severity::Warning } else { Severity::Note };
        let seen = format!("its metrics lack the signal {}", signal.name);
        let remark = Remark::new(severity, seen).because(sentence(signal.lost()?));
        Some(match signal.unlock(server) {
            Some(unlock) => remark.change(unlock),
            None if replica.is_rust_front_end() => {
                remark.change("look again after a request: the Rust front end shows what was used")
            }
            None => remark,
        })
    };
    missing.filter_map(remark).collect()
}

pub(super) fn scrape_time(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    let Configuration { max_page, scrape_timeout, .. } = facts.config;
    let mut remarks = Vec::new();
    match &replica.metrics {
        Ok(answer) if answer.body.len() > max_page => {
            let (size, most) = (answer.body.len(), max_page);
            let seen =
                format!("its page of metrics has {size} bytes, more than watch.max_page ({most})");
            let why = "The gateway does not read it, and routes without it.";
            remarks.push(Remark::error(seen).because(why).change("raise watch.max_page"));
        }
        Ok(answer) if answer.took * 2 > scrape_timeout => {
            let took = answer.took.as_secs_f64();
            let seen = format!("its page of metrics took {took:.1} s");
            let why = format!(
                "The gateway waits {scrape_timeout:?} (watch.timeout). vLLM renders the page in the process that \
                 serves requests: it is as slow for them."
            );
            let change = "give vLLM's API server a core of its own, or raise --api-server-count";
            remarks.push(Remark::warning(seen).because(why).change(change));
        }
        Err(Silence::TooLarge) => {
            remarks.push(
                Remark::error("its page of metrics has no end")
                    .because("The gateway does not read it, and routes without it."),
            );
        }
        _ => {}
    }
    remarks
}

/// With a capital and a full stop.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}
