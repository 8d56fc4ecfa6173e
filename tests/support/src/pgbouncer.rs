//! PgBouncer in transaction mode, where it is installed and `JOBQUEUE_TEST_PGBOUNCER` is set. It is not asked
//! for by default: version 1.18 aborts in one run of several.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::postgres::{Postgres, free_port, give_to_server, watched};

/// The time limit of a start on a busy machine.
const START: Duration = Duration::from_secs(30);

/// A running pooler before a server. It ends with the test program, as the server does, or when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    server: SocketAddr,
    connections: u32,
    port: u16,
    folder: TempDir,
    child: Child,
}

impl PgBouncer {
    /// Starts a pooler that gives each transaction one of `connections` connections to the server. Returns
    /// `None`, and prints so, unless `JOBQUEUE_TEST_PGBOUNCER` is set.
    ///
    /// # Panics
    /// When it does not start, as where it is not installed.
    pub fn start(server: &Postgres, connections: u32) -> Option<Self> {
        if std::env::var_os("JOBQUEUE_TEST_PGBOUNCER").is_none() {
            println!("skipped: JOBQUEUE_TEST_PGBOUNCER is not set");
            return None;
        }
        let port = free_port();
        let (folder, child) = launch(server.address(), port, connections);
        let mut pooler = Self { server: server.address(), connections, port, folder, child };
        pooler.wait_until_ready();
        Some(pooler)
    }

    /// Returns the connection string of the database behind the pooler.
    pub fn connection_string(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// Kills the pooler with all connections, and starts another on its port.
    ///
    /// # Panics
    /// When that does not start.
    pub fn kill_and_restart(&mut self) {
        self.stop();
        (self.folder, self.child) = launch(self.server, self.port, self.connections);
        self.wait_until_ready();
    }

    /// Returns how often the pooler was started: once, and each time after it has ended by itself.
    pub fn starts(&self) -> usize {
        let script = fs::read_to_string(self.folder.path().join("script")).unwrap_or_default();
        script.lines().filter(|line| line.starts_with("server process ")).count()
    }

    /// Returns whether the pooler has ended by itself since it was started for the `starts`-th time. Waits a
    /// moment for its next start.
    pub fn has_ended_since(&self, starts: usize) -> bool {
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.starts() == starts && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.starts() != starts
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START;
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port))).is_err() {
            let has_ended = self.child.try_wait().expect("a child process").is_some();
            assert!(!has_ended && Instant::now() < deadline, "pgbouncer does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of pgbouncer:\n{}", self.log());
        }
        self.stop();
    }
}

fn launch(server: SocketAddr, port: u16, connections: u32) -> (TempDir, Child) {
    let folder = tempfile::Builder::new().prefix("pgbouncer-").tempdir().expect("a folder");
    give_to_server(folder.path());
    let file = folder.path().join("pgbouncer.ini");
    fs::write(&file, settings(server, port, connections)).expect("a file of settings");
    // Version 1.18 aborts now and then when a client closes a request to cancel a statement (issue 801 of
    // pgbouncer). As in production, it is started again.
    let mut command = watched(Path::new("pgbouncer"), folder.path(), &[file.into_os_string()]);
    let child = command.env("RESTART", "1").spawn().expect("Node starts");
    (folder, child)
}

fn settings(server: SocketAddr, port: u16, connections: u32) -> String {
    let (host, server_port) = (server.ip(), server.port());
    format!(
        "[databases]\n\
         * = host={host} port={server_port} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = {connections}\n\
         max_client_conn = 400\n"
    )
}
