//! A gateway that runs: what its admin port says of it, of its replicas and of its configuration.

use super::ask::Asker;
use super::{Plan, Target};
use crate::backend::address::Address;
use crate::config::Config;
use crate::doctor::facts::{Answer, Asked, Gateway, Silence};
use serde_json::{Map, Value};

/// What a running gateway told.
#[derive(Debug)]
pub struct Told {
    /// What it says of itself, or why it says nothing.
    pub gateway: Result<Gateway, Silence>,
    /// Its configuration, if it could be read.
    pub config: Option<Config>,
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
    let config = configuration(view);
    let config_problem = config.as_ref().err().cloned();
    let gateway = Gateway { url: target.url.clone(), status, config_problem };
    Told { gateway: Ok(gateway), config: config.ok(), replicas }
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
fn configuration(view: Asked) -> Result<Config, String> {
    let view = document(&view.map_err(|silence| silence.to_string())?)?;
    let values = bare(view["config"].clone());
    serde_json::from_value(values).map_err(|error| error.to_string())
}

fn bare(value: Value) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::path::Path;

    #[test]
    fn a_configuration_is_read_back_from_what_the_admin_port_shows() {
        let text = "backends:\n  - { url: 'http://a:1', name: a, api_key: { env: K }, weight: 0 }\n\
                    models: [{ name: gpt, served_as: tiny }]\n\
                    timeouts: { idle_connection: 7s, first_output: null }\n\
                    tracing: { endpoint: 'http://c:4317', protocol: grpc }\n\
                    limits: { memory: 4GiB }\n";
        let loaded = Config::parse(text, Path::new("a.yaml"), Overrides::default()).unwrap();
        let read: Config = serde_json::from_value(bare(loaded.view()["config"].clone())).unwrap();
        assert_eq!(read, loaded.config);
    }
}
