//! Writes the setters of public fields.

/// Writes methods that set a field and return the changed value. `field from Type` takes whatever converts into the type, so
/// that the value of an option needs no `Some`.
macro_rules! setters {
    (@argument : $type:ty) => { $type };
    (@argument from $type:ty) => { impl Into<$type> };
    ($($(#[$doc:meta])* $name:ident($field:ident $by:tt $type:ty);)+) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $field: setters!(@argument $by $type)) -> Self {
            self.$field = $field.into();
            self
        }
    )+};
}
