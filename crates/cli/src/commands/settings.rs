//! `queue settings`: plans and applies changes of a queue's settings.

use std::collections::HashSet;

use clap::{Args, Subcommand};
use jobqueue_admin::SettingsPlan;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::confirm;
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::{clean, things};

#[derive(Subcommand)]
pub(crate) enum SettingsCommand {
    /// Shows the changes without making them
    Plan(PlanArguments),
    /// Makes the changes
    Apply(WantedSettings),
}

#[derive(Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    wanted: WantedSettings,
    /// Exits with code 5 if a setting differs, for drift checks
    #[arg(long)]
    check: bool,
}

#[derive(Args)]
pub(crate) struct WantedSettings {
    /// The name of the queue
    queue: String,
    /// The settings to change; others are kept
    #[arg(value_name = "NAME=VALUE", value_parser = name_and_value)]
    settings: Vec<(String, String)>,
    /// The setting to remove, so that its default applies
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write NAME=VALUE, for example poisonthreshold=3")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(
    global: &Global,
    command: SettingsCommand,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    match command {
        SettingsCommand::Plan(PlanArguments { wanted, check }) => {
            let session = Session::open(global, Need::Read).await?;
            let plan = plan(&session, &wanted).await?;
            let printed = global.output.value(&plan, || show(&plan));
            if check && !plan.is_empty() {
                let settings = things(plan.changes.len(), "setting");
                return Err(Failure::Differs(format!("the queue differs in {settings}")));
            }
            printed
        }
        SettingsCommand::Apply(wanted) => {
            let session = Session::open(global, Need::Change).await?;
            let plan = plan(&session, &wanted).await?;
            if plan.is_empty() {
                return global.output.value(&plan, || show(&plan));
            }
            let change = format!("change {} of `{}`", things(plan.changes.len(), "setting"), wanted.queue);
            confirm::production(&session, global.yes, &change, stop).await?;
            session.admin.apply_settings(&plan).await?;
            global.output.change(&plan, || show(&plan))
        }
    }
}

async fn plan(session: &Session, wanted: &WantedSettings) -> Result<SettingsPlan, Failure> {
    if wanted.settings.is_empty() && wanted.unset.is_empty() {
        return Err(Failure::Usage("no setting given: write NAME=VALUE or --unset NAME".to_owned()));
    }
    // The names of metadata are case-insensitive.
    let mut names = HashSet::new();
    let all = wanted.settings.iter().map(|(name, _)| name).chain(&wanted.unset);
    if let Some(twice) = all.into_iter().find(|name| !names.insert(name.to_ascii_lowercase())) {
        return Err(Failure::Usage(format!("the setting `{twice}` is given twice")));
    }
    let set = wanted.settings.iter().map(|(name, value)| (name.as_str(), Some(value.as_str())));
    let unset = wanted.unset.iter().map(|name| (name.as_str(), None));
    Ok(session.admin.plan_settings(&wanted.queue, set.chain(unset)).await?)
}

fn show(plan: &SettingsPlan) -> String {
    if plan.is_empty() {
        return "nothing to change".to_owned();
    }
    let value = |value: &Option<String>| value.as_deref().map_or_else(|| "(default)".to_owned(), clean);
    let mut text = String::new();
    for change in &plan.changes {
        text.push_str(&format!(
            "{}: {} -> {}\n",
            clean(&change.name),
            value(&change.from),
            value(&change.to)
        ));
        if let Some(warning) = &change.warning {
            text.push_str(&format!("  warning: {}\n", clean(warning)));
        }
    }
    text
}
