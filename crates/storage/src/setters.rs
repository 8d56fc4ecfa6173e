//! Writes the setters of options.

/// Writes methods that set a field and return the changed value. `name(field: Type)` takes a value of the field or, for a field that
/// is an option, of its content; `field from Type` whatever converts into the type, so that the value of an option needs no `Some`;
/// and `field some Type` whatever converts into the content of an option. `name(argument: Type) => field` sets a field of another
/// name, which may be a field of a field. `= value` at the end computes what the field gets from the argument, for example its bounds.
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
