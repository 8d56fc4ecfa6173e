//! Runs the PostgreSQL of the tests for `benches/run` and `benches/crash`, with the settings of a new
//! installation: it syncs each commit.
//!
//! It prints its version. Then each line of the standard input is a command and the name of a database, and
//! each line of the output the answer as JSON. The server ends with its standard input.

use std::error::Error;
use std::io::{self, BufRead};
use std::time::Duration;

use jobqueue_test_support::postgres::Postgres;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

/// The database that each server has, in which the commands run.
const MAINTENANCE: &str = "postgres";

/// What the server has done: all of it, but for the transactions, which are those of one database.
const SPENT: &str = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8,
    (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')::float8,
    (SELECT xact_commit FROM pg_stat_database WHERE datname = $1)::float8";

/// The dead rows in the tables of a database.
const DEAD: &str = "SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_user_tables";

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the script reads it")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Postgres::durable();
    let client = connect(&server, MAINTENANCE).await?;
    println!("{}", json!(setting(&client, "server_version").await?));
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (command, name) = line.split_once(' ').ok_or("a command and a database")?;
        let answer = match command {
            "create" => create(&server, &client, name).await?,
            "spent" => spent(&server, &client, name).await?,
            "drop" => {
                client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
                Value::Null
            }
            _ => return Err(format!("no such command: {command}").into()),
        };
        println!("{answer}");
    }
    Ok(())
}

async fn connect(server: &Postgres, database: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(&url(server, database), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn url(server: &Postgres, database: &str) -> String {
    format!("postgres://postgres@{}/{database}?sslmode=disable", server.address())
}

async fn setting(client: &Client, name: &str) -> Result<String, tokio_postgres::Error> {
    client.query_one("SELECT current_setting($1)", &[&name]).await?.try_get(0)
}

/// Creates a database and returns its connection string. The checkpoint comes now, and not in the middle of a
/// measurement.
async fn create(server: &Postgres, client: &Client, name: &str) -> Result<Value, Box<dyn Error>> {
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        let value = setting(client, name).await?;
        if value != "on" {
            return Err(format!("{name} is {value}").into());
        }
    }
    client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(url(server, name).into())
}

/// Returns the bytes of the log, its syncs, and the commits and dead rows of a database, once all its
/// sessions have ended and so reported.
async fn spent(server: &Postgres, client: &Client, name: &str) -> Result<Value, Box<dyn Error>> {
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'";
    while client.query_one(sessions, &[&name]).await?.try_get::<_, i64>(0)? > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let total = client.query_one(SPENT, &[&name]).await?;
    let dead: f64 = connect(server, name).await?.query_one(DEAD, &[]).await?.try_get(0)?;
    let total = |column| total.try_get::<_, f64>(column);
    Ok(json!({ "log": total(0)?, "syncs": total(1)?, "commits": total(2)?, "dead_rows": dead }))
}
