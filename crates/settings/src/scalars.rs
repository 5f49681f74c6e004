//! Methods of `serde` visitors for scalars.

/// Defines the methods of a `serde` `Visitor` for all scalars. All of them return one result.
#[macro_export]
macro_rules! visit_scalars {
    ($result:expr) => {
        $crate::visit_scalars!($result, visit_bool bool, visit_i64 i64, visit_i128 i128, visit_u64 u64,
            visit_u128 u128, visit_f64 f64, visit_str &str);
    };
    ($result:expr, $($visit:ident $scalar:ty),+) => {
        $(fn $visit<E: serde::de::Error>(self, _: $scalar) -> Result<Self::Value, E> {
            $result
        })+
    };
}
