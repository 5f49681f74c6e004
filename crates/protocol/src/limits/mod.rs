//! Limits of rates, of memory and of the lengths of lists.

pub mod memory_charge;
mod party;
pub mod rate_limiter;

pub use party::{Party, busiest, client_network};

use std::collections::VecDeque;

/// Appends an item to a list of at most `max` items, which is at least 1. If the list is full, its first item
/// is removed and returned.
pub fn push_bounded<T>(list: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    let first = if list.len() >= max {
        list.pop_front()
    } else {
        None
    };
    list.push_back(item);
    first
}
