//! The dashboard, served by the program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Sandbox, error_text};
use crate::workers::wait_for;

/// The program while it serves. It is killed when this is dropped.
pub(crate) struct Served {
    child: Child,
    address: String,
}

impl Served {
    pub(crate) fn start(sandbox: &Sandbox, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_with(sandbox, arguments, variables, Stdio::inherit())
    }

    fn start_with(sandbox: &Sandbox, arguments: &[&str], variables: &[(&str, &str)], errors: Stdio) -> Self {
        let mut command = sandbox.command(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        let mut child =
            command.envs(variables.iter().copied()).stderr(errors).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { child, address }
    }

    /// Starts the program, and also returns its standard error.
    pub(crate) fn with_errors(sandbox: &Sandbox) -> (Self, ChildStderr) {
        let mut served = Self::start_with(sandbox, &[], &[], Stdio::piped());
        let errors = served.child.stderr.take().unwrap();
        (served, errors)
    }

    /// Sends a request with these headers, and returns the response.
    fn ask(&self, request: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), &self.host())
    }

    /// Requests a pause of `mails`, as a page does.
    pub(crate) fn pause(&self) -> String {
        self.pause_at("/do/pause")
    }

    pub(crate) fn pause_at(&self, path: &str) -> String {
        self.post(path, "")
    }

    /// Sends the name of the queue as a page does, with these headers.
    fn post(&self, path: &str, headers: &str) -> String {
        self.send(path, headers, "queue=mails")
    }

    /// Sends a form as a page does, with these headers.
    fn send(&self, path: &str, headers: &str, form: &str) -> String {
        let (host, length) = (self.host(), form.len());
        let own = format!("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n");
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let begin = format!("POST {path} HTTP/1.1\r\nConnection: close\r\nSec-Fetch-Site: same-origin\r\n");
        write!(stream, "{begin}{host}{headers}{own}\r\n{form}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn host(&self) -> String {
        format!("Host: {}\r\n", self.address)
    }

    /// Returns the id of the process.
    #[cfg(target_os = "linux")]
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, and waits until the program has ended.
    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the program does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// newcomers 33, a 5
#[test]
fn port_in_use_is_named_with_the_option_that_sets_another() {
    let sandbox = Sandbox::with_mails(0, 0);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let output = sandbox.run(&["serve", "--listen", &address]);
    let error = error_text(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains(&format!("cannot listen on {address}: ")) && error.contains("--listen"),
        "{error}"
    );
}

#[test]
fn dashboard_is_served_on_this_machine_until_a_signal() {
    let sandbox = Sandbox::with_mails(1, 1);
    let served = Served::start(&sandbox, &[], &[]);
    let page = served.ask("GET /", &served.host());
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("queues/mails/dead"), "{page}");
    let other_name = served.ask("GET /", "Host: evil.example\r\n");
    assert!(other_name.starts_with("HTTP/1.1 421"), "{other_name}");
    // An open page must not keep the program from ending.
    let mut events = TcpStream::connect(&served.address).unwrap();
    write!(events, "GET /events HTTP/1.1\r\n{}\r\n", served.host()).unwrap();
    let mut lines = BufReader::new(events.try_clone().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("refresh")));
    served.stop();
}

// D35
#[test]
fn redrive_of_a_page_ends_before_the_program() {
    let sandbox = Sandbox::with_mails(0, 40);
    let served = Served::start(&sandbox, &[], &[]);
    let operation = |answer: String| {
        let (_, rest) = answer.split_once("operations/").unwrap_or_else(|| panic!("{answer}"));
        rest.split(['\r', '?']).next().unwrap().to_owned()
    };
    let plan = operation(served.post("/do/preview", ""));
    let page = format!("/operations/{plan}");
    wait_for("the preview", || served.get(&page).contains("40 match").then_some(()));
    // The rate leaves time for the signal.
    operation(served.send("/do/redrive", "", &format!("plan={plan}&rate=4")));
    wait_for("a job that is put back", || (sandbox.counts().0 > 0).then_some(()));
    served.stop();
    let (back, left) = sandbox.counts();
    assert!(back + left == 40 && left > 0, "{back} and {left}");
    assert_eq!(sandbox.json(&["dead", "list", "mails", "--deep"])["matching"], left, "none is hidden");
}

