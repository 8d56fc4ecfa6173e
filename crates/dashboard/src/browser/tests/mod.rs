//! Tests of the pages as text, through the router.

mod changes;
mod checks;
mod documents;
mod forms;
mod holdup;
mod hostile;
mod letters;
mod links;
mod lists;
mod logged;
mod outages;
mod pauses;
mod searching;
mod security;
mod sharing;
mod storages;
mod support;
mod throughput;
mod viewing;
