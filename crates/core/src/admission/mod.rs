//! The waiting room: where requests wait while every replica that could take them is past its
//! high-water mark, in which order they leave it, and who is turned away when it is full.
//!
//! ```text
//! order      the highest class first; in a class each tenant in turn, by the tokens that it has
//!            been granted; of one tenant the oldest
//! full       the newest ticket of the biggest tenant of the lowest class makes room, if the
//!            newcomer has a higher class, or its tenant fewer places
//! retry      ⌈place in the line ÷ places that become free in a second⌉ s, from 1 to 60
//! ```
//!
//! Classes are strict: a higher one always goes first, and a ticket does not age into another.
//! Ageing would let a flood of the lowest class pass the highest after a while, which is at the
//! one time when classes matter. Nobody starves unseen: a wait has a deadline, and an answer.

mod classes;
mod fair;
mod rate;
mod room;
#[cfg(test)]
mod tests;

pub use classes::{Classes, DEFAULT_CLASS};
pub use room::{Closed, Entry, Key, Refused, Room, Ticket};
