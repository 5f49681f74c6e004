//! The message bus: publish and subscribe of Redis or Valkey, and scripts on values that the gateways store there.

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use ring::digest;
use std::time::Duration;

/// Address and credentials for the message bus. The `Debug` output has no password.
#[derive(Clone)]
pub struct BusSettings {
    /// URL of the server: `redis://HOST:PORT` or, with TLS, `rediss://HOST:PORT`.
    pub url: String,
    /// User name. `None`: the default user.
    pub username: Option<String>,
    /// Password. `None`: the server needs none.
    pub password: Option<String>,
    /// Name of the channel on which the gateways publish their messages.
    pub channel: String,
    /// Time limit of a connection attempt, and of one message to the server.
    pub timeout: Duration,
}

/// Publishes messages on the channel of the message bus.
pub struct Publisher {
    connection: MultiplexedConnection,
    channel: String,
}

/// Runs scripts at the server of the message bus.
#[derive(Clone)]
pub struct ScriptRunner(MultiplexedConnection);

/// The keys and arguments with which a script runs once.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    /// The keys that the script uses.
    pub keys: Vec<String>,
    /// The arguments, which the script reads as `ARGV`.
    pub arguments: Vec<String>,
}

/// Receives the messages of all gateways, including this one.
pub struct Subscription(PubSubStream);

/// Why the message bus cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The server refused a command, or the connection failed.
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    /// The connection attempt with its subscription took longer than the time limit.
    #[error("could not connect and subscribe within {0:?}")]
    Timeout(Duration),
    /// The subscription returned no message, not even those of this gateway.
    #[error("the subscription brought no message for {0:?}, not even those of this gateway")]
    Silent(Duration),
    /// The server closed the subscription.
    #[error("the server closed the subscription")]
    Closed,
}

impl std::fmt::Debug for BusSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BusSettings")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl BusSettings {
    /// The problem of the URL of a message bus server, with the correct form. `None`: the URL is valid.
    pub fn url_problem(url: &str) -> Option<&'static str> {
        let Some(parsed) = redis::parse_redis_url(url) else {
            return Some(
                "this is no URL of a server; write redis://HOST:PORT or rediss://HOST:PORT",
            );
        };
        if !matches!(parsed.scheme(), "redis" | "rediss") || parsed.host_str().is_none() {
            Some("write redis://HOST:PORT or, with TLS, rediss://HOST:PORT")
        } else if !parsed.username().is_empty() || parsed.password().is_some() {
            Some("do not write a user or a password into the URL; write `username` and `password`")
        } else {
            None
        }
    }

    /// Connects to the server and subscribes to the channel.
    pub async fn connect(&self) -> Result<(Publisher, Subscription), BusError> {
        let connecting = tokio::time::timeout(self.timeout, self.connect_unbounded());
        connecting
            .await
            .map_err(|_| BusError::Timeout(self.timeout))?
    }

    async fn connect_unbounded(&self) -> Result<(Publisher, Subscription), BusError> {
        let info = self.url.as_str().into_connection_info()?;
        let mut redis = info.redis_settings().clone();
        if let Some(username) = &self.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(redis))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timeout));
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let (mut sink, stream) = client.get_async_pubsub().await?.split();
        sink.subscribe(&self.channel).await?;
        Ok((
            Publisher {
                connection,
                channel: self.channel.clone(),
            },
            Subscription(stream),
        ))
    }
}

impl Publisher {
    /// Runs scripts over the same connection.
    pub fn scripts(&self) -> ScriptRunner {
        ScriptRunner(self.connection.clone())
    }

    /// Publishes a message to all gateways. Fails after the timeout of the bus.
    pub async fn publish(&mut self, message: &[u8]) -> Result<(), BusError> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(&self.channel).arg(message);
        let _: i64 = command.query_async(&mut self.connection).await?;
        Ok(())
    }
}

impl ScriptRunner {
    /// Runs a script for each of `calls`, in one round trip. Each call is atomic. Returns their results.
    pub async fn run(
        &mut self,
        script: &str,
        calls: &[ScriptCall],
    ) -> Result<Vec<Vec<i64>>, BusError> {
        let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, script.as_bytes());
        let nibbles = digest
            .as_ref()
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = nibbles.filter_map(|nibble| char::from_digit(nibble.into(), 16));
        let digest: String = digits.collect();
        let mut pipeline = redis::pipe();
        for (index, call) in calls.iter().enumerate() {
            // The first call also stores the script at the server, so that further calls need only its hash.
            let command = if index == 0 {
                pipeline.cmd("EVAL").arg(script)
            } else {
                pipeline.cmd("EVALSHA").arg(&digest)
            };
            command
                .arg(call.keys.len())
                .arg(&call.keys)
                .arg(&call.arguments);
        }
        Ok(pipeline.query_async(&mut self.0).await?)
    }
}

impl std::fmt::Debug for ScriptRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptRunner").finish_non_exhaustive()
    }
}

impl Subscription {
    /// Waits for the next message of any gateway. Fails if none arrives within `limit`.
    pub async fn next(&mut self, limit: Duration) -> Result<Vec<u8>, BusError> {
        let message = tokio::time::timeout(limit, self.0.next()).await;
        let message = message
            .map_err(|_| BusError::Silent(limit))?
            .ok_or(BusError::Closed)?;
        Ok(message.get_payload_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_names_a_server_and_no_password() {
        for url in [
            "redis://valkey:6379",
            "rediss://10.0.0.1",
            "redis://[::1]:7/2",
        ] {
            assert_eq!(BusSettings::url_problem(url), None, "{url}");
        }
        for url in [
            "valkey:6379",
            "http://a",
            "",
            "redis://u:p@a",
            "redis://u@a",
            "unix:///a",
        ] {
            assert!(BusSettings::url_problem(url).is_some(), "{url}");
        }
    }
}
