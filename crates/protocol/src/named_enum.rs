//! Enums with one name for each variant, which metrics, logs and documents show.

#[doc(hidden)]
pub use serde;

/// Declares an enum with the name of each variant, as metrics, logs and documents show it. The macro
/// generates `ALL`, `NAMES`, `as_str` and `Serialize`, so that each variant and its name are written once. It derives
/// `Debug`, `Clone`, `Copy`, `PartialEq` and `Eq`.
///
/// ```
/// tokenweir_protocol::named_enum! {
///     /// The answer.
///     pub enum Answer {
///         /// Yes.
///         Yes = "yes",
///         /// No.
///         No = "no",
///     }
/// }
/// assert_eq!(Answer::ALL.map(Answer::as_str), Answer::NAMES);
/// assert_eq!(Answer::NAMES, ["yes", "no"]);
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $enum:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $enum {
            $($(#[$variant_attribute])* $variant,)+
        }

        impl $enum {
            /// All values, in the order of their declaration.
            $visibility const ALL: [Self; Self::NAMES.len()] = [$(Self::$variant),+];

            /// The names of all values, in the order of their declaration.
            $visibility const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name of the value in metrics, logs and documents.
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl $crate::named_enum::serde::Serialize for $enum {
            fn serialize<S: $crate::named_enum::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}
