//! The sections `listen`, `listen_reuse_port` and `admin`: the addresses of the listeners.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use tokenweir_engine::address::parse_listen_address;
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, violation_of};

/// The address of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ListenAddress(
    #[serde(deserialize_with = "read_socket")]
    #[schemars(with = "String")]
    pub SocketAddr,
);

impl Default for ListenAddress {
    fn default() -> Self {
        Self((Ipv4Addr::LOCALHOST, 8080).into())
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl Deref for ListenAddress {
    type Target = SocketAddr;

    fn deref(&self) -> &SocketAddr {
        &self.0
    }
}

fn read_socket<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    parse_listen_address(&String::deserialize(from)?).map_err(D::Error::custom)
}

// A bound socket cannot change its address.
const RELOAD: ReloadClass = ReloadClass::AfterRestart;

/// Values, rules and reload class of the section `listen`.
pub struct Listen;

impl<C> ConfigSection<C> for Listen {
    type Values = ListenAddress;
    const RELOAD: ReloadClass = RELOAD;
}

/// Values, rules and reload class of the section `listen_reuse_port`.
pub struct ListenReusePort;

impl<C> ConfigSection<C> for ListenReusePort {
    type Values = bool;
    const RELOAD: ReloadClass = RELOAD;
}

/// Values, rules and reload class of the section `admin`.
pub struct Admin;

impl<C: ClientListener> ConfigSection<C> for Admin {
    type Values = ListenAddress;
    const RELOAD: ReloadClass = RELOAD;

    fn defaults() -> ListenAddress {
        ListenAddress((Ipv4Addr::LOCALHOST, 9090).into())
    }

    fn check(admin: &ListenAddress, config: &C) -> CheckResult {
        // Port 0 means any free port, so two listeners may have it.
        if *admin != config.client_listener() || admin.port() == 0 {
            return Ok(());
        }
        let problem = format!("listen and admin cannot both be {}", admin.0);
        Err(violation_of(["admin", "listen"], problem))
    }
}

/// A configuration that has a client listener.
pub trait ClientListener {
    /// The address of the client listener.
    fn client_listener(&self) -> ListenAddress;
}
