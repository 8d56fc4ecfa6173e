//! `leaders`: lists the leaderships and their holders.

use jobqueue_admin::LeaderOverview;

use crate::args::Global;
use crate::exit::Failure;
use crate::output::{Column, rows};
use crate::session::{Need, Session};
use crate::text::{cell, optional, time};

pub(crate) async fn run(global: &Global) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let leaders = session.admin.leaders().await?;
    global.output.list(&leaders, "leaders", || rows(COLUMNS, &leaders))
}

const COLUMNS: &[Column<LeaderOverview>] = &[
    ("LEADERSHIP", |leader| cell(&leader.name)),
    ("#TERM", |leader| leader.term.map_or_else(|| "-".to_owned(), |term| term.to_string())),
    ("HELD", |leader| if leader.held { "yes" } else { "no" }.to_owned()),
    ("BY", |leader| optional(leader.holder.as_deref())),
    ("SINCE", |leader| time(leader.since)),
];
