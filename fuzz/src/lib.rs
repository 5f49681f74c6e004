//! What the fuzz targets share: a way to cut an input, and an independent reading of JSON.

mod cut;
mod tree;

pub use cut::cut;
pub use tree::Tree;