/// A process that is not ready gets no requests, so neither its pages nor `/metrics` could report the outage.
#[test]
fn outage_of_the_storage_leaves_the_server_ready() {
    let sandbox = Sandbox::with_mails(1, 1);
    let served = Served::start(&sandbox, &[], &[]);
    for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        let _ = std::fs::write(sandbox.path(name), "no database");
    }
    let metrics = served.get("/metrics");
    assert!(metrics.contains("jobqueue_scrape_success 0"), "{metrics}");
    for path in ["/live", "/ready"] {
        assert!(served.get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
}

#[test]
fn incomplete_request_does_not_keep_the_program_from_ending() {
    let sandbox = Sandbox::with_mails(0, 0);
    let served = Served::start(&sandbox, &[], &[]);
    let mut half = TcpStream::connect(&served.address).unwrap();
    let form = "Sec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 11\r\n";
    write!(half, "POST /do/pause HTTP/1.1\r\n{}{form}\r\nqueue=", served.host()).unwrap();
    // The program accepts the first connection before it answers this one.
    assert!(served.ask("GET /live", &served.host()).starts_with("HTTP/1.1 200"));
    served.stop();
    drop(half);
}

#[test]
fn read_only_dashboard_refuses_changes() {
    let sandbox = Sandbox::with_mails(1, 0);
    let served = Served::start(&sandbox, &["--read-only"], &[]);
    let answer = served.pause();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn other_addresses_need_credentials_or_a_proxy() {
    let sandbox = Sandbox::with_mails(0, 0);
    let refused = sandbox.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("JOBQUEUE_AUTH_USER"), "{}", error_text(&refused));
    assert_eq!(sandbox.run(&["serve", "--listen", "0.0.0.0:0", "--behind-proxy"]).status.code(), Some(2));
    let half = sandbox.command(&["serve"]).env("JOBQUEUE_AUTH_USER", "ada").output().unwrap();
    assert_eq!(half.status.code(), Some(2));
    let variables = [("JOBQUEUE_AUTH_USER", "ada"), ("JOBQUEUE_AUTH_PASSWORD", "secret")];
    let served = Served::start(&sandbox, &[], &variables);
    assert!(served.ask("GET /", &served.host()).starts_with("HTTP/1.1 401"));
    // `ada:secret` in base64.
    let authorised = format!("{}Authorization: Basic YWRhOnNlY3JldA==\r\n", served.host());
    assert!(served.ask("GET /", &authorised).starts_with("HTTP/1.1 200"));
    for path in ["/metrics", "/scale"] {
        assert!(served.ask(&format!("GET {path}"), &served.host()).starts_with("HTTP/1.1 401"), "{path}");
        assert!(served.ask(&format!("GET {path}"), &authorised).starts_with("HTTP/1.1 200"), "{path}");
    }
    // Orchestrators have no credentials.
    for path in ["/live", "/ready"] {
        assert!(served.ask(&format!("GET {path}"), &served.host()).starts_with("HTTP/1.1 200"), "{path}");
    }
}

/// Several operators share a server, so its log names the operator of each change.
#[test]
fn changes_are_in_the_log_with_their_operators() {
    let sandbox = Sandbox::with_mails(1, 0);
    let log = sandbox.path("log");
    let variables = [("JOBQUEUE_AUTH_USER", "ada"), ("JOBQUEUE_AUTH_PASSWORD", "secret")];
    let errors = std::fs::File::create(&log).unwrap();
    let served = Served::start_with(&sandbox, &[], &variables, errors.into());
    // `ada:secret` in base64.
    let answer = served.post("/do/pause", "Authorization: Basic YWRhOnNlY3JldA==\r\n");
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("changes are recorded in this log only"), "{log}");
    let change = log.lines().find(|line| line.contains("Done")).unwrap_or_else(|| panic!("{log}"));
    for part in ["operator=ada", "action=pause", "subject=queue mails"] {
        assert!(change.contains(part), "{change}");
    }
}

