//! Diagnosis: simulated pathologies must be named within a minute and nothing else, and a day of
//! hot and healthy replicas must pass without a word.

mod day;
mod engines;
mod faults;
mod plant;
mod program;
mod score;
mod untold;
