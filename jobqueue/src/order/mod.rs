//! Keeps the order of FIFO groups in a worker: the [hook](hook) that asks the [group log](crate::group_log) whether a delivery has its
//! turn, and the [parking](parking) of waiting deliveries.

mod hook;
mod parking;

pub(crate) use hook::OrderHook;
