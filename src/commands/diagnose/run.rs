//! Reports the diagnosis of backends. It comes from a running gateway, or is made from the metrics of backends.

use super::args::{DiagnoseArgs, DiagnoseFailOn};
use super::report;
use crate::app::options::fleet_rules;
use crate::commands::admin_client::AdminClient;
use crate::commands::doctor::run::{BACKEND_KEY_VARIABLE, key_from_env, print_report};
use crate::commands::{BackendList, EXIT_UNKNOWN, report_problem};
use futures_util::future::join_all;
use http::StatusCode;
use std::process::ExitCode;
use tokenweir_diagnose::{Diagnoser, Diagnosis, DiagnosisSample, EVERY, VerdictSeverity};
use tokenweir_doctor::facts::{GatherResult, GatheredResponse};
use tokenweir_doctor::gather::ServerClient;
use tokenweir_engine::address::{BackendAddress, BackendId};
use tokenweir_net::tls::{Alpn, OutboundTls};
use tokenweir_protocol::clock;

/// Maximum width of the report, in columns.
const MAX_COLUMNS: usize = 100;

pub(crate) async fn run(diagnose: DiagnoseArgs) -> ExitCode {
    let diagnosis = match &diagnose.admin {
        Some(admin) => match fetch_diagnosis(&diagnose, admin).await {
            Ok(diagnosis) => diagnosis,
            Err(problem) => {
                return report_problem(format_args!("{admin}: {problem}"), EXIT_UNKNOWN);
            }
        },
        None => observe_backends(&diagnose).await,
    };
    if diagnose.json {
        match serde_json::to_string_pretty(&diagnosis) {
            Ok(text) => print_report(&format!("{text}\n")),
            Err(error) => return crate::commands::report_error(&error),
        }
    } else {
        print_report(&report::render(
            &diagnosis,
            textwrap::termwidth().min(MAX_COLUMNS),
        ));
    }
    ExitCode::from(exit_code(&diagnosis, diagnose.fail_on))
}

/// Fetches the diagnosis of a running gateway.
async fn fetch_diagnosis(
    diagnose: &DiagnoseArgs,
    admin: &BackendAddress,
) -> Result<Diagnosis, String> {
    let client = AdminClient::new(admin, diagnose.token_file.clone(), diagnose.timeout);
    let client = client.map_err(|error| error.to_string())?;
    let body = client.get("/diagnose").await?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("/diagnose is no diagnosis of a gateway of this version: {error}"))
}

/// Scrapes the backends every [`EVERY`] for `--duration` and diagnoses their metrics.
async fn observe_backends(diagnose: &DiagnoseArgs) -> Diagnosis {
    let outbound = OutboundTls::with_native_roots(Alpn::Http1);
    let client = |url: BackendAddress| {
        let key = key_from_env(BACKEND_KEY_VARIABLE);
        ServerClient::new(url, key, outbound.clone(), diagnose.timeout)
    };
    let clients: Vec<ServerClient> = BackendList::flatten(diagnose.backend.clone())
        .into_iter()
        .map(client)
        .collect();
    let mut diagnoser = Diagnoser::default();
    let end = clock::now() + diagnose.duration;
    loop {
        let start = clock::now();
        let pages = join_all(clients.iter().map(|client| client.get("/metrics"))).await;
        let pages = pages.iter().zip(clients.iter().map(ServerClient::url));
        let problems: Vec<String> = pages
            .clone()
            .filter_map(|(page, url)| metrics_problem(page, url))
            .collect();
        let samples =
            pages.map(|(page, url)| (BackendId::new(url.authority()), sample_from_page(page)));
        let diagnosis = diagnoser.diagnose(samples.collect(), clock::now());
        if start + EVERY > end {
            for problem in &problems {
                eprintln!("note: {problem}");
            }
            return diagnosis;
        }
        tokio::time::sleep_until((start + EVERY).into()).await;
    }
}

