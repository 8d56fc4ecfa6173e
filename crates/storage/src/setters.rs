//! A macro for the setters of options.

/// Defines methods that set a field and return the changed value. The argument has one of these forms:
///
/// - `name(field: Type)` takes a value of the field's type or, for an optional field, of its content;
/// - `name(field from Type)` takes any `impl Into<Type>`, so that an optional field needs no `Some` around
///   its value;
/// - `name(field some Type)` takes any `impl Into<Type>` and stores it in `Some`.
///
/// `name(argument: Type) => field` sets a field with another name, or a field of a field. `= value` at the
/// end computes the stored value from the argument, for example to apply bounds.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    (@argument : $type:ty) => { $type };
    (@argument $by:tt $type:ty) => { impl Into<$type> };
    (@value some $argument:ident) => { Some($argument.into()) };
    (@value $by:tt $argument:ident) => { $argument.into() };
    (@value $by:tt $argument:ident $value:expr) => { $value };
    (@field $self:ident $argument:ident) => { $self.$argument };
    (@field $self:ident $argument:ident $($field:tt)+) => { $self$(.$field)+ };
    ($(
        $(#[$doc:meta])* $name:ident($argument:ident $by:tt $type:ty) $(=> $($field:tt).+)? $(= $value:expr)?;
    )+) => {$(
        $(#[$doc])*
        #[must_use]
        #[allow(clippy::double_must_use, reason = "some types of these setters have the attribute, and some do not")]
        pub fn $name(mut self, $argument: $crate::setters!(@argument $by $type)) -> Self {
            $crate::setters!(@field self $argument $($($field)+)?) = $crate::setters!(@value $by $argument $($value)?);
            self
        }
    )+};
}
