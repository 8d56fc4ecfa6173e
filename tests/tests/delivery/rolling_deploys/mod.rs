//! Old and new releases of a program side by side on one queue: no message that one of them knows is lost.

mod keys;
mod late;
mod messages;
mod processes;
mod raw_payloads;
mod workers;
