//! The drivers, and operations within their transactions.

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use jobqueue::postgres::OpenTransaction;
use jobqueue::queue::{One, SendRequest};
use jobqueue::{Context, Error, QueueMessage};
use jobqueue_postgres_drivers::diesel::DieselTransaction;
use jobqueue_postgres_drivers::{sqlx_0_8, sqlx_0_9};

/// A driver of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Driver {
    Sqlx08,
    Sqlx09,
    DieselAsync,
}

pub const ALL: [Driver; 3] = [Driver::Sqlx08, Driver::Sqlx09, Driver::DieselAsync];

/// The end of a transaction in which nothing has failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    Commit,
    Rollback,
}

/// An operation within a transaction.
pub enum Act<'a, M: QueueMessage> {
    Send(SendRequest<One<'a, M>>),
    Complete(&'a Context),
    Once(&'a Context),
}

impl<M: QueueMessage> Act<'_, M> {
    /// Returns whether an effect is to happen.
    pub async fn run(self, transaction: impl OpenTransaction) -> Result<bool, Error> {
        match self {
            Self::Send(request) => request.in_postgres(transaction).await.map(|_| true),
            Self::Complete(context) => context.complete_in_postgres(transaction).await.map(|()| true),
            Self::Once(context) => context.once_in_postgres(transaction, "effect").await,
        }
    }
}

impl Driver {
    /// Executes a statement and acts, in one transaction of this driver. A failure of the act rolls it back.
    pub async fn transact<M: QueueMessage>(
        self,
        address: &str,
        statement: &str,
        act: Act<'_, M>,
        end: End,
    ) -> Result<bool, Error> {
        match self {
            Self::Sqlx08 => in_sqlx_0_8(address, statement, act, end).await,
            Self::Sqlx09 => in_sqlx_0_9(address, statement, act, end).await,
            Self::DieselAsync => in_diesel(address, statement, act, end).await,
        }
    }
}

async fn in_sqlx_0_8<M: QueueMessage>(
    address: &str,
    statement: &str,
    act: Act<'_, M>,
    end: End,
) -> Result<bool, Error> {
    use sqlx_core_0_8::connection::Connection;
    let mut connection = sqlx_postgres_0_8::PgConnection::connect(address).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    sqlx_core_0_8::query::query(statement).execute(&mut *transaction).await.unwrap();
    let happens = act.run(sqlx_0_8::SqlxTransaction(&mut transaction)).await?;
    match end {
        End::Commit => transaction.commit().await.unwrap(),
        End::Rollback => transaction.rollback().await.unwrap(),
    }
    Ok(happens)
}

async fn in_sqlx_0_9<M: QueueMessage>(
    address: &str,
    statement: &str,
    act: Act<'_, M>,
    end: End,
) -> Result<bool, Error> {
    let pool = sqlx::PgPool::connect(address).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *transaction).await.unwrap();
    let happens = act.run(sqlx_0_9::SqlxTransaction(&mut transaction)).await?;
    match end {
        End::Commit => transaction.commit().await.unwrap(),
        End::Rollback => transaction.rollback().await.unwrap(),
    }
    pool.close().await;
    Ok(happens)
}

/// The reason for which diesel-async rolls a transaction back.
enum Undone {
    Asked(bool),
    Failed(Error),
}

impl From<diesel::result::Error> for Undone {
    fn from(error: diesel::result::Error) -> Self {
        panic!("{error}")
    }
}

async fn in_diesel<M: QueueMessage>(
    address: &str,
    statement: &str,
    act: Act<'_, M>,
    end: End,
) -> Result<bool, Error> {
    let mut connection = AsyncPgConnection::establish(address).await.unwrap();
    let transaction = connection.transaction(async move |connection| {
        connection.batch_execute(statement).await?;
        let happens = act.run(DieselTransaction(connection)).await.map_err(Undone::Failed)?;
        if end == End::Commit { Ok(happens) } else { Err(Undone::Asked(happens)) }
    });
    match transaction.await {
        Ok(happens) | Err(Undone::Asked(happens)) => Ok(happens),
        Err(Undone::Failed(error)) => Err(error),
    }
}
