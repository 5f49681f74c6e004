//! How the parts of the JSON documents are declared.

/// Declares structs whose fields are all public, with the traits of a part of a JSON document. A field that a
/// document lacks has its default value.
macro_rules! document {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(default)]
            pub struct $name { $($(#[$field_attribute])* pub $field: $type,)* }
        )*
    };
}
