//! Sends one request to the admin listener and prints the result.

use super::access_log;
use super::args::{DrainArgs, ExplainArgs, OperatorArgs, UndrainArgs};
use crate::commands::admin_client::percent_encode;
use crate::commands::{EXIT_FAILURE, EXIT_UNKNOWN, print_line, report_problem};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::process::ExitCode;
use tokenweir_api::{GatewaySnapshot, GatewayState, Harm, HarmLevel};
use tokenweir_top::{explanation, status_lines};

const UNEXPECTED_DOCUMENT: &str = "not a response of a gateway of this version: check --admin";

pub(crate) async fn status(args: OperatorArgs) -> ExitCode {
    match print_status(&args).await {
        Ok(is_serving) => ExitCode::from(u8::from(!is_serving)),
        Err(problem) => report_problem(problem, EXIT_UNKNOWN),
    }
}

/// Prints the state of a gateway. Returns whether it serves its clients.
async fn print_status(args: &OperatorArgs) -> Result<bool, String> {
    let path = if args.json { "/status" } else { "/streams" };
    let body = args.client()?.get(path).await?;
    let ServedClients { state, harm } = parse(&body)?;
    if args.json {
        print_line(parse::<Value>(&body)?);
    } else {
        let gateway = parse::<GatewaySnapshot>(&body)?;
        status_lines(&gateway).iter().for_each(print_line);
    }
    Ok(state.serves_clients() && harm.unusable.level < HarmLevel::Critical)
}

/// The fields of `/status` and of `/streams` that tell whether a gateway serves its clients.
#[derive(Deserialize)]
struct ServedClients {
    state: GatewayState,
    harm: Harm,
}

pub(crate) async fn explain(args: ExplainArgs) -> ExitCode {
    let ExplainArgs {
        request_id,
        log,
        operator,
    } = &args;
    let lines = async {
        if let Some(log) = log {
            return access_log::explain_from(log, request_id, operator.json);
        }
        if request_id == "-" {
            return access_log::explain_input(operator.json);
        }
        let path = format!("/decisions/{}", percent_encode(request_id));
        let decision: Value = parse(&operator.client()?.get(&path).await?)?;
        Ok(if operator.json {
            vec![decision.to_string()]
        } else {
            explanation(&decision)
        })
    };
    finish(lines.await)
}

pub(crate) async fn drain(args: DrainArgs) -> ExitCode {
    let lines = async {
        let DrainArgs {
            backend,
            reason,
            duration,
            migrate,
            operator,
        } = &args;
        let client = operator.client()?;
        let response = client
            .drain(backend, reason.as_deref(), *duration, *migrate)
            .await?;
        let effects = DrainEffects {
            changed: "is drained: it gets no new requests and completes its open requests",
            unchanged: "was drained already; reason and duration are replaced",
        };
        effect_lines(&response, backend, operator.json, &effects)
    };
    finish(lines.await)
}

pub(crate) async fn undrain(args: UndrainArgs) -> ExitCode {
    let lines = async {
        let response = args
            .operator
            .client()?
            .set_drained(&args.backend, false)
            .await?;
        let effects = DrainEffects {
            changed: "gets requests again",
            unchanged: "was not drained",
        };
        effect_lines(&response, &args.backend, args.operator.json, &effects)
    };
    finish(lines.await)
}

/// The texts for the effect of a drain or an undrain.
struct DrainEffects {
    changed: &'static str,
    /// The text for a backend that was already in this state.
    unchanged: &'static str,
}

/// Returns the lines to print after a drain or an undrain: the JSON response, or its effect in
/// words.
fn effect_lines(
    response: &Bytes,
    backend: &str,
    has_json: bool,
    effects: &DrainEffects,
) -> Result<Vec<String>, String> {
    let result: Value = parse(response)?;
    if has_json {
        return Ok(vec![result.to_string()]);
    }
    let is_changed = result["changed"] == true;
    let effect = if is_changed {
        effects.changed
    } else {
        effects.unchanged
    };
    Ok(vec![format!("{backend} {effect}")])
}

pub(crate) async fn reload(args: OperatorArgs) -> ExitCode {
    let lines = async {
        let body = args.client()?.post("/-/reload").await?;
        let summary = String::from_utf8_lossy(&body);
        let summary = summary.trim_end();
        Ok(vec![if args.json {
            json!({ "reload": summary }).to_string()
        } else {
            summary.to_owned()
        }])
    };
    finish(lines.await)
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|_| UNEXPECTED_DOCUMENT.to_owned())
}

fn finish(lines: Result<Vec<String>, String>) -> ExitCode {
    match lines {
        Ok(lines) => {
            lines.iter().for_each(print_line);
            ExitCode::SUCCESS
        }
        Err(problem) => report_problem(problem, EXIT_FAILURE),
    }
}
