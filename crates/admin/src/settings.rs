//! Changes of a queue's settings by a plan.

use std::collections::BTreeMap;

use jobqueue::settings::{Metadata, QueueSettings};
use jobqueue::storage::StoreErrorKind;
use jobqueue::{Error, ErrorKind, QueueName};
use serde::Serialize;

use super::event::ActionTarget;
use super::queues::not_found;
use super::{Action, Admin, pause, resolve};

/// The most tries to change the metadata while other programs change it too.
const MAX_TRIES: u32 = 5;

/// The changes from the current to the wanted metadata of a queue, computed by [`Admin::plan_settings`]. A
/// plan without changes means that there is no drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettingsPlan {
    /// The queue.
    pub queue: String,
    /// The changes, in order of name.
    pub changes: Vec<SettingChange>,
    /// The metadata for which the plan was made. The plan is applied only if the metadata has not changed.
    pub before: BTreeMap<String, String>,
}

/// A change of one value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettingChange {
    /// The name in the metadata.
    pub name: String,
    /// The current value; `None` if there is none.
    pub from: Option<String>,
    /// The wanted value; `None` to remove the setting, so that its default applies.
    pub to: Option<String>,
    /// The reason why workers would not use the value. A plan with a warning is not applied.
    pub warning: Option<String>,
}

impl SettingsPlan {
    /// Returns whether the plan has no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl Admin {
    /// Compares the metadata of a queue with the `wanted` settings: names with values, or with `None` for
    /// settings to remove. Names that are not in `wanted` stay as they are. Changes nothing; costs one
    /// request.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::Storage; use jobqueue_admin::{AccessLevel, Admin};
    /// # let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
    /// # admin.create_queue("mails").await?;
    /// let plan = admin.plan_settings("mails", [("poisonthreshold", Some("3")), ("maxdeliveries", None)]).await?;
    /// assert_eq!(plan.changes.len(), 1);
    /// admin.apply_settings(&plan).await?;
    /// // No drift any more.
    /// assert!(admin.plan_settings("mails", [("poisonthreshold", Some("3"))]).await?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Storage`](ErrorKind::Storage) if it
    /// cannot be read.
    pub async fn plan_settings<N: AsRef<str>, V: AsRef<str>>(
        &self,
        queue: &str,
        wanted: impl IntoIterator<Item = (N, Option<V>)>,
    ) -> Result<SettingsPlan, Error> {
        let wanted: Vec<(String, Option<String>)> = wanted
            .into_iter()
            // Azure Storage queues do not keep white space around a value.
            .map(|(name, value)| {
                (name.as_ref().to_owned(), value.map(|value| value.as_ref().trim().to_owned()))
            })
            .collect();
        let now = self.metadata(&QueueName::new(queue)?).await?;
        let mut changes = BTreeMap::new();
        for (name, to) in wanted {
            let from = now.get(&name).map(str::to_owned);
            let warning = warning(&name, to.as_deref());
            let key = name.to_ascii_lowercase();
            // If a name occurs several times, its last value counts.
            if from == to {
                changes.remove(&key);
            } else {
                changes.insert(key, SettingChange { name, from, to, warning });
            }
        }
        let before = now.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(SettingsPlan { queue: queue.to_owned(), changes: changes.into_values().collect(), before })
    }

