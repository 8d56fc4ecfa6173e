//! `queues --watch`: repeats the list, with the last figures of a storage that does not answer.

use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{QueueRow, print, read};
use crate::args::Global;
use crate::contexts::items;
use crate::exit::Failure;
use crate::opening::{self, LongLivedStorage};
use crate::output::{Output, say};
use crate::session::{Need, Session};
use crate::text::{clean, time};

/// The time for which the lists of other storages wait for a storage that does not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(9);

/// The sequence that puts the cursor at the top and clears a terminal.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";

struct Watched {
    context: Option<String>,
    session: Session,
    /// The last list that could be read, and when its reading began.
    last: Option<(SystemTime, Vec<QueueRow>)>,
}

/// Prints the list every `interval` until `stop` fires.
pub(super) async fn run(
    global: &Global,
    interval: Duration,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let mut watched = Vec::new();
    let mut later = FuturesUnordered::new();
    for (index, storage) in opening::open(global, Need::Read).await?.into_iter().enumerate() {
        let LongLivedStorage { context, session, later: opened } = storage;
        watched.push(Watched { context, session, last: None });
        later.extend(opened.map(|opened| async move { (index, opened.await) }));
    }
    let repeated = async {
        let mut has_listed = false;
        loop {
            match list(global.output, &mut watched).await {
                Ok(()) => has_listed = true,
                Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
                // The storage may answer the next time.
                Err(Failure::Failed(error)) => say(&error),
                Err(failure) if has_listed => say(&failure.into_text()),
                Err(failure) => return Err(failure),
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                Some((index, session)) = later.next() => watched[index].session = session,
            }
        }
    };
    tokio::select! {
        biased;
        // A signal is the normal end of this command, so it is no failure.
        () = stop.cancelled() => Ok(()),
        ended = repeated => ended,
    }
}

/// Reads the list and prints it. A table has the time of the read above it, and replaces the table before it.
async fn list(output: Output, watched: &mut [Watched]) -> Result<(), Failure> {
    let began = SystemTime::now();
    let late = |_| Err(Failure::Failed(format!("no answer within {READ_TIMEOUT:?}")));
    let lists = watched.iter().map(async |storage| {
        let list = timeout(READ_TIMEOUT, read(&storage.session)).await.unwrap_or_else(late);
        list.map_or_else(|failure| (Err(failure), None), |(rows, note)| (Ok(rows), note))
    });
    let lists = join_all(lists).await;
    if output != Output::Table {
        lists.iter().flat_map(|(_, note)| note).for_each(|note| say(note));
        let lists = watched.iter().zip(lists).map(|(storage, (list, _))| (storage.context.clone(), list));
        return print(output, &items(lists.collect())?);
    }
    let mut head = time(began);
    let mut shown = Vec::new();
    for (storage, (list, note)) in watched.iter_mut().zip(lists) {
        let (list, problem) = storage.latest(began, list);
        head.extend(problem.or(note).map(|text| format!("\n{}", clean(&text))));
        shown.push((storage.context.clone(), list));
    }
    // If the only storage has no list yet, this fails and the screen stays as it is.
    let shown = items(shown)?;
    let clear = if io::stdout().is_terminal() { CLEAR_SCREEN } else { "" };
    crate::output::print(&format!("{clear}{head}"))?;
    print(output, &shown)
}

impl Watched {
    /// Returns `list`, or after a failure the last list that could be read, with a message about the failure.
    fn latest(
        &mut self,
        began: SystemTime,
        list: Result<Vec<QueueRow>, Failure>,
    ) -> (Result<Vec<QueueRow>, Failure>, Option<String>) {
        let failure = match list {
            Ok(rows) => {
                self.last = Some((began, rows.clone()));
                return (Ok(rows), None);
            }
            Err(failure) => failure,
        };
        let Some((read, rows)) = &self.last else { return (Err(failure), None) };
        let place = self.context.as_ref().map_or_else(String::new, |name| format!(" of `{name}`"));
        let problem = format!("The figures{place} are from {}: {}", time(*read), failure.into_text());
        (Ok(rows.clone()), Some(problem))
    }
}
