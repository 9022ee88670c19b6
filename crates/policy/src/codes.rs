//! Enums whose variants have stable codes: one table each, so that no code can be forgotten.

/// Defines an enum, its stable snake_case codes and the list of all its variants from one table.
///
/// ```
/// belljar_policy::codes! {
///     /// Why the door stayed shut.
///     pub enum Why {
///         /// It was late.
///         Late = "deny_late",
///     }
/// }
/// assert_eq!(Why::Late.code(), "deny_late");
/// assert_eq!(Why::from_code("deny_late"), Some(Why::Late));
/// ```
#[macro_export]
macro_rules! codes {
    ($(#[$outer:meta])* $visibility:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every one there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable snake_case code.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The one with this code.
            #[must_use]
            pub fn from_code(code: &str) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
