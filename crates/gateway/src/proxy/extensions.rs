//! Values that options attach to the state of the proxy. The state does not know their types, because these
//! types know the state.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Values of options, at most one of each type.
#[derive(Debug, Clone, Default)]
pub struct Extensions(Vec<Arc<dyn Extension>>);

/// A value of an option.
pub trait Extension: Any + Debug + Send + Sync {}

impl Extensions {
    /// Attaches a value.
    pub fn add(&mut self, value: Arc<impl Extension>) {
        self.0.push(value);
    }

    /// The value of this type. `None`: no option has attached one.
    pub fn get<T: Extension>(&self) -> Option<&T> {
        self.0.iter().find_map(|value| {
            let value: &dyn Any = &**value;
            value.downcast_ref()
        })
    }
}
