//! Results on standard output: as a table for people, or as JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Cell, CellAlignment, Table, presets};
use jobqueue::__internals::is_hidden;
use jobqueue_admin::indented_json;
use serde::Serialize;

use crate::exit::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// Columns for people; they may change in any release.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document per line.
    Ndjson,
}

impl Output {
    /// Prints a list: as an array, as a line for each item, or as a table. `what` names the items in the
    /// plural.
    pub(crate) fn list<T: Serialize>(
        self,
        items: &[T],
        what: &str,
        table: impl FnOnce() -> Table,
    ) -> Result<(), Failure> {
        match self {
            Self::Table if items.is_empty() => {
                say(&format!("no {what}"));
                Ok(())
            }
            Self::Table => print(&lines(&table())),
            Self::Json => print(&json(&items, true)?),
            Self::Ndjson => items.iter().try_for_each(|item| print(&json(item, false)?)),
        }
    }

    /// Prints the items of a page. `Json` prints the whole page; the other formats print the items as
    /// [`list`](Self::list) does.
    pub(crate) fn page<P: Serialize, T: Serialize>(
        self,
        page: &P,
        items: &[T],
        what: &str,
        table: impl FnOnce() -> Table,
    ) -> Result<(), Failure> {
        match self {
            Self::Json => print(&json(page, true)?),
            _ => self.list(items, what, table),
        }
    }

    /// Prints one value: as JSON, or as a text.
    pub(crate) fn value<T: Serialize>(self, value: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
        match self {
            Self::Table => print(&text()),
            Self::Json => print(&json(value, true)?),
            Self::Ndjson => print(&json(value, false)?),
        }
    }

    /// Prints the report of a change. If that fails, the failure contains the report, because the change was
    /// made.
    pub(crate) fn change<T: Serialize>(self, value: &T, text: impl Fn() -> String) -> Result<(), Failure> {
        add_lost_report(self.value(value, &text), text)
    }

    /// Prints the result of a change of a `thing`: `texts[0]` if something was changed, else `texts[1]`.
    pub(crate) fn changed(
        self,
        thing: &str,
        name: &str,
        changed: bool,
        texts: [&str; 2],
    ) -> Result<(), Failure> {
        let [made, unneeded] = texts;
        let text =
            || format!("{thing} {} {}", crate::text::clean(name), if changed { made } else { unneeded });
        let value = serde_json::json!({ thing: name, "changed": changed });
        if changed { self.change(&value, text) } else { self.value(&value, text) }
    }
}

/// Adds the report of a change to the failure to print it, so that the operator does not repeat the change.
pub(crate) fn add_lost_report(
    printed: Result<(), Failure>,
    done: impl FnOnce() -> String,
) -> Result<(), Failure> {
    printed.map_err(|failure| match failure {
        Failure::Failed(text) => Failure::Failed(format!(
            "the change was made, but its report could not be written: {text}: {}",
            done().trim_end()
        )),
        other => other,
    })
}

/// Returns the failure of a change, or else the failure to print its report. If both failed, the text of the
/// second, which contains the report, is appended.
pub(crate) fn first_failure(
    change: Result<(), Failure>,
    printed: Result<(), Failure>,
) -> Result<(), Failure> {
    let change = change.map_err(|mut failure| {
        if let (Some(text), Err(Failure::Failed(unprinted))) = (failure.text_mut(), &printed) {
            text.push_str("; ");
            text.push_str(unprinted);
        }
        failure
    });
    change.and(printed)
}

/// Returns a value as [sanitized](sanitize_json) JSON, in one line or with line breaks and indentation.
pub(crate) fn json<T: Serialize>(value: &T, pretty: bool) -> Result<String, Failure> {
    let text = serde_json::to_string(value);
    let text = text.map_err(|error| Failure::Failed(format!("cannot write the result as JSON: {error}")))?;
    let line = sanitize_json(&text);
    Ok(if pretty { indented_json(&line, usize::MAX).0 } else { line })
}

/// Makes a JSON text safe for a terminal, without a change of its values: removes line breaks and tabs
/// between its tokens, which a sender may have put into its payload, and escapes hidden characters in its
/// strings.
pub(crate) fn sanitize_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Inside a JSON string these are always escaped.
            '\n' | '\r' | '\t' => {}
            _ if is_hidden(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => shown.push(c),
        }
    }
    shown
}

/// Prints lines. A closed pipe is a [`Failure::ClosedPipe`], with which the program ends successfully.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.write_all(end.as_bytes()));
    printed.and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => error.into(),
    })
}

/// Prints a message to standard error.
pub(crate) fn say(text: &str) {
    // If that fails, the message has no reader.
    let _ = writeln!(io::stderr(), "{}", crate::text::clean(text));
}

/// Prints a message if a list with `--limit` leaves some of `all` items out. `what` names them with a verb.
pub(crate) fn say_left_out(what: &str, all: u64, listed: usize) {
    let left = all.saturating_sub(listed as u64);
    if left > 0 {
        say(&format!("{all} {what}, of which {left} are left out; add --limit to list more"));
    }
}

/// A column of a table, and its text for an item. Columns whose name begins with `#` hold numbers.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// Returns a table with a row for each item.
pub(crate) fn rows<'a, T: 'a>(columns: &[Column<T>], items: impl IntoIterator<Item = &'a T>) -> Table {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let mut all = table(&names);
    for item in items {
        all.add_row(columns.iter().map(|(_, text)| text(item)));
    }
    all
}

/// Returns an empty table with these columns.
pub(crate) fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|name| Cell::new(name.trim_start_matches('#'))));
    for (index, name) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if name.starts_with('#') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table
}

/// Returns the lines of a table without trailing blanks, cut at the width of the terminal.
pub(crate) fn lines(table: &Table) -> String {
    let lines: Vec<String> = table.lines().collect();
    crate::text::fit(lines.iter().map(String::as_str))
}

/// Returns a line for each name and its value, with the values aligned.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn sanitized_json_controls_no_terminal_and_keeps_its_values() {
        let text = "a\u{9b}2J\u{7f}\u{202e}\u{e0041}b ä\n";
        let json = super::json(&text, true).unwrap();
        assert_eq!(json, "\"a\\u009b2J\\u007f\\u202e\\udb40\\udc41b ä\\n\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
