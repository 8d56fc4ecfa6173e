//! Lists that a command reads from the storages of several contexts.

use futures_util::future::join_all;
use serde::Serialize;

use crate::exit::Failure;
use crate::output::{Output, table};
use crate::session::{Opened, Session};
use crate::text::{cell, clean, things};

/// An item of a list, or the failure of a context, with the name of the context if there are several.
#[derive(Serialize)]
pub(crate) struct Item<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    #[serde(flatten)]
    value: ItemValue<T>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ItemValue<T> {
    Read(T),
    Failed { error: String },
}

impl<T> Item<T> {
    /// Returns the item; `None` for the failure of a context.
    pub(crate) fn get(&self) -> Option<&T> {
        match &self.value {
            ItemValue::Read(item) => Some(item),
            ItemValue::Failed { .. } => None,
        }
    }

    /// Replaces a failure by an item that is made from its text.
    pub(crate) fn or_else(self, item: impl FnOnce(String) -> T) -> Self {
        let value = match self.value {
            ItemValue::Failed { error } => ItemValue::Read(item(error)),
            read @ ItemValue::Read(_) => read,
        };
        Self { value, ..self }
    }
}

/// The list of a storage, with the name of its context if there are several.
pub(crate) type ListOfContext<T> = (Option<String>, Result<Vec<T>, Failure>);

/// Reads a list from each storage, concurrently. If there is only one storage, its failure fails the command.
pub(crate) async fn read<T>(
    opened: &[Opened],
    read: impl AsyncFn(&Session) -> Result<Vec<T>, Failure>,
) -> Result<Vec<Item<T>>, Failure> {
    let lists = opened.iter().map(async |Opened { context, session }| {
        let list = match session {
            Ok(session) => read(session).await,
            Err(error) => Err(Failure::Failed(error.clone())),
        };
        (context.clone(), list)
    });
    items(join_all(lists).await)
}

/// Joins the lists of all storages.
pub(crate) fn items<T>(lists: Vec<ListOfContext<T>>) -> Result<Vec<Item<T>>, Failure> {
    let mut items = Vec::new();
    for (context, list) in lists {
        match (context, list) {
            (context, Ok(list)) => items.extend(
                list.into_iter().map(|item| Item { context: context.clone(), value: ItemValue::Read(item) }),
            ),
            (None, Err(failure)) => return Err(failure),
            (context, Err(failure)) => {
                items.push(Item { context, value: ItemValue::Failed { error: failure.into_text() } });
            }
        }
    }
    Ok(items)
}

/// Prints the list. In the table, an item has any number of rows, and a failed context has its error in the
/// last column. Fails if a context failed.
pub(crate) fn print<T: Serialize>(
    output: Output,
    items: &[Item<T>],
    what: &str,
    columns: &[&str],
    rows: impl Fn(&T) -> Vec<Vec<String>>,
) -> Result<(), Failure> {
    let printed = output.list(items, what, || {
        let context: &[&str] =
            if items.iter().any(|item| item.context.is_some()) { &["CONTEXT"] } else { &[] };
        let mut all = table(&[context, columns].concat());
        for item in items {
            let rows = match &item.value {
                ItemValue::Read(value) => rows(value),
                ItemValue::Failed { error } => {
                    let unknown = columns.iter().skip(1).map(|_| "?".to_owned());
                    vec![unknown.chain([clean(error)]).collect()]
                }
            };
            for row in rows {
                all.add_row(item.context.iter().map(|name| cell(name)).chain(row));
            }
        }
        all
    });
    let failed: Vec<&str> =
        items.iter().filter(|item| item.get().is_none()).filter_map(|item| item.context.as_deref()).collect();
    match failed.len() {
        0 => printed,
        many => Err(Failure::Failed(format!(
            "{} could not be read: {}",
            things(many, "context"),
            failed.join(", ")
        ))),
    }
}
