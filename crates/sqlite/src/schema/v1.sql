-- Version 1. The tables carry a prefix, because an application may keep tables of its own in the same file.

-- A single row: the newest time that any process has used, and the source of message ids and entity tags.
CREATE TABLE jobqueue_store (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    now      INTEGER NOT NULL,
    sequence INTEGER NOT NULL
) STRICT;
INSERT INTO jobqueue_store (id, now, sequence) VALUES (1, 0, 1);

-- `delayed` grows with every transaction that puts messages not visible at once, to announce them to other
-- processes, which find visible messages without it. Nothing in this table changes when messages come and go:
-- a row that did would be one more page to sync for each message.
CREATE TABLE jobqueue_queue (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    name     TEXT    NOT NULL UNIQUE,
    metadata TEXT    NOT NULL,
    delayed  INTEGER NOT NULL
) STRICT;

-- Instants are milliseconds since 1970. `leased` distinguishes the receipt of a get or update, which expires (1, or
-- 2 if the holder has put the message back), from the receipt of a put, which does not (0).
CREATE TABLE jobqueue_message (
    id            INTEGER PRIMARY KEY,
    queue         INTEGER NOT NULL,
    visible_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    inserted_at   INTEGER NOT NULL,
    dequeue_count INTEGER NOT NULL,
    leased        INTEGER NOT NULL,
    receipt       BLOB    NOT NULL,
    text          TEXT    NOT NULL
) STRICT;
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at);
CREATE INDEX jobqueue_message_expiry ON jobqueue_message (expires_at, queue) WHERE expires_at IS NOT NULL;

CREATE TABLE jobqueue_container (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT    NOT NULL UNIQUE
) STRICT;

-- Without a `lease_id` the lease is available. `lease_breaking` is 0. `content` is last, so that the other columns
-- are read without it.
CREATE TABLE jobqueue_blob (
    id             INTEGER PRIMARY KEY,
    container      INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    etag           INTEGER NOT NULL,
    modified_at    INTEGER NOT NULL,
    metadata       TEXT    NOT NULL,
    length         INTEGER NOT NULL,
    lease_id       TEXT,
    lease_breaking INTEGER NOT NULL,
    lease_millis   INTEGER,
    lease_until    INTEGER,
    content        BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX jobqueue_blob_name ON jobqueue_blob (container, name);

-- Deleted queues and containers, whose rows are removed in small steps.
CREATE TABLE jobqueue_garbage (
    kind  TEXT    NOT NULL CHECK (kind IN ('queue', 'container')),
    owner INTEGER NOT NULL,
    PRIMARY KEY (kind, owner)
) STRICT, WITHOUT ROWID;
