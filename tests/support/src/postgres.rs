//! PostgreSQL, installed and started by the tests.
//!
//! The programs come from npm by the committed lockfile, once for all test programs. A server has a folder of
//! its own below `target`, and listens on a free port of this machine. It ends together with the test
//! program, however that ends: its parent is a script that watches its standard input, whose other end the
//! test program holds. Only if the script itself is killed, the server stays. PostgreSQL refuses to run as
//! root; the tests of root start it as another user, who must be able to run the `node` of the path: one
//! below `/root` cannot be.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::azurite::Certificate;
use crate::node;

/// The time limit of a start on a busy machine, recovery included.
const START: Duration = Duration::from_secs(60);
/// The ports on which a start is tried.
const PORTS: usize = 3;
/// The user id of a server that root starts.
#[cfg(unix)]
const NOBODY: u32 = 65_534;

/// A running server with an empty database. Dropping it stops it.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: TempDir,
    port: u16,
    settings: Vec<String>,
    child: Child,
}

impl Postgres {
    /// Returns the server that all tests of this program share, started on first use. It does not sync: a
    /// test that kills a server [starts its own](Self::durable).
    ///
    /// # Panics
    /// When it cannot be installed or started; the text says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&["fsync=off", "synchronous_commit=off", "full_page_writes=off"]))
    }

    /// Starts a server that syncs, as one in production does.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn durable() -> Self {
        Self::start(&[])
    }

    /// Starts a server with further settings, each a `name=value`.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, None)
    }

    /// Starts a server that offers TLS with a certificate.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn with_tls(certificate: &Certificate) -> Self {
        let settings = ["ssl=on", "ssl_cert_file=cert.pem", "ssl_key_file=key.pem"];
        Self::start_with(&settings, Some(certificate))
    }

    fn start_with(settings: &[&str], certificate: Option<&Certificate>) -> Self {
        let (programs, parent) = reachable(&programs());
        fs::create_dir_all(&parent).expect("a folder for the servers");
        give_to_server(&parent);
        let folder =
            tempfile::Builder::new().prefix("server-").tempdir_in(&parent).expect("a folder for the data");
        give_to_server(folder.path());
        let mut initdb = as_server(&programs.join("bin/initdb"));
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        let done = initdb.arg("--pgdata").arg(folder.path().join("data")).output().expect("initdb starts");
        assert!(done.status.success(), "initdb failed:\n{}", String::from_utf8_lossy(&done.stderr));
        if let Some(certificate) = certificate {
            let (certificate, key) = certificate.write_to(&folder.path().join("data"));
            give_to_server(&certificate);
            give_to_server(&key);
            // The server refuses a key that others may read.
            #[cfg(unix)]
            fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .expect("rights of the key");
        }
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let port = free_port();
        let child = launch(&programs, folder.path(), port, &settings);
        let mut server = Self { programs, folder, port, settings, child };
        let mut is_ready = server.is_ready(Instant::now() + START);
        for _ in 1..PORTS {
            // It ends if another program has taken the port meanwhile.
            if is_ready || server.child.try_wait().expect("a child process").is_none() {
                break;
            }
            server.port = free_port();
            server.child = launch(&server.programs, server.folder.path(), server.port, &server.settings);
            is_ready = server.is_ready(Instant::now() + START);
        }
        assert!(is_ready, "PostgreSQL does not start; its log:\n{}", server.log_tail());
        server
    }

    /// Returns the connection string of the database.
    pub fn connection_string(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Returns the address.
    pub fn address(&self) -> std::net::SocketAddr {
        std::net::SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Kills the server without warning, as a power cut of its machine would end it, and starts it again on
    /// the same data and port.
    ///
    /// # Panics
    /// When it does not start again.
    #[cfg(unix)]
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// Kills the server and all its processes.
    ///
    /// # Panics
    /// When there is no such process.
    #[cfg(unix)]
    pub fn kill(&mut self) {
        let server = self.server_process();
        let killed = Command::new("kill").args(["-KILL", &server.to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "the server could not be killed");
        // The script ends when the server has. `wait` would close its standard input, at which it removes the
        // data.
        while self.child.try_wait().expect("the script that runs the server").is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts the server again after [`kill`](Self::kill).
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        // Its processes end by themselves, each when it finds that its parent is gone. Until then the new one
        // refuses to start.
        let deadline = Instant::now() + START;
        loop {
            self.child = launch(&self.programs, self.folder.path(), self.port, &self.settings);
            if self.is_ready(deadline) {
                return;
            }
            assert!(Instant::now() < deadline, "the server does not start again:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the end of the log.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Waits until the server accepts connections; returns false if it ends instead, or is not there in time.
    fn is_ready(&mut self, deadline: Instant) -> bool {
        while Instant::now() < deadline {
            if self.child.try_wait().expect("a child process").is_some() {
                return false;
            }
            // The lock file's lines are the process and, at last, the state of this very server.
            let lock = fs::read_to_string(self.folder.path().join("data/postmaster.pid")).unwrap_or_default();
            let is_ready = lock.lines().nth(7).is_some_and(|state| state.trim() == "ready");
            if is_ready && lock.lines().next() == Some(&self.server_process().to_string()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Returns the server's process, which the script has printed last; 0 before it has.
    fn server_process(&self) -> u32 {
        let text = fs::read_to_string(self.folder.path().join("script")).unwrap_or_default();
        let last = text.lines().rev().find_map(|line| line.strip_prefix("server process "));
        last.and_then(|id| id.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of PostgreSQL's log:\n{}", self.log_tail());
        }
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the folder with `bin`, `lib` and `share`.
fn programs() -> PathBuf {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let package = node::packages("postgres").join(format!("@embedded-postgres/{system}-{machine}"));
    assert!(package.exists(), "the tests have no PostgreSQL for {system} on {machine}");
    hydrate(&package);
    package.join("native")
}

/// Returns the folders of the programs and of the servers: those in `target`, or copies for the user of the
/// server, if it may not reach `target`.
fn reachable(programs: &Path) -> (PathBuf, PathBuf) {
    let runs = |programs: &Path| {
        let version = as_server(&programs.join("bin/postgres")).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    if runs(programs) {
        return (programs.to_owned(), crate::target_folder().join("postgres/servers"));
    }
    // One copy for all test programs of this folder.
    let mut hasher = DefaultHasher::new();
    programs.hash(&mut hasher);
    let copy = std::env::temp_dir().join(format!("jobqueue-postgres-{:016x}", hasher.finish()));
    fs::create_dir_all(&copy).expect("a temporary folder");
    let lock = File::create(copy.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let copied = copy.join("native");
    if !copied.exists() {
        // A copy that is interrupted has another name.
        let part = tempfile::tempdir_in(&copy).expect("a temporary folder");
        let done = Command::new("cp").arg("-R").arg(programs).arg(part.path().join("native")).status();
        assert!(done.is_ok_and(|status| status.success()), "the programs of PostgreSQL cannot be copied");
        fs::rename(part.path().join("native"), &copied).expect("a folder for the programs");
    }
    assert!(runs(&copied), "{} does not run", copied.display());
    (copied, copy.join("servers"))
}

/// Restores the links of the package by its own script: npm runs no scripts here.
fn hydrate(package: &Path) {
    let lock = File::create(package.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let stamp = package.join(".hydrated");
    if stamp.exists() {
        return;
    }
    let done = Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(package).output();
    let done = done.expect("Node starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    File::create(stamp).expect("a stamp in target");
}

fn launch(programs: &Path, folder: &Path, port: u16, settings: &[String]) -> Child {
    let mut arguments =
        vec!["-D".into(), folder.join("data").into_os_string(), "-p".into(), port.to_string().into()];
    let fixed = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=400"];
    for setting in fixed.iter().copied().chain(settings.iter().map(String::as_str)) {
        arguments.extend(["-c".into(), setting.into()]);
    }
    watched(&programs.join("bin/postgres"), folder, &arguments).spawn().expect("Node starts")
}

/// Returns a command that runs a program as the user of the server, by the script that ends it and removes
/// `folder` when its standard input is closed. It writes to the file `log` in `folder`.
pub(crate) fn watched(program: &Path, folder: &Path, arguments: &[OsString]) -> Command {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("a log file");
    // Empty, so that it does not name the server before, whose lock file may still be there.
    let output = File::create(folder.join("script")).expect("a log file");
    // The user of the server may not reach the script.
    let script = fs::read_to_string(node::source("postgres").join("server.cjs")).expect("the script");
    let mut command = as_server(Path::new("node"));
    command.arg("-e").arg(script).arg(program).arg(folder).args(arguments);
    command.stdin(Stdio::piped()).stdout(output).stderr(log);
    command.current_dir(folder);
    command
}

/// Returns a command that runs as the user of the server.
fn as_server(program: &Path) -> Command {
    #[allow(unused_mut)]
    let mut command = Command::new(program);
    #[cfg(unix)]
    if is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    command
}

pub(crate) fn give_to_server(folder: &Path) {
    #[cfg(unix)]
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).expect("root may give a folder away");
    }
    #[cfg(not(unix))]
    let _ = folder;
}

#[cfg(unix)]
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

pub(crate) fn free_port() -> u16 {
    let bound: io::Result<_> = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.expect("a free port").port()
}
