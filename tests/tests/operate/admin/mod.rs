//! The operator's view: it shows the storage, makes allowed changes only, and reports every change.

mod access;
mod azurite;
mod canary;
mod cancel;
mod cancel_many;
mod cancel_notices;
mod circuits;
mod clocks;
mod coordination;
mod crowds;
mod dead_letter_errors;
mod dead_letters;
mod explain;
mod explain_turns;
mod history;
mod jobs;
mod killed;
mod outages;
mod peek;
mod plan;
mod presence;
mod queues;
mod races;
mod raw_messages;
mod support;
mod upkeep;
