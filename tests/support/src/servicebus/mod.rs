//! The emulator of Service Bus in `servicebus/`, installed and started by the tests; or the gateway before a
//! namespace.
//!
//! It listens on free ports, so that any number of test programs can run at once. It ends with the test
//! program, however that ends, because it watches its standard input, whose other end the test program holds.
//!
//! `JOBQUEUE_TEST_SERVICEBUS` names a namespace by its connection string: then the same tests run there. The
//! gateway passes on what clients and the namespace say, plants the faults, and deletes its queues at its
//! end. With the value `emulator` it starts an emulator and takes that for the namespace.

mod control;
mod fault;
mod lockstep;
mod namespace;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::control::Control;
pub use self::fault::Fault;
pub use self::lockstep::{Lockstep, Said};
pub use self::namespace::{EXCLUDED, is_excluded, namespace};
use crate::azurite::Certificate;
use crate::node;

/// The program that stands before a namespace.
const GATEWAY: &str = "gateway.js";

/// The longest time for which the end of a gateway is waited for.
const LONGEST_END: Duration = Duration::from_secs(60);

/// A running emulator, or a gateway. Dropping it stops it.
#[derive(Debug)]
pub struct ServiceBus {
    child: Child,
    folder: TempDir,
    control: Control,
    ready: Value,
    is_gateway: bool,
    /// The certificate that the port with TLS shows, for `127.0.0.1` and `localhost`.
    pub certificate: Certificate,
}

