//! Parses Azure's connection strings: `Name=Value` settings separated by semicolons.
//!
//! An invalid string is refused with the name of the wrong setting. Values and unknown names are never
//! repeated: either may be part of a key.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use url::Url;

use jobqueue_storage::secret::Secret;

use super::account::{self, Account, Credential, Problem};

/// The emulator's account. Microsoft publishes its key, so it is not secret.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

const KNOWN_SETTINGS: [&str; 9] = [
    "UseDevelopmentStorage",
    "DevelopmentStorageProxyUri",
    "DefaultEndpointsProtocol",
    "AccountName",
    "AccountKey",
    "SharedAccessSignature",
    "EndpointSuffix",
    "QueueEndpoint",
    "BlobEndpoint",
];

/// Settings for other services of an account. They are accepted, so that a portal's string works unchanged.
const IGNORED_SETTINGS: [&str; 7] = [
    "TableEndpoint",
    "FileEndpoint",
    "DfsEndpoint",
    "QueueSecondaryEndpoint",
    "BlobSecondaryEndpoint",
    "TableSecondaryEndpoint",
    "FileSecondaryEndpoint",
];

pub(super) fn parse(text: &str) -> Result<Account, Problem> {
    let settings = Settings::read(text)?;
    if let Some(value) = settings.get("UseDevelopmentStorage") {
        if !value.eq_ignore_ascii_case("true") {
            return Err("UseDevelopmentStorage can only be true; remove it otherwise".to_owned());
        }
        return emulator(&settings);
    }
    if settings.get("DevelopmentStorageProxyUri").is_some() {
        return Err("DevelopmentStorageProxyUri needs UseDevelopmentStorage=true".to_owned());
    }
    let (queues, blobs) = endpoints(&settings)?;
    let name = match settings.get("AccountName") {
        Some(name) => name.to_owned(),
        None => account::account_name(&queues).ok_or("AccountName is missing")?,
    };
    Ok(Account { name, queues, blobs, credential: credential(&settings)? })
}

fn emulator(settings: &Settings<'_>) -> Result<Account, Problem> {
    if let Some(other) = KNOWN_SETTINGS[2..].iter().find(|name| settings.get(name).is_some()) {
        return Err(format!("{other} does not go with UseDevelopmentStorage=true"));
    }
    let base = settings.get("DevelopmentStorageProxyUri").unwrap_or("http://127.0.0.1");
    let base = account::endpoint("DevelopmentStorageProxyUri", base)?;
    let at = |port| {
        let mut url = base.clone();
        url.set_port(Some(port)).map_err(|()| "DevelopmentStorageProxyUri names no host".to_owned())?;
        url.set_path(EMULATOR_ACCOUNT);
        Ok::<_, Problem>(url)
    };
    Ok(Account {
        name: EMULATOR_ACCOUNT.to_owned(),
        queues: at(10001)?,
        blobs: at(10000)?,
        credential: Credential::SharedKey(key(EMULATOR_KEY)?),
    })
}

fn endpoints(settings: &Settings<'_>) -> Result<(Url, Url), Problem> {
    let given = |part| settings.get(part).map(|text| account::endpoint(part, text)).transpose();
    let (queues, blobs) = (given("QueueEndpoint")?, given("BlobEndpoint")?);
    let queues = match (queues, &blobs) {
        (Some(url), _) => url,
        (None, Some(blobs)) if settings.get("AccountName").is_none() => {
            account::sibling(blobs, "blob", "queue")
                .ok_or("QueueEndpoint is missing, and cannot be derived from BlobEndpoint")?
        }
        (None, _) => derived(settings, "queue")?,
    };
    let blobs = match blobs {
        Some(url) => url,
        None => match account::sibling(&queues, "queue", "blob") {
            Some(url) => url,
            None if settings.get("QueueEndpoint").is_some() => {
                return Err("BlobEndpoint is missing, and cannot be derived from QueueEndpoint".to_owned());
            }
            None => derived(settings, "blob")?,
        },
    };
    Ok((queues, blobs))
}

