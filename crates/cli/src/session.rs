//! The storage of a command, and its access to it.

use std::sync::Arc;

use futures_util::future::join_all;
use jobqueue::__internals::connect_existing;
use jobqueue::storage::{StoreError, StoreErrorKind};
use jobqueue::{Error, Storage};
use jobqueue_admin::{AccessLevel, Action, Admin, JobReference};

use crate::args::Global;
use crate::audit::AuditFile;
use crate::config::{Config, variable};
use crate::exit::Failure;
use crate::output::say;
use crate::text::argument;

const STORAGE_VARIABLE: &str = "JOBQUEUE_STORAGE";

/// The access to the storage that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The command reads.
    Read,
    /// The command reads, and records the changes that it refuses.
    Serve,
    /// The command receives messages and puts them back.
    Inspect,
    /// The command changes something.
    Change,
    /// The command may create the SQLite file or the tables, or migrate them, with [`Session::create`], once
    /// that is confirmed, allowed and recorded.
    Create,
}

/// The chosen storage, and the command's access to it.
pub(crate) struct Session {
    /// The operator's view. If the storage [needs creation](Self::needs_creation), a view of an empty storage
    /// in memory that has its name.
    pub(crate) admin: Admin,
    /// True if [`create`](Self::create) creates or migrates the storage.
    pub(crate) needs_creation: bool,
    /// The storage string.
    pub(crate) storage: String,
    /// The options that select the same storage in another command.
    options: String,
    /// The name of its context, unless the storage was given without one.
    pub(crate) context: Option<String>,
    /// True if changes must be confirmed.
    is_production: bool,
    /// The path of the SQLite file, if the storage is one.
    pub(crate) file: Option<String>,
    /// True if idle workers poll the storage, and each of their requests is billed.
    pub(crate) is_billed: bool,
}

/// A storage that the arguments, the environment or the configuration name.
pub(crate) struct Choice {
    pub(crate) storage: String,
    access: AccessLevel,
    pub(crate) context: Option<String>,
    is_production: bool,
    /// False for the default context, which only commands that read may use.
    explicit: bool,
}

/// A storage that was opened, or the reason why it could not be.
pub(crate) struct Opened {
    /// The name of its context, if there are several.
    pub(crate) context: Option<String>,
    pub(crate) session: Result<Session, String>,
}

impl Session {
    /// Opens the storage that the arguments, the environment or the configuration name, in this order.
    pub(crate) async fn open(global: &Global, need: Need) -> Result<Self, Failure> {
        if global.context.len() > 1 {
            return Err(Failure::Usage(
                "this command works on one storage: give one --context; only queues, workers, doctor and \
                 serve accept several"
                    .to_owned(),
            ));
        }
        let session = Self::open_choice(global, choose(global)?, need).await?;
        if matches!(need, Need::Inspect | Need::Change | Need::Create) {
            note_unknown_operator(global);
        }
        Ok(session)
    }

    /// Opens the storages of all contexts that the arguments name, concurrently. Fails if the configuration
    /// is wrong, or if there is only one storage and it cannot be opened.
    pub(crate) async fn open_all(global: &Global, need: Need) -> Result<Vec<Opened>, Failure> {
        let choices = choose_all(global)?;
        let is_one = choices.len() == 1;
        let opened = choices.into_iter().map(async |choice| {
            let context = choice.context.clone().filter(|_| !is_one);
            (context, Self::open_choice(global, choice, need).await)
        });
        let opened = join_all(opened).await.into_iter().map(|(context, session)| match session {
            Err(failure) if is_one => Err(failure),
            session => Ok(Opened { context, session: session.map_err(Failure::into_text) }),
        });
        opened.collect()
    }

    async fn open_choice(global: &Global, choice: Choice, need: Need) -> Result<Self, Failure> {
        choice.check(need)?;
        // Creates no storage at a mistyped place, and migrates none although this program may be newer.
        let (storage, needs_creation) = match connect_existing(&choice.storage).await {
            Err(error) if need == Need::Create => (choice.placeholder(error)?, true),
            opened => (opened?, false),
        };
        Ok(Self { needs_creation, ..Self::new(global, &choice, need, storage)? })
    }

