//! Values that options attach to the state of the proxy. The state does not name their types, because they
//! depend on the state.

use futures_util::future::BoxFuture;
use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Values of options, at most one of each type.
#[derive(Debug, Clone, Default)]
pub struct Extensions(Vec<Arc<dyn Extension>>);

/// A value that an option attaches. Each method has a default.
pub trait Extension: Any + Debug + Send + Sync {
    /// Called every 100 ms.
    fn sweep(&self, _now: Instant) {}

    /// Number of open requests of a client that continue without a connection.
    fn absent_requests(&self, _client: IpAddr) -> usize {
        0
    }

    /// Stops the tasks of the option. Called when all connections have ended.
    fn shutdown(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

impl Extensions {
    /// Attaches a value. [`Self::get`] finds it by its type.
    pub fn add(&mut self, value: Arc<impl Extension>) {
        self.0.push(value);
    }

    /// The value of type `T`. `None`: no option has attached one.
    pub fn get<T: Extension>(&self) -> Option<&T> {
        self.iter().find_map(|value| {
            let value: &dyn Any = value;
            value.downcast_ref()
        })
    }

    /// Iterates over the values of all options.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Extension> {
        self.0.iter().map(|value| &**value)
    }
}
