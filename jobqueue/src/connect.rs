//! Opens a storage from a connection string. No other module depends on all adapters.

use futures_util::future::BoxFuture;

use crate::error::{Error, ErrorKind};
use crate::memory;
use crate::storage::Storage;

/// The settings of which each connection string of Azure Storage has at least one.
const AZURE_SETTINGS: [&str; 7] = [
    "UseDevelopmentStorage",
    "DefaultEndpointsProtocol",
    "AccountName",
    "AccountKey",
    "SharedAccessSignature",
    "QueueEndpoint",
    "BlobEndpoint",
];

/// The settings that only a connection string of Service Bus has.
#[cfg(feature = "servicebus")]
const SERVICE_BUS_SETTINGS: [&str; 7] = [
    "Endpoint",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "TransportType",
    "UseDevelopmentEmulator",
    "EntityPath",
    "Blobs",
];

impl Storage {
    /// Returns a storage in this process's memory, for tests. It is gone when its last handle is dropped.
    ///
    /// On a paused tokio runtime, run workers on [`memory::open_on`] with
    /// [`Runtime::paused`](crate::Runtime::paused) instead: a worker on this storage uses threads, and the
    /// paused clock runs ahead while they work.
    pub fn memory() -> Self {
        memory::open()
    }

    /// Opens the storage that a string names:
    ///
    /// | string | storage | feature |
    /// |---|---|---|
    /// | `sqlite:PATH` | one SQLite file, shared by the processes of one machine; created if missing | `sqlite` |
    /// | `memory:` | this process's memory, for tests | |
    /// | `UseDevelopmentStorage=true` | Azurite on this machine | `azure` |
    /// | `DefaultEndpointsProtocol=…;AccountName=…;AccountKey=…` | an Azure Storage account, by key | `azure` |
    /// | `QueueEndpoint=…;BlobEndpoint=…;SharedAccessSignature=…` | an Azure Storage account, by SAS | `azure` |
    /// | `https://ACCOUNT.queue.core.windows.net` | an Azure Storage account, by Entra ID | `azure` |
    /// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE` | a PostgreSQL database, shared by any number of machines; its tables are created if missing | `postgres` |
    /// | `postgres://USER@HOST/DATABASE?sslmode=verify-full&credential=entra` | the same, by Entra ID | `postgres-entra` |
    /// | `Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…;Blobs=STRING` | queues of Azure Service Bus, with the blobs of the storage that `STRING` names; `Blobs` is the last setting | `servicebus` |
    /// | `Endpoint=sb://NAMESPACE.servicebus.windows.net;Blobs=STRING` | the same, by Entra ID | `servicebus` |
    ///
    /// A SQLite file that another program has created is refused. Connect first, and create tables of your own
    /// in jobqueue's file then; [the guide](crate::guide::storages#a-database-that-exists-already) shows how
    /// tables move there.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration) when the string is not one of these, or names a storage
    /// whose feature is off; the text never quotes a secret. [`Storage`](ErrorKind::Storage) when the storage
    /// cannot be opened.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing stays open; a SQLite file may have been created.
    pub async fn connect(connection: &str) -> Result<Self, Error> {
        connect(connection.trim(), true).await
    }
}

/// Opens an existing storage as [`Storage::connect`] does. Creates no file and no table, and does not migrate
/// tables of an older version.
///
/// # Errors
/// The errors of [`Storage::connect`]; [`Configuration`](ErrorKind::Configuration), caused by
/// [`NotPrepared`](crate::storage::StoreErrorKind::NotPrepared), if there are no tables that this version can
/// use.
pub async fn connect_existing(connection: &str) -> Result<Storage, Error> {
    connect(connection.trim(), false).await
}

/// Opens a storage. If `creates` is true, creates missing files and tables and migrates old tables, for
/// queues and blobs.
fn connect(connection: &str, creates: bool) -> BoxFuture<'_, Result<Storage, Error>> {
    Box::pin(async move {
        if connection == "memory:" || connection == "memory" {
            return Ok(Storage::memory());
        }
        if let Some(path) = connection.strip_prefix("sqlite:") {
            return sqlite(path, creates).await;
        }
        if connection.starts_with("postgres://") || connection.starts_with("postgresql://") {
            return postgres(connection, creates).await;
        }
        if let Some((queues, blobs)) = service_bus_string(connection) {
            // `service_bus` refuses another Service Bus string as `Blobs`, so the recursion ends.
            return service_bus(queues, blobs, creates).await;
        }
        let is_azure = connection.starts_with("https://")
            || connection.starts_with("http://")
            || has_setting(connection, &AZURE_SETTINGS);
        if is_azure {
            return azure(connection).await;
        }
        Err(Error::new(
            ErrorKind::Configuration,
            "unrecognised storage string: expected `sqlite:PATH`, `memory:`, `postgres://…`, `UseDevelopmentStorage=true`, a connection string of Azure Storage or Service Bus, or `https://ACCOUNT.queue.core.windows.net`",
        ))
    })
}

