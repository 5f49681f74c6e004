//! A map of bounded size that keeps its entries in two tables, `young` and `old`. New entries go to `young`. A
//! full `young` replaces `old`, and the entries of `old` are lost. Inserting an entry again puts it into
//! `young`, so entries that are inserted often stay in the map.

use crate::key_hash::position;
use hashbrown::HashTable;

#[derive(Debug)]
pub(super) struct BoundedMap<V> {
    young: HashTable<(u64, V)>,
    old: HashTable<(u64, V)>,
    /// Maximum number of entries in each of the two tables `young` and `old`.
    generation: usize,
    seed: u64,
}

impl<V: Copy> BoundedMap<V> {
    /// An empty map of at most `capacity` entries. `seed`: a random number.
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        let generation = (capacity / 2).max(1);
        Self {
            young: HashTable::new(),
            old: HashTable::new(),
            generation,
            seed,
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<V> {
        let slot = position(key, self.seed);
        let find = |table: &HashTable<(u64, V)>| {
            table
                .find(slot, |entry| entry.0 == key)
                .map(|entry| entry.1)
        };
        find(&self.young).or_else(|| find(&self.old))
    }

    pub(super) fn insert(&mut self, key: u64, value: V) {
        let seed = self.seed;
        let slot = position(key, seed);
        if let Some(entry) = self.young.find_mut(slot, |entry| entry.0 == key) {
            entry.1 = value;
            return;
        }
        if self.young.len() >= self.generation {
            self.old = std::mem::take(&mut self.young);
        }
        self.young
            .insert_unique(slot, (key, value), |entry| position(entry.0, seed));
    }

    /// Number of bytes that the map has allocated.
    pub(super) fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_keeps_often_inserted_entries() {
        let mut map = BoundedMap::new(100, 3);
        map.insert(1_000_000, 7);
        let mut greatest = 0;
        for key in 0..10_000 {
            map.insert(key, key);
            map.insert(1_000_000, 7);
            greatest = greatest.max(map.bytes());
        }
        assert_eq!(map.get(1_000_000), Some(7));
        assert_eq!((map.get(9_999), map.get(5)), (Some(9_999), None));
        assert!(greatest < 100 * 17 * 4, "{greatest}");
    }
}