fn derived(settings: &Settings<'_>, service: &str) -> Result<Url, Problem> {
    let name = settings.get("AccountName").ok_or("AccountName is missing")?;
    account::check_name(name)?;
    let scheme = match settings.get("DefaultEndpointsProtocol").unwrap_or("https") {
        scheme @ ("https" | "http") => scheme,
        _ => return Err("DefaultEndpointsProtocol must be https".to_owned()),
    };
    let suffix = settings.get("EndpointSuffix").unwrap_or("core.windows.net");
    let suffix_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    if suffix.is_empty() || !suffix.chars().all(suffix_ok) {
        return Err("EndpointSuffix must be a host name such as core.windows.net".to_owned());
    }
    let part = if scheme == "http" { "DefaultEndpointsProtocol" } else { "EndpointSuffix" };
    account::endpoint(part, &format!("{scheme}://{name}.{service}.{suffix}"))
}

fn credential(settings: &Settings<'_>) -> Result<Credential, Problem> {
    match (settings.get("AccountKey"), settings.get("SharedAccessSignature")) {
        (Some(_), Some(_)) => Err("AccountKey and SharedAccessSignature are both given; keep one".to_owned()),
        (Some(text), None) if settings.get("AccountName").is_some() => Ok(Credential::SharedKey(key(text)?)),
        (Some(_), None) => Err("AccountName is missing; an AccountKey needs it".to_owned()),
        (None, Some(text)) => Ok(Credential::Sas(sas(text)?)),
        (None, None) => Err("AccountKey or SharedAccessSignature is missing".to_owned()),
    }
}

fn key(text: &str) -> Result<Secret<Vec<u8>>, Problem> {
    match BASE64.decode(text) {
        Ok(key) if !key.is_empty() => Ok(Secret::new(key)),
        _ => Err("AccountKey is not base64; copy it again, with the = at its end".to_owned()),
    }
}

fn sas(text: &str) -> Result<Secret<String>, Problem> {
    let text = text.strip_prefix('?').unwrap_or(text);
    if !text.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '#' | '"' | '<' | '>')) {
        return Err("SharedAccessSignature has characters that a query string cannot have".to_owned());
    }
    for needed in ["sig", "sv"] {
        let has = url::form_urlencoded::parse(text.as_bytes())
            .any(|(name, value)| name == needed && !value.is_empty());
        if !has {
            return Err(format!("SharedAccessSignature has no {needed}= field; copy it again as a whole"));
        }
    }
    Ok(Secret::new(text.to_owned()))
}

/// The settings of a string by lower-case name.
struct Settings<'a>(BTreeMap<String, &'a str>);

impl<'a> Settings<'a> {
    fn read(text: &'a str) -> Result<Self, Problem> {
        let mut settings = BTreeMap::new();
        for (index, setting) in text.split(';').enumerate() {
            let setting = setting.trim();
            if setting.is_empty() {
                continue;
            }
            let place = index + 1;
            let (name, value) = setting.split_once('=').ok_or_else(|| {
                format!("setting {place} of the connection string is not of the form Name=Value")
            })?;
            let known = KNOWN_SETTINGS
                .iter()
                .chain(&IGNORED_SETTINGS)
                .find(|known| known.eq_ignore_ascii_case(name.trim()));
            let Some(known) = known else {
                return Err(format!(
                    "setting {place} of the connection string has an unknown name; known are {}",
                    KNOWN_SETTINGS.join(", ")
                ));
            };
            if value.trim().is_empty() {
                return Err(format!("{known} is empty"));
            }
            if settings.insert(known.to_ascii_lowercase(), value.trim()).is_some() {
                return Err(format!("{known} is given twice"));
            }
        }
        Ok(Self(settings))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(&name.to_ascii_lowercase()).copied()
    }
}

#[cfg(test)]
#[path = "connection_string_tests.rs"]
mod tests;
