//! Tells what is the matter with replicas: what a gateway has found, or what their metrics show.

use super::args::{Diagnose, Limit};
use super::report;
use crate::commands::doctor::run::{ADMIN_TOKEN, REPLICA_KEY, key_in, show};
use futures_util::future::join_all;
use http::StatusCode;
use std::process::ExitCode;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::dialect::Load;
use tokenweir_core::record::BackendId;
use tokenweir_diagnose::{Diagnosis, EVERY, Sample, Severity, Watch};
use tokenweir_doctor::facts::Asked;
use tokenweir_doctor::gather::{self, Plan, Target};
use tokenweir_net::tls::{Alpn, Outbound};

/// It cannot be told.
const UNKNOWN: u8 = 3;

/// Columns of a line at most.
const WIDTH: usize = 100;

pub(crate) async fn run(diagnose: Diagnose) -> ExitCode {
    let plan = Plan {
        outbound: Outbound::of_machine(Alpn::Http1),
        timeout: diagnose.timeout,
        idle: Duration::ZERO,
        probe: false,
    };
    let diagnosis = match &diagnose.admin {
        Some(admin) => match told(admin, &plan).await {
            Ok(diagnosis) => diagnosis,
            Err(problem) => {
                eprintln!("error: {admin}/diagnose {problem}");
                return ExitCode::from(UNKNOWN);
            }
        },
        None => watched(&diagnose, &plan).await,
    };
    if diagnose.json {
        match serde_json::to_string_pretty(&diagnosis) {
            Ok(text) => show(&format_args!("{text}\n")),
            Err(error) => return crate::commands::failed(&error),
        }
    } else {
        show(&report::text(&diagnosis, textwrap::termwidth().min(WIDTH)));
    }
    ExitCode::from(code(&diagnosis, diagnose.fail_on))
}

/// What a gateway has found.
async fn told(admin: &Address, plan: &Plan) -> Result<Diagnosis, String> {
    let target = Target { id: "admin".into(), url: admin.clone(), key: key_in(ADMIN_TOKEN) };
    let answer = gather::page(&target, "/diagnose", plan).await;
    let answer = answer.map_err(|silence| format!("cannot be read: {silence}"))?;
    match answer.status {
        StatusCode::OK => serde_json::from_slice(&answer.body)
            .map_err(|error| format!("is not of a gateway of this version: {error}")),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(format!("wants the admin token: set {ADMIN_TOKEN}"))
        }
        StatusCode::NOT_FOUND => {
            Err("is not there: is this the admin port of a gateway of this version?".to_owned())
        }
        status => Err(format!("answered {status}")),
    }
}

/// What the metrics of replicas show in the time that they are watched.
async fn watched(diagnose: &Diagnose, plan: &Plan) -> Diagnosis {
    let targets: Vec<Target> = diagnose.backend.iter().map(target).collect();
    let (mut watch, end) = (Watch::default(), clock::now() + diagnose.duration);
    loop {
        let begun = clock::now();
        let pages = targets.iter().map(|target| gather::page(target, "/metrics", plan));
        let pages = join_all(pages).await;
        let unread: Vec<String> =
            pages.iter().zip(&targets).filter_map(|(page, target)| unread(page, target)).collect();
        let samples = pages.into_iter().zip(&targets);
        let samples = samples.map(|(page, target)| (BackendId::new(&target.id), sample(page)));
        let diagnosis = watch.look(samples.collect(), clock::now());
        if begun + EVERY > end {
            for problem in &unread {
                eprintln!("note: {problem}");
            }
            return diagnosis;
        }
        tokio::time::sleep_until((begun + EVERY).into()).await;
    }
}

/// Why the last page of a replica says nothing. One that is down is told of anyway.
fn unread(page: &Asked, target: &Target) -> Option<String> {
    let answer = page.as_ref().ok()?;
    let url = &target.url;
    if answer.is_admin_page() {
        return Some(format!("{url} is the admin port of a gateway: give --admin {url}"));
    }
    let seen = match answer.status {
        StatusCode::OK if Load::read(&answer.body).is_understood() => return None,
        StatusCode::OK => "has no page with the load of an engine".to_owned(),
        status => format!("answers {status}"),
    };
    Some(format!("{url}/metrics {seen}: tokenweir doctor --backend {url} says what it is"))
}

fn target(url: &Address) -> Target {
    let id = url.authority().to_owned();
    Target { id, url: url.clone(), key: key_in(REPLICA_KEY) }
}

fn sample(page: Asked) -> Sample {
    let (at, is_up) = (clock::now(), page.is_ok());
    let page = page.ok().filter(|answer| answer.status == StatusCode::OK);
    let load = page.map(|answer| Load::read(&answer.body)).filter(Load::is_understood);
    Sample { at, is_up, page: load, seen: None }
}

/// The worst that counts. A replica of which nothing is known is neither well nor ill.
fn code(diagnosis: &Diagnosis, fail_on: Limit) -> u8 {
    let is_known =
        |backend: &str| diagnosis.backends.iter().any(|it| it.backend == backend && it.is_judged);
    let verdicts = diagnosis.verdicts.iter().filter(|it| is_known(&it.backend));
    match verdicts.map(|it| it.severity).max() {
        Some(Severity::Critical) => 2,
        Some(Severity::Warning) if fail_on == Limit::Warning => 1,
        _ if diagnosis.backends.iter().all(|it| it.is_judged) => 0,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tokenweir_diagnose::{Confidence, Verdict, Watched};

    pub(in crate::commands) fn verdict(severity: Severity) -> Verdict {
        Verdict {
            verdict: "kv_backlog".into(),
            backend: "gpu-0".into(),
            severity,
            confidence: Confidence::High,
            meaning: "The KV cache is full.".into(),
            cause: Some("a cause".into()),
            age_seconds: 65.0,
            evidence: Vec::new(),
            remedy: "Add a replica.".into(),
            disproof: "The queue drains.".into(),
            runbook: "docs/diagnose.md#kv_backlog".into(),
        }
    }

    pub(in crate::commands) fn diagnosis(verdicts: Vec<Verdict>, is_judged: bool) -> Diagnosis {
        let backends = vec![Watched { backend: "gpu-0".into(), is_judged }];
        Diagnosis { verdicts, backends, ..Diagnosis::default() }
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_that_counts() {
        let (warning, critical) = (verdict(Severity::Warning), verdict(Severity::Critical));
        for (verdicts, is_judged, limit, expected) in [
            (vec![], true, Limit::Warning, 0),
            (vec![], false, Limit::Warning, UNKNOWN),
            (vec![warning.clone()], true, Limit::Warning, 1),
            (vec![warning.clone()], true, Limit::Critical, 0),
            (vec![critical, warning.clone()], true, Limit::Critical, 2),
            (vec![warning], false, Limit::Warning, UNKNOWN),
        ] {
            assert_eq!(code(&diagnosis(verdicts, is_judged), limit), expected);
        }
        assert_eq!(code(&Diagnosis::default(), Limit::Warning), 0, "a fleet of none");
    }
}
