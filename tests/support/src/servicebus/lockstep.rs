//! The emulator in lock step with a simulation: it has no sockets and no time of its own.

use std::io::{BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::{packages, source};

/// The key of the namespace.
const KEY: &str = "ZW11bGF0b3Ita2V5LW5vdC1hLXNlY3JldA==";

/// A running emulator. It executes each command at once and then stands still. Dropping it stops it.
#[derive(Debug)]
pub struct Lockstep {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The frames that have not been sent.
    told: Vec<u8>,
    /// The frames that came before an answer.
    early: Vec<Said>,
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Bytes on the connection of a number.
    Bytes(u32, Vec<u8>),
    /// Its end.
    End(u32),
}

impl Lockstep {
    /// Starts an emulator. Call [`begin`](Self::begin) before anything else.
    ///
    /// # Panics
    /// When it cannot be installed or started; the text says what to do.
    pub fn start() -> Self {
        let mut child = Command::new("node")
            .arg(source().join("lockstep.js"))
            .env("NODE_PATH", packages())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Node starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output, told: Vec::new(), early: Vec::new() }
    }

    /// Returns a connection string for any of these emulators.
    pub fn connection_string() -> String {
        format!(
            "Endpoint=sb://localhost:1;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )
    }

    /// Begins with an empty namespace at a time, in milliseconds since 1970. `seed` determines all that is
    /// random. `options` are those of `servicebus/README.md`, in camel case.
    ///
    /// # Panics
    /// When the emulator has ended, here and in all methods below.
    pub fn begin(&mut self, millis: f64, seed: u64, mut options: Value) {
        self.early.clear();
        options["now"] = json!(millis);
        options["seed"] = json!(seed.to_string());
        self.tell(b'B', options.to_string().as_bytes());
    }

    /// Moves the time forward.
    pub fn pass(&mut self, millis: f64) {
        self.tell(b'T', &millis.to_be_bytes());
    }

    /// Opens a connection.
    pub fn open(&mut self, number: u32) {
        self.tell(b'O', &number.to_be_bytes());
    }

    /// Carries bytes to the emulator.
    pub fn carry(&mut self, number: u32, bytes: &[u8]) {
        let tagged: Vec<u8> = number.to_be_bytes().iter().chain(bytes).copied().collect();
        self.tell(b'D', &tagged);
    }

    /// Ends a connection without a word.
    pub fn cut(&mut self, number: u32) {
        self.tell(b'C', &number.to_be_bytes());
    }

    /// Ends a link of a connection (`detach`), its session (`end-session`) or the connection
    /// (`close-connection`) with an error.
    pub fn strike(&mut self, number: u32, action: &str, choice: u32) {
        self.tell(
            b'K',
            json!({ "number": number, "action": action, "choice": choice }).to_string().as_bytes(),
        );
    }

    /// Makes a request of the management API; returns its status and document.
    pub fn request(&mut self, method: &str, target: &str, token: &str, body: Option<&str>) -> (u16, Vec<u8>) {
        let request = json!({ "method": method, "target": target, "token": token, "body": body });
        self.tell(b'H', request.to_string().as_bytes());
        let answer = self.hear(b'a');
        let end = answer.iter().position(|byte| *byte == b'\n').expect("a status");
        let status = std::str::from_utf8(&answer[..end]).ok().and_then(|status| status.parse().ok());
        (status.expect("a status"), answer[end + 1..].to_vec())
    }

    /// Lets the emulator do everything that it was told; returns what it says, and the time at which it has
    /// something to do again, in milliseconds since 1970.
    pub fn settle(&mut self) -> (Vec<Said>, Option<f64>) {
        self.tell(b'S', &[]);
        let answer: Value = serde_json::from_slice(&self.hear(b's')).expect("JSON");
        (std::mem::take(&mut self.early), answer["next"].as_f64())
    }

    fn tell(&mut self, kind: u8, body: &[u8]) {
        let length = u32::try_from(body.len()).expect("a short frame");
        self.told.extend_from_slice(&length.to_be_bytes());
        self.told.push(kind);
        self.told.extend_from_slice(body);
    }

    /// Sends what was told, and reads to the answer of a kind.
    fn hear(&mut self, wanted: u8) -> Vec<u8> {
        self.input.write_all(&self.told).expect("the emulator reads");
        self.told.clear();
        loop {
            let mut head = [0; 5];
            self.output.read_exact(&mut head).expect("the emulator answers");
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let mut body = vec![0; length as usize];
            self.output.read_exact(&mut body).expect("the emulator answers");
            if head[4] == wanted {
                return body;
            }
            let number = u32::from_be_bytes([body[0], body[1], body[2], body[3]]);
            self.early.push(match head[4] {
                b'd' => Said::Bytes(number, body.split_off(4)),
                _ => Said::End(number),
            });
        }
    }
}

impl Drop for Lockstep {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
