//! The client for the admin listener of a gateway.

use tokenweir::commands::{ADMIN_TOKEN_VARIABLE, resolve_optional_secret};
use tokenweir::config::{Secret, SecretError};
use tokenweir_bench::sender::TargetClient;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};

/// Creates a client of the admin listener at this address. It uses the admin token from the environment, if
/// it is set.
pub(crate) fn admin_client(admin: &BackendAddress) -> Result<TargetClient, SecretError> {
    let token = resolve_optional_secret(&Secret::Env(ADMIN_TOKEN_VARIABLE.to_owned()))?;
    Ok(TargetClient::new(
        HttpClient::new(HttpClientTimeouts::default()),
        admin.clone(),
        token,
    ))
}
