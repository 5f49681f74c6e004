//! The replicas in the configuration: where each is, what it is called, and how it knows us.

use super::secret::Secret;
use super::settings::UsageMode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use tokenweir_core::address::{Address, AddressError};
use tokenweir_core::record::BackendId;
use tokenweir_net::tls::ClientSettings;

/// A replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendConfig {
    /// Where it is: scheme, host and port, without a path.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    #[schemars(with = "String")]
    pub url: Address,
    /// What it is called in metrics, traces and logs. `None`: its host and port.
    #[serde(default, deserialize_with = "read_name")]
    pub name: Option<String>,
    /// The token that it wants, instead of the client's. `None`: the client's own is passed on.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// Whether it is asked for usage that clients did not ask for. `None`: as for all.
    #[serde(default)]
    pub usage: Option<UsageMode>,
    /// The share of its streams that are asked for the counts of every event. `None`: as for all.
    #[serde(default, deserialize_with = "read_share")]
    pub continuous_usage: Option<f64>,
    /// Whom it must prove to be, and whom the gateway proves to be. `None`: as for all.
    #[serde(default)]
    pub tls: Option<ClientSettings>,
    /// Its share of the work, relative to the others'. With 0 it gets nothing new.
    #[serde(default = "usual_weight")]
    pub weight: u32,
}

/// Longest name, in bytes.
const MAX_NAME: usize = 64;

impl BackendConfig {
    /// A replica of which only the address is known.
    pub fn at(url: Address) -> Self {
        Self {
            url,
            name: None,
            api_key: None,
            usage: None,
            continuous_usage: None,
            tls: None,
            weight: usual_weight(),
        }
    }

    /// Its name, or its host and port.
    pub fn id(&self) -> BackendId {
        self.name.as_deref().map_or_else(|| self.url.default_id(), BackendId::new)
    }
}

fn usual_weight() -> u32 {
    1
}

fn write_address<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(address)
}

fn read_address<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
    let url = String::deserialize(from)?;
    Address::parse(&url).map_err(|error| match error {
        // The other messages quote the URL.
        _ if url.contains('@') => D::Error::custom(AddressError::Credentials),
        error => D::Error::custom(error),
    })
}

/// Names are labels of metrics: short, and without what would need escapes.
fn read_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let Some(name) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        let problem = "a name has 1 to 64 letters, digits and any of `-_.:/`";
        return Err(D::Error::custom(problem));
    }
    Ok(Some(name))
}

pub(super) fn read_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let share = Option::<f64>::deserialize(from)?;
    if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
        return Err(D::Error::custom("a share is from 0 to 1"));
    }
    Ok(share)
}