    /// Returns the command's access to the storage that was opened for a choice.
    pub(crate) fn new(
        global: &Global,
        choice: &Choice,
        need: Need,
        storage: Storage,
    ) -> Result<Self, Failure> {
        let options = choice.options(global);
        let access = match need {
            Need::Read | Need::Serve => AccessLevel::ReadOnly,
            Need::Inspect => choice.access.and(&AccessLevel::only([Action::Inspect])),
            Need::Change | Need::Create => choice.access.clone(),
        };
        let mut admin = Admin::builder(storage)
            .access(access)
            .operator(operator(global).unwrap_or_else(|| UNKNOWN_OPERATOR.to_owned()));
        if let Some(path) = &global.audit_file {
            // A command that reads must not fail because of a file that it does not write. An inspection,
            // which is recorded, fails when it begins.
            let audit = if matches!(need, Need::Read | Need::Inspect) {
                AuditFile::new(path)
            } else {
                AuditFile::open(path)?
            };
            admin = admin.audit(move |event| Ok(audit.append(event)?));
        }
        let admin = admin.build();
        let is_billed = polls_are_billed(admin.storage().description());
        Ok(Self {
            admin,
            needs_creation: false,
            storage: choice.storage.clone(),
            options,
            context: choice.context.clone(),
            is_production: choice.is_production,
            file: choice.file(),
            is_billed,
        })
    }

    /// Returns a session for a test.
    #[cfg(test)]
    pub(crate) fn for_test(admin: Admin) -> Self {
        Self {
            admin,
            needs_creation: false,
            storage: String::new(),
            options: String::new(),
            context: None,
            is_production: false,
            file: None,
            is_billed: false,
        }
    }

    /// Returns a command of these words for the operator to copy, which works on the same storage. Quotes
    /// each word for a shell.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let words: Vec<_> = words.iter().map(|word| argument(word)).collect();
        format!("`jobqueue{} {}`", self.options, words.join(" "))
    }

    /// Returns a command that names a job by positional arguments.
    pub(crate) fn job_command(&self, command: &[&str], job: &JobReference) -> String {
        let source = source_option(job);
        let end = job.id.starts_with('-').then_some("--");
        let options = source.as_deref().into_iter().chain(end);
        let words = command.iter().copied().chain(options).chain([job.queue.as_str(), job.id.as_str()]);
        self.command(&words.collect::<Vec<_>>())
    }

    /// Returns a command that selects the dead letters of a job by a filter.
    pub(crate) fn letters_command(&self, command: &[&str], job: &JobReference) -> String {
        let (id, source) = (format!("--id={}", job.id), source_option(job));
        let filter = [id.as_str()].into_iter().chain(source.as_deref());
        let words = command.iter().copied().chain([job.queue.as_str()]).chain(filter);
        self.command(&words.collect::<Vec<_>>())
    }

    /// Returns the name of the context, if it is a production context.
    pub(crate) fn production(&self) -> Option<&str> {
        self.context.as_deref().filter(|_| self.is_production)
    }

    /// Returns the storage, which is created or migrated if necessary.
    pub(crate) async fn create(&self) -> Result<Storage, Error> {
        if self.needs_creation {
            Storage::connect(&self.storage).await
        } else {
            Ok(self.admin.storage().clone())
        }
    }
}

/// Returns the option that names the sender of a job.
fn source_option(job: &JobReference) -> Option<String> {
    job.source.as_deref().map(|source| format!("--source={source}"))
}

impl Choice {
    /// Returns the path of the SQLite file, if the storage is one.
    pub(crate) fn file(&self) -> Option<String> {
        self.storage.trim().strip_prefix("sqlite:").map(str::to_owned)
    }

    /// Returns an empty storage in memory that has the name of the storage to create, for the records of its
    /// creation. `refused` is the error of the attempt to open that storage; if the storage is not merely
    /// missing or old, returns that error.
    fn placeholder(&self, refused: Error) -> Result<Storage, Error> {
        let cause = StoreError::in_chain(&refused);
        let cause = cause.filter(|cause| cause.kind() == StoreErrorKind::NotPrepared);
        let Some(subject) = cause.map(|cause| cause.subject().to_owned()) else { return Err(refused) };
        let name = self.file().map_or(subject, |file| format!("sqlite:{file}"));
        let empty = Storage::memory();
        Ok(Storage::new(Arc::clone(empty.queues().store()), Arc::clone(empty.blobs()), name))
    }