/// Returns why the metrics page of a backend is unusable. `None`: the page is usable, or the backend is
/// unreachable, which the diagnosis itself reports.
fn metrics_problem(page: &GatherResult, url: &BackendAddress) -> Option<String> {
    let response = page.as_ref().ok()?;
    if response.is_gateway_metrics() {
        return Some(format!(
            "{url} is the admin port of a gateway: give --admin {url}"
        ));
    }
    let problem = match response.status {
        StatusCode::OK if response.load().is_some() => return None,
        StatusCode::OK => "has no page with the load of an engine".to_owned(),
        status => format!("answers {status}"),
    };
    Some(format!(
        "{url}/metrics {problem}: tokenweir doctor --backend {url} examines it"
    ))
}

fn sample_from_page(page: &GatherResult) -> DiagnosisSample {
    let load = page.as_ref().ok().and_then(GatheredResponse::load);
    DiagnosisSample {
        is_up: page.is_ok(),
        page: load,
        ..DiagnosisSample::at(clock::now())
    }
}

/// Returns 2 for a critical verdict, and 1 for a warning if `fail_on` includes warnings. For a backend that
/// cannot be judged, only verdicts of [`fleet_rules`] count. Without such verdicts, returns 0, or
/// [`EXIT_UNKNOWN`] if a backend cannot be judged.
fn exit_code(diagnosis: &Diagnosis, fail_on: DiagnoseFailOn) -> u8 {
    let is_determined = |name: &str| {
        diagnosis
            .backends
            .iter()
            .any(|backend| backend.backend == name && backend.is_determined)
    };
    let is_about_fleet = |name: &str| fleet_rules().any(|rule| rule.name == name);
    let verdicts = diagnosis
        .verdicts
        .iter()
        .filter(|verdict| is_determined(&verdict.backend) || is_about_fleet(&verdict.verdict));
    match verdicts.map(|verdict| verdict.severity).max() {
        Some(VerdictSeverity::Critical) => 2,
        Some(VerdictSeverity::Warning) if fail_on == DiagnoseFailOn::Warning => 1,
        _ if diagnosis
            .backends
            .iter()
            .all(|backend| backend.is_determined) =>
        {
            0
        }
        _ => EXIT_UNKNOWN,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tokenweir_diagnose::{Confidence, DiagnosedBackend, Verdict};

    pub(in crate::commands) fn verdict(severity: VerdictSeverity) -> Verdict {
        Verdict {
            verdict: "kv_backlog".into(),
            backend: "gpu-0".into(),
            severity,
            confidence: Confidence::High,
            meaning: "The KV cache is full.".into(),
            cause: Some("a cause".into()),
            age_seconds: 65.0,
            remedy: "Add a backend.".into(),
            disproof: "The queue drains.".into(),
            ..Verdict::default()
        }
    }

    pub(in crate::commands) fn diagnosis(verdicts: Vec<Verdict>, is_determined: bool) -> Diagnosis {
        let backends = vec![DiagnosedBackend {
            backend: "gpu-0".into(),
            is_determined,
        }];
        Diagnosis {
            verdicts,
            backends,
            ..Diagnosis::default()
        }
    }

    #[test]
    fn the_worst_counted_verdict_gives_the_exit_code() {
        let (warning, critical) = (
            verdict(VerdictSeverity::Warning),
            verdict(VerdictSeverity::Critical),
        );
        for (verdicts, is_determined, fail_on, expected) in [
            (vec![], true, DiagnoseFailOn::Warning, 0),
            (vec![], false, DiagnoseFailOn::Warning, EXIT_UNKNOWN),
            (vec![warning.clone()], true, DiagnoseFailOn::Warning, 1),
            (vec![warning.clone()], true, DiagnoseFailOn::Critical, 0),
            (
                vec![critical, warning.clone()],
                true,
                DiagnoseFailOn::Critical,
                2,
            ),
            (vec![warning], false, DiagnoseFailOn::Warning, EXIT_UNKNOWN),
        ] {
            assert_eq!(
                exit_code(&diagnosis(verdicts, is_determined), fail_on),
                expected
            );
        }
        assert_eq!(
            exit_code(&Diagnosis::default(), DiagnoseFailOn::Warning),
            0,
            "there are no backends"
        );
    }
}
