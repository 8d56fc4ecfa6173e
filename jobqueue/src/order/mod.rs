//! Keeps the order of FIFO groups in a worker: the [hook](hook) asks the [group log](crate::group_log)
//! whether a delivery has its turn, and [parking](parking) holds the waiting deliveries.

mod hook;
mod parking;

pub(crate) use hook::OrderHook;
