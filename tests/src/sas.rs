//! Makes account SAS tokens for Azurite's account.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::azurite::{ACCOUNT, KEY};

/// The version of the signing rules.
const VERSION: &str = "2021-12-02";

/// Returns an account SAS for queues and blobs with `permissions` (letters such as `raup`), valid from 2020
/// to `expiry`, for containers and objects. An application needs no more.
pub fn account_sas(permissions: &str, expiry: &str) -> String {
    account_sas_for("co", permissions, expiry)
}

/// Like [`account_sas`], but for other resource types. Listing queues needs `s`.
pub fn account_sas_for(types: &str, permissions: &str, expiry: &str) -> String {
    let (start, services) = ("2020-01-01T00:00:00Z", "bq");
    let text = format!(
        "{ACCOUNT}\n{permissions}\n{services}\n{types}\n{start}\n{expiry}\n\nhttps,http\n{VERSION}\n\n"
    );
    let key = BASE64.decode(KEY).expect("the published key");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length");
    mac.update(text.as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query
        .append_pair("sv", VERSION)
        .append_pair("ss", services)
        .append_pair("srt", types)
        .append_pair("sp", permissions)
        .append_pair("st", start)
        .append_pair("se", expiry)
        .append_pair("spr", "https,http")
        .append_pair("sig", &signature);
    query.finish()
}

/// Returns a connection string with a SAS.
pub fn connection_string(queues: &str, blobs: &str, sas: &str) -> String {
    format!("QueueEndpoint={queues};BlobEndpoint={blobs};SharedAccessSignature={sas}")
}
