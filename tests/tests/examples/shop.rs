//! `shop` as people play with it: order something, see it done or refused on the dashboard, stop.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue_test_support::servicebus::ServiceBus;
use jobqueue_tests::example;

/// The time limit of a step, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// The shop while it is open. It is killed when dropped.
struct Shop {
    child: Child,
    address: String,
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shop {
    /// Opens the shop in a folder, without customers of its own, and reads its address.
    fn open(folder: &Path, options: &[&str]) -> Self {
        Self::open_on(folder, &format!("sqlite:{}", folder.join("shop.db").display()), options)
    }

    /// Opens the shop on a storage.
    fn open_on(folder: &Path, storage: &str, options: &[&str]) -> Self {
        let mut program = Command::new(example::built("shop"));
        program
            .current_dir(folder)
            .env("JOBQUEUE_STORAGE", storage)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        program
            .args(["--listen", "127.0.0.1:0", "--customers", "0", "--pace", "20", "--outages", "0"])
            .args(options);
        let mut child = program.spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let [shop, dashboard] = [(); 2].map(|()| printed.next().unwrap());
        let address = shop.strip_prefix("shop:      http://").unwrap().trim_end_matches('/').to_owned();
        assert_eq!(dashboard, format!("dashboard: http://{address}/jobs/"));
        Self { child, address }
    }

    fn ask(&self, request: &str) -> String {
        self.send(request, "", "")
    }

    /// Sends a request with a form, and returns the answer with its headers.
    fn send(&self, request: &str, headers: &str, form: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (host, length) = (&self.address, form.len());
        let always = "Connection: close\r\nContent-Type: application/x-www-form-urlencoded";
        write!(stream, "{request} HTTP/1.1\r\nHost: {host}\r\n{always}\r\nContent-Length: {length}\r\n{headers}\r\n{form}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Presses the button of the shop, and returns the number of the order.
    fn order(&self) -> String {
        let answer = self.ask("POST /order");
        assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
        let place = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
        let page = self.ask(&format!("GET {place}"));
        let order = place.strip_prefix("/?order=").unwrap().to_owned();
        assert!(page.contains(&format!("jobs/job?queue=payments&amp;id={order}")), "{page}");
        order
    }

    /// Loads a page of the dashboard until it has this text.
    fn shows(&self, path: &str, text: &str) -> String {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let page = self.ask(&format!("GET /jobs/{path}"));
            assert!(page.starts_with("HTTP/1.1 200"), "{page}");
            if page.contains(text) {
                return page;
            }
            assert!(Instant::now() < give_up, "`{text}` is not on {path}: {page}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the shop as Ctrl-C does, and waits for it.
    fn close(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        let give_up = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < give_up, "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn order_is_paid_packed_and_thanked_for_on_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop::open(folder.path(), &["--refused", "0"]);
    assert!(shop.ask("GET /?order=%3Cscript%3E").ends_with("the dashboard</a>.</p>"));
    let order = shop.order();
    shop.shows(&format!("job?queue=payments&id={order}"), "Ended: completed");
    shop.shows("search?kind=thanks", "<bdi>thanks</bdi>");
    shop.shows("overview", "payments");
    shop.shows("workers", "parcels");
    assert!(shop.shows("schedules", "report").contains("Europe/Berlin"));
    shop.shows(
        "metrics",
        "jobqueue_deliveries_total{queue=\"mails\",kind=\"thanks\",outcome=\"completed\"} 1",
    );
    assert!(shop.ask("GET /ready").contains("\"ok\":true"));
    shop.close();
}

#[test]
fn refused_card_is_a_dead_letter_that_a_later_run_pays() {
    let folder = tempfile::tempdir().unwrap();
    let storage = format!("sqlite:{}", folder.path().join("shop.db").display());
    refused_card_is_paid_by_a_later_run(folder.path(), &storage);
}

/// The same with the dead-letter queue of the service.
#[test]
fn refused_card_on_service_bus_is_paid_by_a_later_run() {
    let (folder, emulator) = (tempfile::tempdir().unwrap(), ServiceBus::start());
    let blobs = folder.path().join("blobs.db");
    let storage = format!("{};Blobs=sqlite:{}", emulator.connection_string(), blobs.display());
    refused_card_is_paid_by_a_later_run(folder.path(), &storage);
    let letters = emulator.queue("payments%2F$DeadLetterQueue");
    assert_eq!(letters["messages"].as_array().unwrap().len(), 0, "{letters}");
}

fn refused_card_is_paid_by_a_later_run(folder: &Path, storage: &str) {
    let shop = Shop::open_on(folder, storage, &["--refused", "100"]);
    let order = shop.order();
    let refusal = format!("the card for {order} was refused");
    shop.shows("queues/payments/dead", &refusal);
    shop.close();
    let shop = Shop::open_on(folder, storage, &["--refused", "0"]);
    shop.shows("queues/payments/dead", &refusal);
    let redrive =
        |headers| shop.send("POST /jobs/do/redrive", headers, &format!("queue=payments&id={order}"));
    let stranger = redrive("Sec-Fetch-Site: cross-site\r\n");
    assert!(stranger.starts_with("HTTP/1.1 403"), "{stranger}");
    let operator = redrive("Sec-Fetch-Site: same-origin\r\n");
    assert!(operator.starts_with("HTTP/1.1 303"), "{operator}");
    shop.shows(&format!("job?queue=payments&id={order}"), "Ended: completed");
    shop.shows("search?kind=thanks", "<bdi>thanks</bdi>");
    shop.close();
}
