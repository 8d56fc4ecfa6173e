//! The four jobs. Each may run again at any time, in this process or another: it finds the work that was done
//! before.

use std::time::{Duration, SystemTime};

use jobqueue::batch::OnDeadLetters;
use jobqueue::{Context, JobError, State};

use crate::database::Database;
use crate::messages::{Archive, FanOut, Mail, Scan};
use crate::outbox::Outbox;

/// The time after which a fan-out that was given up is tried again.
const ONE_FAN_OUT_A: Duration = Duration::from_secs(600);

/// Starts the fan-out of every mailing that is due.
pub(crate) async fn scan(_: Scan, ctx: Context, State(database): State<Database>) -> Result<(), JobError> {
    let fan_outs = ctx.queue::<FanOut>().await?;
    for mailing in database.due(SystemTime::now()).await? {
        // The next scan may find the mailing before its fan-out has begun: then this sends nothing.
        fan_outs.send(&FanOut { mailing }).unique_for(ONE_FAN_OUT_A).await?;
    }
    Ok(())
}

/// Sends one job for each recipient. If it is interrupted and started again, it continues: the recipients
/// were recorded when it began, and the batch knows how many jobs were sent.
pub(crate) async fn fan_out(
    FanOut { mailing }: FanOut,
    ctx: Context,
    State(database): State<Database>,
) -> Result<(), JobError> {
    let Some(begun) = database.begin(mailing).await? else {
        return Ok(()); // Archived already.
    };
    match begun.again {
        false => println!("“{}”: Queuing, {} recipients", begun.subject, begun.recipients),
        true => println!("“{}”: going on with the fan-out to {}", begun.subject, begun.recipients),
    }
    let mut batch = ctx.batch(&format!("mailing-{mailing}")).await?;
    // An address that always fails must not stop the mailing from ending.
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all((0..begun.recipients).map(|recipient| Mail { mailing, recipient })).await?;
    if database.all_queued(mailing).await? {
        println!("“{}”: Processing, all are queued", begun.subject);
    }
    // From now on, the last mail can be followed by the archive job.
    Ok(batch.then(&Archive { mailing }).await?)
}

/// Sends one mail. The framework retries it after an error.
pub(crate) async fn send(
    mail: Mail,
    State(database): State<Database>,
    State(outbox): State<Outbox>,
) -> Result<(), JobError> {
    let letter = database.letter(mail.mailing, mail.recipient).await?;
    Ok(outbox.put(letter).await?)
}

/// Runs when all mails are sent or given up, and archives the mailing.
pub(crate) async fn archive(
    Archive { mailing }: Archive,
    ctx: Context,
    State(database): State<Database>,
    State(outbox): State<Outbox>,
) -> Result<(), JobError> {
    let mails = ctx.batch_results::<()>().await?;
    let failed = mails.iter().filter(|mail| mail.outcome.is_err()).count() as u32;
    let sent = mails.len() as u32 - failed;
    if let Some(subject) = database.archive(mailing, sent, failed).await? {
        let folder = outbox.folder(mailing);
        println!(
            "“{subject}”: Complete and archived, {sent} sent, {failed} failed; mails in {}",
            folder.display()
        );
    }
    Ok(())
}