    /// Refuses a change in the default context, and prints a message if a command reads from it.
    pub(crate) fn check(&self, need: Need) -> Result<(), Failure> {
        if !self.explicit && matches!(need, Need::Change | Need::Create) {
            return Err(Failure::Usage(format!(
                "a change needs an explicit storage: add --context or --storage, or set {STORAGE_VARIABLE}; \
                 the default context is for reading only"
            )));
        }
        if let Some(context) = self.context.as_deref().filter(|_| !self.explicit) {
            // The alert that the operator follows may be about another storage.
            say(&format!("reading from the default context `{context}`"));
        }
        Ok(())
    }

    /// Returns the options that select the same storage in another command. A storage from the environment
    /// needs none.
    fn options(&self, global: &Global) -> String {
        let option = |name: &str, value: &str| format!(" --{name}={}", argument(value));
        match (&self.context, &global.storage) {
            (Some(context), _) => {
                let config = global.config.as_ref().map(|path| option("config", &path.to_string_lossy()));
                config.unwrap_or_default() + &option("context", context)
            }
            (None, Some(storage)) => option("storage", storage),
            (None, None) => String::new(),
        }
    }
}

/// Returns the choices of all contexts that the arguments name, or else the one storage.
pub(crate) fn choose_all(global: &Global) -> Result<Vec<Choice>, Failure> {
    let names = &global.context;
    if names.len() < 2 {
        return Ok(vec![choose(global)?]);
    }
    if let Some((_, name)) = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
        return Err(Failure::Usage(format!("--context names `{name}` twice")));
    }
    let config = Config::read(global.config.as_deref())?;
    names.iter().map(|name| context_choice(&config, name, true)).collect()
}

fn choose(global: &Global) -> Result<Choice, Failure> {
    let operate = |storage| Choice {
        storage,
        access: AccessLevel::Operate,
        context: None,
        is_production: false,
        explicit: true,
    };
    if let Some(storage) = &global.storage {
        return Ok(operate(storage.clone()));
    }
    if global.context.is_empty()
        && let Some(storage) = variable(STORAGE_VARIABLE)?
    {
        return Ok(operate(storage));
    }
    let config = Config::read(global.config.as_deref())?;
    let Some(name) = global.context.first().or(config.default.as_ref()) else {
        return Err(Failure::Usage(format!(
            "no storage given: set {STORAGE_VARIABLE} to a storage string such as sqlite:jobs.db, or add \
             --storage, or --context with a context of the configuration file"
        )));
    };
    context_choice(&config, name, !global.context.is_empty())
}

fn context_choice(config: &Config, name: &str, explicit: bool) -> Result<Choice, Failure> {
    let context = config.context(name)?;
    Ok(Choice {
        storage: context.storage(name)?,
        access: context.access(name)?,
        context: Some(name.to_owned()),
        is_production: context.production,
        explicit,
    })
}

/// Returns whether the polls of idle workers are billed. Service Bus pushes messages to its workers.
fn polls_are_billed(storage: &str) -> bool {
    storage.starts_with("azure:")
}

/// The name of an operator who gave none and has no login name, as in a container.
const UNKNOWN_OPERATOR: &str = "unknown";

fn operator(global: &Global) -> Option<String> {
    let logins = ["USER", "USERNAME", "LOGNAME"].iter().filter_map(|name| std::env::var(name).ok());
    // An empty variable names nobody, and hides no other name.
    global.operator.clone().into_iter().chain(logins).find(|name| !name.is_empty())
}

/// Prints under which name changes, and inspections where there is an audit file, are recorded, if the name
/// of the operator is unknown.
pub(crate) fn note_unknown_operator(global: &Global) {
    if operator(global).is_none() {
        say(&format!(
            "actions are recorded under the name `{UNKNOWN_OPERATOR}`: add --operator NAME or set JOBQUEUE_OPERATOR"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_azure_storage_bills_the_requests_of_idle_workers() {
        assert!(polls_are_billed("azure:devstoreaccount1"));
        for free in
            ["servicebus:jobs.servicebus.windows.net", "postgres:db:5432/jobs/jobqueue", "sqlite:jobs.db"]
        {
            assert!(!polls_are_billed(free), "{free}");
        }
    }
}