    /// Makes the changes of a plan. Costs a request, and two more if the storage cannot replace metadata
    /// conditionally.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`Invalid`](ErrorKind::Invalid) if the plan has a warning;
    /// [`Conflict`](ErrorKind::Conflict) if the metadata has changed since the plan was made: plan again.
    /// Azure Storage queues cannot be changed conditionally: a change that another program makes within the
    /// last round trip may be lost; [`NotFound`](ErrorKind::NotFound), [`Storage`](ErrorKind::Storage).
    ///
    /// # Cancel safety
    /// If the future is dropped, either all changes are made or none.
    pub async fn apply_settings(&self, plan: &SettingsPlan) -> Result<(), Error> {
        let work = async {
            if let Some(warning) = plan.changes.iter().find_map(|change| change.warning.as_deref()) {
                return Err(Error::new(ErrorKind::Invalid, warning));
            }
            let name = QueueName::new(&plan.queue)?;
            let before: Metadata =
                plan.before.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let mut metadata = before.clone();
            for change in &plan.changes {
                metadata.remove(&change.name);
                if let Some(value) = &change.to {
                    metadata.insert(change.name.clone(), value.clone());
                }
            }
            let text = match self.replace_metadata(&name, &before, &metadata).await? {
                Replaced::Yes => return Ok(()),
                Replaced::No => {
                    format!("the settings of `{name}` have changed since the plan was made; plan again")
                }
                Replaced::Maybe => {
                    format!(
                        "another program has changed the settings of `{name}` at the same time; plan again"
                    )
                }
            };
            Err(Error::new(ErrorKind::Conflict, text))
        };
        let change = |change: &SettingChange| match &change.to {
            Some(value) => format!("{}={value}", change.name),
            None => format!("{} removed", change.name),
        };
        let changes = plan.changes.iter().map(change).collect::<Vec<_>>().join(", ");
        let target = ActionTarget { selection: changes.clone(), ..format!("queue {}", plan.queue).into() };
        self.act(Action::ChangeSettings, target, work, |(): &()| changes).await
    }

    pub(super) async fn metadata(&self, name: &QueueName) -> Result<Metadata, Error> {
        let metadata = self.storage.queues().queue_metadata(name).await;
        metadata.map_err(|error| not_found(error, name))
    }

    /// Changes the metadata of a queue by `change`, which returns its result and whether there is anything to
    /// write. Calls `change` again if another program has changed the metadata since it was read.
    pub(super) async fn change_metadata<T>(
        &self,
        name: &QueueName,
        change: impl Fn(&mut Metadata) -> Result<(T, bool), Error>,
    ) -> Result<T, Error> {
        for _ in 0..MAX_TRIES {
            let before = self.metadata(name).await?;
            let mut metadata = before.clone();
            let (result, writes) = change(&mut metadata)?;
            if !writes {
                return Ok(result);
            }
            match self.replace_metadata(name, &before, &metadata).await? {
                Replaced::Yes => return Ok(result),
                Replaced::No => {}
                Replaced::Maybe => {
                    let text = format!(
                        "another program has changed the metadata of `{name}` at the same time: it is not known whether the change is made"
                    );
                    return Err(Error::new(ErrorKind::Conflict, text));
                }
            }
        }
        let text = format!("other programs keep changing the metadata of `{name}`; try again");
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// Replaces the metadata of a queue if it still equals `before`.
    async fn replace_metadata(
        &self,
        name: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<Replaced, Error> {
        metadata.check().map_err(|problem| Error::new(ErrorKind::Invalid, problem))?;
        match self.storage.queues().replace_queue_metadata(name, before, metadata).await {
            Ok(()) => Ok(Replaced::Yes),
            Err(error) if error.kind() != StoreErrorKind::ConditionNotMet => Err(not_found(error, name)),
            Err(error) if error.is_ambiguous() => Ok(Replaced::Maybe),
            Err(_) => Ok(Replaced::No),
        }
    }
}

/// The result of replacing metadata.
enum Replaced {
    Yes,
    /// The metadata was not as expected.
    No,
    /// Another program replaced the metadata at the same time: ours was written and overwritten, or was not
    /// written, or is stored together with other changes.
    Maybe,
}

/// Returns why a change is not made: workers would not use the value, the storage would not accept it, or it
/// is not a setting.
fn warning(name: &str, value: Option<&str>) -> Option<String> {
    if pause::NAMES.iter().any(|of_pause| of_pause.eq_ignore_ascii_case(name)) {
        return Some(format!("`{name}` is no setting: pause or resume the queue"));
    }
    let value = value?;
    let alone = Metadata::new().with(name, value);
    if let Err(problem) = alone.check() {
        return Some(problem);
    }
    let (settings, warnings) = resolve(&alone);
    if let Some(warning) = warnings.first() {
        return Some(warning.without_type());
    }
    let is_known = settings.entries().iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
        || QueueSettings::NAMES.iter().any(|known| known.eq_ignore_ascii_case(name));
    (!is_known).then(|| format!("there is no setting `{name}`"))
}
