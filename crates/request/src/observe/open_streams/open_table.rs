//! A table of objects that are open at present, such as streams. Dropping an entry removes it from the table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::mutex::lock;

/// The values of all open entries, in the order in which they were opened.
#[derive(Debug)]
pub(super) struct OpenTable<T>(Mutex<Rows<T>>);

#[derive(Debug)]
struct Rows<T> {
    next_key: u64,
    open: BTreeMap<u64, Arc<T>>,
}

/// One value of an [`OpenTable`]. Dropping the entry removes the value from the table.
#[derive(Debug)]
pub(super) struct TableEntry<T> {
    table: Arc<OpenTable<T>>,
    key: u64,
    pub value: Arc<T>,
}

impl<T> Default for OpenTable<T> {
    fn default() -> Self {
        Self(Mutex::new(Rows {
            next_key: 0,
            open: BTreeMap::new(),
        }))
    }
}

impl<T> OpenTable<T> {
    /// Adds a value until the returned entry is dropped.
    pub(super) fn insert(self: &Arc<Self>, value: T) -> TableEntry<T> {
        let value = Arc::new(value);
        let mut rows = lock(&self.0);
        let key = rows.next_key;
        rows.next_key += 1;
        rows.open.insert(key, value.clone());
        TableEntry {
            table: self.clone(),
            key,
            value,
        }
    }

    /// The open values with their keys. Later values have greater keys. The table is not locked while the
    /// caller uses the result.
    pub(super) fn values(&self) -> Vec<(u64, Arc<T>)> {
        lock(&self.0)
            .open
            .iter()
            .map(|(key, value)| (*key, value.clone()))
            .collect()
    }
}

impl<T> Drop for TableEntry<T> {
    fn drop(&mut self) {
        lock(&self.table.0).open.remove(&self.key);
    }
}
