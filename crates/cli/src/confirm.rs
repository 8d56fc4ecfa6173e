//! Questions to the operator before a change.

use std::io::{self, BufRead, IsTerminal, Write};

use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::clean;

/// Asks the operator to type `word`, and fails on any other input. Without a terminal, `--yes` is required.
pub(crate) async fn typed(
    yes: bool,
    question: &str,
    word: &str,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::Refused(format!(
            "{question} Nothing was changed: add --yes to confirm without a terminal"
        )));
    }
    let asked = write!(io::stderr(), "{} Type `{}` to continue: ", clean(question), clean(word));
    // A closed standard error hides the question. Unlike a closed standard output, that must not end as a
    // success.
    asked.map_err(|error| {
        Failure::Refused(format!("nothing was changed: the question cannot be asked: {error}"))
    })?;
    let reading = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let answer = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(Failure::Interrupted("nothing was changed".to_owned())),
        answer = reading => answer.map_err(|_| Failure::Failed("the answer cannot be read".to_owned()))??,
    };
    if answer.trim() == word {
        Ok(())
    } else {
        Err(Failure::Refused("the answer does not match: nothing was changed".to_owned()))
    }
}

/// Asks for the name of the context before a change, if it is a production context.
pub(crate) async fn production(
    session: &Session,
    yes: bool,
    change: &str,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    match session.production() {
        None => Ok(()),
        Some(name) => typed(yes, &format!("`{name}` is a production context: {change}."), name, stop).await,
    }
}

/// Opens the storage for a change. In a production context, asks the operator to confirm the change.
pub(crate) async fn change(
    global: &Global,
    need: Need,
    change: &str,
    stop: &CancellationToken,
) -> Result<Session, Failure> {
    let session = Session::open(global, need).await?;
    production(&session, global.yes, change, stop).await?;
    Ok(session)
}
