//! What the derive macros' output uses. Not part of the public API: anything here may change in any release.
