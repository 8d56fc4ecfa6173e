//! Azurite, Microsoft's emulator of Azure Storage, installed and started by the tests.
//!
//! It is installed once by the committed lockfile, and listens on free ports, so that any number of test
//! programs can run at once. It ends together with the test program, in every case, and leaves nothing
//! behind: it watches its standard input, whose other end the test program holds.

mod tls;

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use self::tls::{Certificate, FakeToken};
use crate::node;

/// Azurite's account.
pub const ACCOUNT: &str = "devstoreaccount1";

/// Its key, which Microsoft publishes.
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The time limit of Azurite's start on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A running Azurite. Dropping it stops it.
#[derive(Debug)]
pub struct Azurite {
    child: Child,
    folder: TempDir,
    queues: String,
    blobs: String,
    /// The certificate for https, if it is used.
    pub certificate: Option<Certificate>,
}

impl Azurite {
    /// Returns the emulator that all tests of this program share, started on first use.
    ///
    /// # Panics
    /// When it cannot be installed or started; the text says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Azurite> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the shared emulator over https, which accepts tokens of Entra ID.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn shared_https() -> &'static Self {
        static SHARED: OnceLock<Azurite> = OnceLock::new();
        SHARED.get_or_init(|| Self::launch(Some(Certificate::for_this_machine())))
    }

    /// Starts a new emulator over http.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn start() -> Self {
        Self::launch(None)
    }

    /// Starts a new emulator over https with `certificate`.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn start_https(certificate: Certificate) -> Self {
        Self::launch(Some(certificate))
    }

    fn launch(certificate: Option<Certificate>) -> Self {
        let program = node::packages("azurite").join("azurite/dist/src/azurite.js");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("azurite.log");
        let output = File::create(&log).expect("a log file");
        let mut command = Command::new("node");
        command
            .arg("--require")
            .arg(node::source("azurite").join("with_parent.cjs"))
            .arg(program)
            .arg("--location")
            .arg(folder.path().join("data"))
            .args(["--blobPort", "0", "--queuePort", "0", "--tablePort", "0"])
            .arg("--disableTelemetry")
            // Other SDKs in the tests may speak newer versions of the protocol than this Azurite knows.
            .arg("--skipApiVersionCheck")
            .current_dir(folder.path())
            .env("JOBQUEUE_AZURITE_FOLDER", folder.path())
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output);
        if let Some(certificate) = &certificate {
            let (cert, key) = certificate.write_to(folder.path());
            command.arg("--cert").arg(cert).arg("--key").arg(key).args(["--oauth", "basic"]);
        }
        let child = command.spawn().expect("Node starts");
        let mut azurite = Self { child, folder, queues: String::new(), blobs: String::new(), certificate };
        azurite.wait(&log);
        azurite
    }

    /// Waits until both services print their addresses.
    fn wait(&mut self, log: &Path) {
        let deadline = Instant::now() + START;
        loop {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let address = |service: &str| {
                let said = format!("Azurite {service} service is successfully listening at ");
                let line = text.lines().find_map(|line| line.strip_prefix(&said))?;
                Some(format!("{}/{ACCOUNT}", line.trim()))
            };
            if let (Some(queues), Some(blobs)) = (address("Queue"), address("Blob")) {
                (self.queues, self.blobs) = (queues, blobs);
                return;
            }
            let ended = self.child.try_wait().expect("a child process");
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "Azurite does not start ({ended:?}); its log:\n{}",
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the address of the queues.
    pub fn queue_endpoint(&self) -> &str {
        &self.queues
    }

    /// Returns the address of the blobs.
    pub fn blob_endpoint(&self) -> &str {
        &self.blobs
    }

    /// Returns a connection string with the account key.
    pub fn connection_string(&self) -> String {
        connection_string(&self.queues, &self.blobs)
    }

    /// Returns the end of the log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("azurite.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Prints the end of the log if the test that holds the guard panics.
    #[must_use]
    pub fn log_on_failure(&self) -> LogOnFailure<'_> {
        LogOnFailure(self)
    }
}

/// Returns a connection string for Azurite's account at other addresses, such as those of a proxy.
pub fn connection_string(queues: &str, blobs: &str) -> String {
    format!("AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint={queues};BlobEndpoint={blobs}")
}

impl Drop for Azurite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of Azurite's log:\n{}", self.log_tail());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// See [`Azurite::log_on_failure`].
#[derive(Debug)]
pub struct LogOnFailure<'a>(&'a Azurite);

impl Drop for LogOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of Azurite's log:\n{}", self.0.log_tail());
        }
    }
}