#[cfg(feature = "sqlite")]
async fn sqlite(path: &str, creates: bool) -> Result<Storage, Error> {
    let problem = if path.is_empty() {
        Some("`sqlite:` lacks the path of a file; write `sqlite:jobs.db`")
    } else if path.starts_with("//") {
        Some("write `sqlite:PATH` without `//`: `sqlite:jobs.db`, or `sqlite:/var/lib/app/jobs.db`")
    } else if path.contains('?') {
        Some(
            "parameters after `?` are not supported; a missing file is created anyway, and `sqlite::Options` has further settings",
        )
    } else {
        None
    };
    if let Some(problem) = problem {
        return Err(Error::new(ErrorKind::Configuration, problem));
    }
    Storage::open(crate::sqlite::Options::new(path).migrate(creates)).await
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_: &str, _: bool) -> Result<Storage, Error> {
    Err(missing_feature("sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(connection: &str, creates: bool) -> Result<Storage, Error> {
    let options = crate::postgres::Options::from_connection_string(connection)?;
    // An operator's tool receives no messages, and a command would wait for the proof that notifications
    // arrive.
    let options = if creates { options } else { options.listen(false) };
    Storage::open(options.migrate(creates)).await
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str, _: bool) -> Result<Storage, Error> {
    Err(missing_feature("postgres"))
}

#[cfg(feature = "azure")]
async fn azure(connection: &str) -> Result<Storage, Error> {
    use crate::azure::Options;

    let is_endpoint = connection.starts_with("https://") || connection.starts_with("http://");
    let options = if is_endpoint {
        Options::from_endpoint(connection)
    } else {
        Options::from_connection_string(connection)
    };
    Storage::open(options?).await
}

#[cfg(not(feature = "azure"))]
async fn azure(_: &str) -> Result<Storage, Error> {
    Err(missing_feature("azure"))
}

/// Splits a connection string of Service Bus into the string of the namespace and, if present, the string of
/// the blobs. Returns `None` for any other string.
fn service_bus_string(connection: &str) -> Option<(&str, Option<&str>)> {
    let lower = connection.to_ascii_lowercase();
    let is_namespace = lower.split(';').any(|setting| {
        setting
            .split_once('=')
            .is_some_and(|(name, value)| name.trim() == "endpoint" && value.trim_start().starts_with("sb:"))
    });
    // Lower-casing ASCII keeps all byte offsets.
    let blobs = lower.match_indices(';').find_map(|(end, _)| {
        let (name, _) = lower[end + 1..].split_once('=')?;
        (name.trim() == "blobs").then_some((end, end + name.len() + ";=".len()))
    });
    match blobs {
        _ if !is_namespace => None,
        Some((end, start)) => Some((&connection[..end], Some(&connection[start..]))),
        None => Some((connection, None)),
    }
}

/// Returns whether a connection string has a setting with one of these names.
fn has_setting(connection: &str, names: &[&str]) -> bool {
    let mut settings = connection.split(';').filter_map(|setting| setting.split_once('='));
    settings.any(|(name, _)| names.iter().any(|known| known.eq_ignore_ascii_case(name.trim())))
}

#[cfg(feature = "servicebus")]
async fn service_bus(queues: &str, blobs: Option<&str>, creates: bool) -> Result<Storage, Error> {
    let refused = |text: &'static str| Error::new(ErrorKind::Configuration, text);
    let blobs = blobs.map(str::trim).filter(|blobs| !blobs.is_empty()).ok_or_else(|| {
        refused(
            "Service Bus has no blobs: end the storage string with `;Blobs=` and the string of a storage that has, \
             such as `;Blobs=sqlite:blobs.db` or `;Blobs=https://ACCOUNT.queue.core.windows.net`",
        )
    })?;
    // A key among them would become part of the name of a file, a database or a host.
    if has_setting(blobs, &SERVICE_BUS_SETTINGS) {
        return Err(refused(
            "`Blobs=` must be the last setting of the storage string, with the string of a storage that is not \
             Service Bus: write the settings of Service Bus before it",
        ));
    }
    let options = crate::servicebus::Options::from_connection_string(queues)?;
    let blobs = connect(blobs, creates).await?;
    Ok(Storage::from(options.with_blobs_of(&blobs)?))
}

#[cfg(not(feature = "servicebus"))]
async fn service_bus(_: &str, _: Option<&str>, _: bool) -> Result<Storage, Error> {
    Err(missing_feature("servicebus"))
}

#[cfg(any(
    not(feature = "sqlite"),
    not(feature = "postgres"),
    not(feature = "azure"),
    not(feature = "servicebus")
))]
fn missing_feature(name: &str) -> Error {
    let text = format!(
        "this program was built without the feature `{name}` of jobqueue; switch it on in Cargo.toml: \
         `jobqueue = {{ version = \"0.1\", features = [\"{name}\"] }}`, or build the command line or an example of jobqueue with `--features {name}`"
    );
    Error::new(ErrorKind::Configuration, text)
}
