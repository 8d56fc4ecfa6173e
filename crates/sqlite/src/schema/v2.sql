-- Version 2.

-- Jobs that have ended. Times are microseconds since 1970. `number` is random, so that an entry written twice is one
-- row. Rows are in the order of their ends, as pages show them. There is no index by queue or kind, because each
-- would cost every job.
CREATE TABLE jobqueue_journal (
    ended    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    queue    TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    source   TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    key      TEXT,
    outcome  TEXT    NOT NULL,
    reason   TEXT,
    attempt  INTEGER NOT NULL,
    inserted INTEGER NOT NULL,
    ran      INTEGER NOT NULL,
    error    TEXT,
    worker   TEXT    NOT NULL,
    trace    TEXT,
    PRIMARY KEY (ended, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX jobqueue_journal_id ON jobqueue_journal (id, ended);
CREATE INDEX jobqueue_journal_key ON jobqueue_journal (key, ended) WHERE key IS NOT NULL;
CREATE INDEX jobqueue_journal_failure ON jobqueue_journal (ended) WHERE outcome <> 'completed';

-- The journal was in blobs, in a form that is no longer read.
INSERT INTO jobqueue_garbage (kind, owner) SELECT 'container', id FROM jobqueue_container WHERE name = 'jobqueue-history';
DELETE FROM jobqueue_container WHERE name = 'jobqueue-history';
