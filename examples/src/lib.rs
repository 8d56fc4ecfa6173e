//! Helpers that several examples share.