impl ServiceBus {
    /// Returns the emulator that all tests of this program share, started on first use.
    ///
    /// # Panics
    /// When it cannot be installed or started; the text says what to do.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ServiceBus> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Starts an emulator without queues.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an emulator with further arguments, which `servicebus/README.md` lists.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn start_with(arguments: &[&str]) -> Self {
        match namespace::given() {
            Some(_) => Self::run(GATEWAY, arguments, &[]),
            None => Self::emulator(arguments),
        }
    }

    /// Starts the emulator, whatever the environment says, with further arguments.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn emulator(arguments: &[&str]) -> Self {
        Self::run("main.js", arguments, &[])
    }

    /// Starts the gateway before an emulator of its own, whatever the environment says, with further
    /// arguments.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub fn behind_gateway(arguments: &[&str]) -> Self {
        Self::run(GATEWAY, arguments, &[(namespace::VARIABLE, namespace::EMULATOR)])
    }

    fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let certificate = Certificate::for_this_machine();
        let (cert, key) = certificate.write_to(folder.path());
        let mut child = Command::new("node")
            .arg(source().join(program))
            .arg("--cert")
            .arg(cert)
            .arg("--key")
            .arg(key)
            .args(arguments)
            .env("NODE_PATH", packages())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log(folder.path())).expect("a log file"))
            .spawn()
            .expect("Node starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line of JSON");
        let ready = serde_json::from_str::<Value>(&line).unwrap_or_else(|_| {
            panic!("the emulator of Service Bus does not start:\n{}", tail(folder.path()));
        });
        let control = Control::new(port(&ready, "controlPort"));
        let is_gateway = program == GATEWAY;
        Self { child, folder, control, ready, is_gateway, certificate }
    }

    /// Tells whether this is a gateway: what is behind it is farther away.
    pub fn is_gateway(&self) -> bool {
        self.is_gateway
    }

    /// Returns the line that the emulator printed when it was ready: ports and connection string.
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// Returns the port for AMQP, AMQP over WebSocket and the management API, all without TLS.
    pub fn port(&self) -> u16 {
        port(&self.ready, "port")
    }

    /// Returns the port for the same with TLS.
    pub fn tls_port(&self) -> u16 {
        port(&self.ready, "tlsPort")
    }

    /// Returns a connection string with `UseDevelopmentEmulator=true`, for the port without TLS.
    pub fn connection_string(&self) -> &str {
        self.ready["connectionString"].as_str().expect("a connection string")
    }

    /// Returns a connection string without `UseDevelopmentEmulator`, for the port with TLS.
    pub fn tls_connection_string(&self) -> String {
        let (_, keys) = self.connection_string().split_once(';').expect("several parts");
        let keys = keys.replace(";UseDevelopmentEmulator=true", "");
        format!("Endpoint=sb://localhost:{};{keys}", self.tls_port())
    }

    /// Creates a queue, or changes its settings, which have the names of the management API (`LockDuration`,
    /// …). The limits of the service do not apply here: a lock may last 100 ms (`PT0.1S`).
    ///
    /// # Panics
    /// When the emulator refuses the settings.
    pub fn create_queue(&self, name: &str, settings: Value) {
        self.control.call("PUT", &format!("queues/{name}"), &settings);
    }

    /// Returns the settings, counts and messages of a queue, or of a dead-letter sub-queue
    /// (`NAME%2F$DeadLetterQueue`).
    ///
    /// # Panics
    /// When there is no such queue.
    pub fn queue(&self, name: &str) -> Value {
        self.control.get(&format!("queues/{name}"))
    }

    /// Plants a fault: see [`Fault`].
    ///
    /// # Panics
    /// When the emulator does not know the action.
    pub fn plant(&self, operation: &str, action: &str) -> Fault<'_> {
        self.plant_with(operation, action, json!({}))
    }

    /// Plants a fault with further fields, which `servicebus/README.md` lists.
    ///
    /// # Panics
    /// As [`plant`](Self::plant).
    pub fn plant_with(&self, operation: &str, action: &str, mut fields: Value) -> Fault<'_> {
        fields["operation"] = json!(operation);
        fields["action"] = json!(action);
        Fault::plant(&self.control, &fields)
    }

    /// Removes all faults, and releases the calls that they hold.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn clear_faults(&self) {
        self.control.call("DELETE", "faults", &Value::Null);
    }

    /// Ends at once the links of an entity, or what carries them (`detach`, `end-session`,
    /// `close-connection`, `abort`, `freeze`); returns how many were struck. `None` stands for all entities.
    ///
    /// # Panics
    /// When the emulator does not know the action.
    pub fn strike(&self, action: &str, entity: Option<&str>) -> u64 {
        let answer = self.control.call("POST", "strike", &json!({ "action": action, "entity": entity }));
        answer["struck"].as_u64().expect("a number")
    }

    /// Stops the emulator's clock at the machine's time: it passes only by [`advance`](Self::advance),
    /// however slow the machine is.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn stop_clock(&self) {
        self.control.call("POST", "clock", &json!({ "stop": true }));
    }

    /// Moves the emulator's clock forward: locks expire, scheduled messages appear.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn advance(&self, by: Duration) {
        self.control.call("POST", "clock", &json!({ "advance": by.as_millis() }));
    }

    /// Waits until the emulator has seen at least `count` calls of an operation on an entity; returns how
    /// many it has seen.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn calls(&self, operation: &str, entity: &str, count: usize) -> usize {
        let path = format!("calls?operation={operation}&entity={entity}&count={count}&wait=30000");
        self.control.get(&path).as_array().expect("a list").len()
    }

    /// Returns the number of the last call of any operation: it grows with each.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn last_call(&self) -> u64 {
        let calls = self.control.get("calls");
        let last = calls.as_array().expect("a list").last().cloned();
        last.map_or(0, |call| call["number"].as_u64().expect("a number"))
    }

    /// Returns the attached links: entity, role of the client, credit.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn links(&self) -> Value {
        self.control.get("links")
    }

    /// Returns the number of frames that clients have sent: `transfers`, `flows`, `drains` among them,
    /// `dispositions`, `detaches`, and those among them of `unattached` handles.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn frames(&self) -> Value {
        self.control.get("frames")
    }

    /// Returns the file with the certificate.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Stops the process as `SIGSTOP` does: sockets stay open and nothing answers.
    ///
    /// # Panics
    /// When `kill` cannot be started.
    pub fn stop_process(&self) {
        self.signal("-STOP");
    }

    /// Continues a stopped process.
    ///
    /// # Panics
    /// As [`stop_process`](Self::stop_process).
    pub fn continue_process(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(done.expect("`kill` starts").success(), "the emulator has ended");
    }

    /// Returns the processor time that the emulator has used, all its threads together.
    ///
    /// # Panics
    /// When `/proc` does not tell it.
    pub fn cpu_time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        let times = threads.flatten().map(|thread| {
            // A thread may end meanwhile.
            let times = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            times.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
        });
        Duration::from_nanos(times.sum())
    }

    /// Ends the process. A gateway has time to delete its queues.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + if self.is_gateway { LONGEST_END } else { Duration::ZERO };
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the end of the emulator's log.
    pub fn log_tail(&self) -> String {
        tail(self.folder.path())
    }
}

impl Drop for ServiceBus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of the emulator's log:\n{}", self.log_tail());
        }
        self.end();
    }
}

/// Returns the folder of the emulator's source.
pub fn source() -> PathBuf {
    node::source("servicebus")
}

/// Returns the folder `node_modules` of the emulator and of the stock client for JavaScript, which are
/// installed if they are missing.
///
/// # Panics
/// Without Node or npm, and when npm cannot install them.
pub fn packages() -> PathBuf {
    node::packages("servicebus")
}

fn port(ready: &Value, name: &str) -> u16 {
    ready[name].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port")
}

fn log(folder: &Path) -> PathBuf {
    folder.join("servicebus.log")
}

fn tail(folder: &Path) -> String {
    let text = std::fs::read_to_string(log(folder)).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
