//! A gateway that runs: what its admin port says of it, of its replicas and of its configuration.

use super::ask::Asker;
use super::{Plan, Target};
use crate::facts::{Answer, Asked, Gateway, Silence};
use serde_json::{Map, Value};
use tokenweir_core::address::Address;

/// What a running gateway told.
#[derive(Debug)]
pub struct Told {
    /// What it says of itself, or why it says nothing.
    pub gateway: Result<Gateway, Silence>,
    /// The values of its configuration, without their sources, or why they are not known.
    pub config: Option<Result<Value, String>>,
    /// Its replicas: their names and where they are.
    pub replicas: Vec<(String, Address)>,
}

/// Asks the admin port of a gateway.
pub async fn gateway(target: &Target, plan: &Plan) -> Told {
    let asker = Asker::to(target, plan);
    let (status, view) = match (asker.get("/status").await, asker.get("/config").await) {
        (Ok(status), view) => (document(&status), view),
        (Err(silence), _) => {
            return Told { gateway: Err(silence), config: None, replicas: Vec::new() };
        }
    };
    let replicas = status.as_ref().map(replicas).unwrap_or_default();
    let gateway = Gateway { url: target.url.clone(), status, config_problem: None };
    Told { gateway: Ok(gateway), config: Some(configuration(view)), replicas }
}

fn document(answer: &Answer) -> Result<Value, String> {
    if !answer.is_ok() {
        return Err(format!("answered {}", answer.status));
    }
    let value: Option<Value> = serde_json::from_slice(&answer.body).ok();
    value
        .filter(|value| value.get("backends").is_some() || value.get("config").is_some())
        .ok_or("answered something that is not of a gateway".to_owned())
}

fn replicas(status: &Value) -> Vec<(String, Address)> {
    let backends = status["backends"].as_array().into_iter().flatten();
    let replica = |backend: &Value| {
        let url = Address::parse(backend["url"].as_str()?).ok()?;
        Some((backend["backend"].as_str()?.to_owned(), url))
    };
    backends.filter_map(replica).collect()
}

/// The configuration, without the source of each value.
fn configuration(view: Asked) -> Result<Value, String> {
    let view = document(&view.map_err(|silence| silence.to_string())?)?;
    Ok(bare(view["config"].clone()))
}

/// The values of a view of the configuration, in which each leaf has a value and a source.
pub fn bare(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => {
            let is_leaf = fields.len() == 2 && fields.contains_key("source");
            if let Some(value) = fields.get_mut("value").filter(|_| is_leaf) {
                return value.take();
            }
            let fields = fields.into_iter().map(|(key, value)| (key, bare(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(bare).collect(),
        value => value,
    }
}