// D28, D29
#[test]
fn viewer_operator_and_scraper_have_separate_credentials() {
    let sandbox = Sandbox::with_mails(1, 0);
    let audit = sandbox.path("audit.ndjson");
    let variables = [
        ("JOBQUEUE_AUTH_USER", "ada"),
        ("JOBQUEUE_AUTH_PASSWORD", "secret"),
        ("JOBQUEUE_VIEWER_USER", "eve"),
        ("JOBQUEUE_VIEWER_PASSWORD", "looks"),
        ("JOBQUEUE_METRICS_TOKEN", "figures"),
    ];
    let served = Served::start(&sandbox, &["--audit-file", audit.to_str().unwrap()], &variables);
    let with = |authorization: &str| format!("{}Authorization: {authorization}\r\n", served.host());
    // `ada:secret` and `eve:looks` in base64.
    let (ada, eve) = (with("Basic YWRhOnNlY3JldA=="), with("Basic ZXZlOmxvb2tz"));
    let scraper = with("Bearer figures");
    for (login, path, status) in [
        (&ada, "/", 200),
        (&eve, "/", 200),
        (&scraper, "/", 401),
        (&scraper, "/metrics", 200),
        (&scraper, "/scale", 200),
        (&with("Bearer guessed"), "/metrics", 401),
    ] {
        let answer = served.ask(&format!("GET {path}"), login);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    let form = "Sec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 11\r\n";
    for (login, status) in [(&eve, 403), (&ada, 303)] {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        write!(stream, "POST /do/pause HTTP/1.1\r\nConnection: close\r\n{login}{form}\r\nqueue=mails")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let audit = std::fs::read_to_string(audit).unwrap();
    let operators: Vec<String> = audit
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| format!("{} {}", line["operator"].as_str().unwrap(), line["result"].as_str().unwrap()))
        .collect();
    assert_eq!(operators, ["eve refused", "ada started", "ada done"]);
}

// D32
#[test]
fn local_proxy_may_forward_the_host_of_the_browser() {
    let sandbox = Sandbox::with_mails(0, 0);
    let served = Served::start(&sandbox, &["--read-only", "--behind-proxy"], &[]);
    let page = served.ask("GET /", "Host: jobs.example\r\n");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
}

#[test]
fn token_without_a_login_is_refused() {
    let sandbox = Sandbox::with_mails(0, 0);
    let refused = sandbox.command(&["serve"]).env("JOBQUEUE_METRICS_TOKEN", "figures").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("JOBQUEUE_METRICS_TOKEN"), "{}", error_text(&refused));
}

#[test]
fn viewer_with_the_login_of_the_operator_is_refused() {
    let sandbox = Sandbox::with_mails(0, 0);
    let mut command = sandbox.command(&["serve", "--listen", "127.0.0.1:0"]);
    for role in ["AUTH", "VIEWER"] {
        command
            .env(format!("JOBQUEUE_{role}_USER"), "ada")
            .env(format!("JOBQUEUE_{role}_PASSWORD"), "secret");
    }
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("JOBQUEUE_VIEWER_USER"), "{}", error_text(&refused));
}

#[test]
fn metrics_scaling_and_checks_are_served_with_the_pages() {
    let sandbox = Sandbox::with_mails(2, 1);
    let served = Served::start(&sandbox, &["--read-only"], &[]);
    let metrics = served.ask("GET /metrics", &served.host());
    assert!(metrics.contains("jobqueue_queue_length{queue=\"mails\"} 2"), "{metrics}");
    let scale = served.ask("GET /scale?queue=mails", &served.host());
    assert!(scale.contains("\"length\":2") && scale.contains("\"dead\":1"), "{scale}");
    for path in ["/live", "/ready"] {
        let answer = served.ask(&format!("GET {path}"), &served.host());
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"ok\":true"), "{answer}");
    }
}

#[test]
fn pages_of_jobs_link_to_logs_and_traces() {
    let sandbox = Sandbox::with_mails(0, 1);
    let logs = ["--log-url", "https://logs.example/?q={queue}+{id}"];
    let served = Served::start(&sandbox, &logs, &[]);
    let page = served.get("/job?queue=mails&id=dead-0");
    assert!(page.contains(r#"href="https://logs.example/?q=mails+dead-0""#), "{page}");
    for template in ["javascript:alert({id})", "https://logs.example/{key}"] {
        let refused = sandbox.run(&["serve", "--log-url", template]);
        assert_eq!(refused.status.code(), Some(2), "{template}");
        assert!(error_text(&refused).contains("the template of a link"), "{}", error_text(&refused));
    }
}
