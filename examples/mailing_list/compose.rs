//! The editor's part: writes subscribers and mailings to the database.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use email_address::EmailAddress;
use jobqueue_examples::Failure;

use crate::Options;
use crate::database::{Database, NewMailing, Subscriber};

/// Returns the subscribers that the options name.
pub(crate) fn subscribers(options: &Options) -> Result<Vec<Subscriber>, Failure> {
    match &options.addresses {
        Some(file) => read(file),
        None => Ok((1..=options.subscribers).map(made_up).collect()),
    }
}

fn made_up(number: u32) -> Subscriber {
    Subscriber { address: format!("reader-{number}@example.org"), confirmed: !number.is_multiple_of(10) }
}

/// Reads one address per line; empty lines are skipped.
fn read(file: &Path) -> Result<Vec<Subscriber>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let mut subscribers = Vec::new();
    for (number, line) in lines {
        let address = EmailAddress::from_str(line)
            .map_err(|e| format!("{}, line {number}: not an e-mail address: {e}", file.display()))?;
        subscribers.push(Subscriber { address: address.to_string(), confirmed: true });
    }
    if subscribers.is_empty() {
        return Err(format!("{} has no addresses", file.display()).into());
    }
    Ok(subscribers)
}

/// Stores these subscribers, and composes mailings to them.
pub(crate) async fn compose(
    database: &Database,
    options: &Options,
    subscribers: Vec<Subscriber>,
) -> Result<(), Failure> {
    let (all, confirmed) = (subscribers.len(), subscribers.iter().filter(|one| one.confirmed).count());
    database.set_subscribers(subscribers).await?;
    let now = SystemTime::now();
    for number in 0..options.mailings {
        let after = options.apart * u64::from(number);
        let (subject, body) = text(number + 1);
        let due = now + Duration::from_secs(after);
        database.add(NewMailing { subject: subject.clone(), body, due }).await?;
        let when = if after == 0 { "now".to_owned() } else { format!("in {after} s") };
        println!("composed “{subject}” for {confirmed} of {all} subscribers, due {when}");
    }
    Ok(())
}

fn text(number: u32) -> (String, String) {
    let body = format!(
        "Dear reader,\n\nthis is number {number} of our news. A queue brought it here: you and nobody twice.\n\n\
         Yours,\nthe editors\n"
    );
    (format!("News no. {number}"), body)
}
