//! Sends one request to the admin listener and prints the result.

use super::access_log;
use super::args::{DrainArgs, ExplainArgs, OperatorArgs, UndrainArgs};
use crate::commands::admin_client::percent_encode;
use crate::commands::{EXIT_FAILURE, EXIT_UNKNOWN, print_line, report_problem};
use bytes::Bytes;
use serde_json::{Value, json};
use std::process::ExitCode;
use tokenweir_api::{GatewaySnapshot, GatewayState, Harm, HarmLevel};
use tokenweir_top::{explanation, status_lines};

const UNEXPECTED_DOCUMENT: &str = "not a response of a gateway of this version: check --admin";

pub(crate) async fn status(args: OperatorArgs) -> ExitCode {
    let shown = async {
        let path = if args.json { "/status" } else { "/streams" };
        let body = args.client()?.get(path).await?;
        let document: Value = parse(&body)?;
        let state: GatewayState = serde_json::from_value(document["state"].clone())
            .map_err(|_| UNEXPECTED_DOCUMENT.to_owned())?;
        let harm: Harm = serde_json::from_value(document["harm"].clone())
            .map_err(|_| UNEXPECTED_DOCUMENT.to_owned())?;
        let is_usable = harm.unusable.level < HarmLevel::Critical;
        let is_serving = state.serves_clients() && is_usable;
        let lines = if args.json {
            vec![document.to_string()]
        } else {
            status_lines(&parse::<GatewaySnapshot>(&body)?)
        };
        Ok::<_, String>((is_serving, lines))
    };
    match shown.await {
        Ok((is_serving, lines)) => {
            lines.iter().for_each(print_line);
            if is_serving {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(problem) => report_problem(problem, EXIT_UNKNOWN),
    }
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

/// The words for the effect of a drain or an undrain.
struct DrainEffects {
    changed: &'static str,
    /// The words for a backend that was already in this state.
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
        let summary = String::from_utf8_lossy(&body).trim_end().to_owned();
        Ok(vec![if args.json {
            json!({ "reload": summary }).to_string()
        } else {
            summary
        }])
    };
    finish(lines.await)
}

fn parse<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, String> {
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
