//! Reads the state, the backends and the configuration of a running gateway from its admin listener.

use super::client::ServerClient;
use crate::facts::{GatewayFacts, GatherError, GatherResult, GatheredResponse};
use serde_json::{Map, Value};
use tokenweir_engine::address::BackendAddress;

/// The responses of a running gateway.
#[derive(Debug)]
pub struct GatewayAnswers {
    /// The facts from `/status`, or why the gateway did not respond.
    pub gateway: Result<GatewayFacts, GatherError>,
    /// The values of the configuration from `/config`, without their sources, or why the values are unknown.
    /// `None`: the gateway did not respond.
    pub config: Option<Result<Value, String>>,
    /// The names and URLs of the backends of the gateway, from `/status`.
    pub backends: Vec<(String, BackendAddress)>,
}

/// Fetches `/status` and `/config` from the admin listener of a gateway.
pub async fn gateway(client: &ServerClient) -> GatewayAnswers {
    let (status, view) = match (client.get("/status").await, client.get("/config").await) {
        (Ok(status), view) => (parse_document(&status), view),
        (Err(error), _) => {
            return GatewayAnswers {
                gateway: Err(error),
                config: None,
                backends: Vec::new(),
            };
        }
    };
    let backends = status.as_ref().map(parse_backends).unwrap_or_default();
    let gateway = GatewayFacts {
        url: client.url().clone(),
        status,
        config_problem: None,
    };
    GatewayAnswers {
        gateway: Ok(gateway),
        config: Some(parse_configuration(view)),
        backends,
    }
}

fn parse_document(answer: &GatheredResponse) -> Result<Value, String> {
    if !answer.is_ok() {
        return Err(format!("answered {}", answer.status));
    }
    let value: Option<Value> = serde_json::from_slice(&answer.body).ok();
    value
        .filter(|value| value.get("backends").is_some() || value.get("config").is_some())
        .ok_or("answered with something else than a document of a gateway".to_owned())
}

fn parse_backends(status: &Value) -> Vec<(String, BackendAddress)> {
    let backends = status["backends"].as_array().into_iter().flatten();
    let parse = |backend: &Value| {
        let url = BackendAddress::parse(backend["url"].as_str()?).ok()?;
        Some((backend["backend"].as_str()?.to_owned(), url))
    };
    backends.filter_map(parse).collect()
}

/// The values of the configuration in the document of `/config`, without their sources.
fn parse_configuration(view: GatherResult) -> Result<Value, String> {
    let view = parse_document(&view.map_err(|error| error.to_string())?)?;
    Ok(bare(view["config"].clone()))
}

/// Removes the sources from the document of `/config`, in which each setting is an object with a `value` and a
/// `source`. The value replaces the object.
pub fn bare(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => {
            let is_leaf = fields.len() == 2 && fields.contains_key("source");
            if is_leaf && let Some(value) = fields.get_mut("value") {
                return value.take();
            }
            let fields = fields.into_iter().map(|(key, value)| (key, bare(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(bare).collect(),
        value => value,
    }
}
