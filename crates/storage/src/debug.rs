//! A macro that implements `Debug` for types that must not show all their fields.

/// Implements `Debug` for types that hide fields: messages, payloads and keys are confidential, and functions
/// have nothing to show. Only listed fields are shown, so a field added later stays hidden.
///
/// `Type { a, b = inner.b.len() }` prints `Type { a: …, b: …, .. }`, with the value of `self.inner.b.len()`
/// as `b`; `Type(inner.a)` prints the single value `Type(…)`; `Type {}` prints `Type { .. }`. Types with
/// parameters name them: `Type<'a, M> { a }`. Doc comments go before the type, and say what is hidden and
/// why.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    () => {};
    ($(#[$doc:meta])* $name:ident $(<$($parameter:tt),+>)? {
        $($field:ident $(= $($part:tt $(($($argument:tt)*))?).+)?),*
    } $($rest:tt)*) => {
        $crate::debug_fields!(@impl [$(#[$doc])*] [$name $(<$($parameter),+>)?] [$($($parameter),+)?] self f {
            f.debug_struct(stringify!($name))
                $(.field(
                    stringify!($field),
                    &$crate::debug_fields!(@value self $field $($($part $(($($argument)*))?).+)?),
                ))*
                .finish_non_exhaustive()
        });
        $crate::debug_fields!($($rest)*);
    };
    ($(#[$doc:meta])* $name:ident $(<$($parameter:tt),+>)? ($($value:tt)+) $($rest:tt)*) => {
        $crate::debug_fields!(@impl [$(#[$doc])*] [$name $(<$($parameter),+>)?] [$($($parameter),+)?] self f {
            f.debug_tuple(stringify!($name)).field(&self.$($value)+).finish()
        });
        $crate::debug_fields!($($rest)*);
    };
    (@value $self:ident $field:ident) => { $self.$field };
    (@value $self:ident $field:ident $($value:tt)+) => { $self.$($value)+ };
    (@impl [$($doc:tt)*] [$($type:tt)+] [$($parameter:tt)*] $self:ident $f:ident $body:block) => {
        $($doc)*
        impl<$($parameter)*> ::core::fmt::Debug for $($type)+ {
            fn fmt(&$self, $f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result $body
        }
    };
}
