//! `leaders`: the leaderships and their holders.

use comfy_table::Table;
use jobqueue_admin::LeaderOverview;

use crate::args::Global;
use crate::exit::Failure;
use crate::output::table;
use crate::session::{Need, Session};
use crate::text::{cell, optional, time};

pub(crate) async fn run(global: &Global) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let leaders = session.admin.leaders().await?;
    global.output.list(&leaders, "leaders", || overview(&leaders))
}

fn overview(leaders: &[LeaderOverview]) -> Table {
    let mut rows = table(&["LEADERSHIP", "#TERM", "HELD", "BY", "SINCE"]);
    for leader in leaders {
        rows.add_row([
            cell(&leader.name),
            leader.term.map_or_else(|| "-".to_owned(), |term| term.to_string()),
            if leader.held { "yes" } else { "no" }.to_owned(),
            optional(leader.holder.as_deref()),
            time(leader.since),
        ]);
    }
    rows
}
