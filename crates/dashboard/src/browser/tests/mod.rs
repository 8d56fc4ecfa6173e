//! Tests of the pages as text, through the router.

mod changes;
mod forms;
mod hostile;
mod letters;
mod links;
mod lists;
mod outages;
mod pauses;
mod security;
mod sharing;
mod storages;
mod support;
mod viewing;
