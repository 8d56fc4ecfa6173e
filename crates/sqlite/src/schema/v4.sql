-- Version 4. A message's row changes only when the message is put back: leases have a separate table, and a message
-- that can be received as soon as it is put is found by its number alone.

-- `head`: no message with a lower id can still be received by its number. `due`: no lease ends before this time. Both
-- are bounds that save a search.
ALTER TABLE jobqueue_queue ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobqueue_queue ADD COLUMN due INTEGER NOT NULL DEFAULT 0;

-- A lease in force, or an ended lease that was not noticed yet.
CREATE TABLE jobqueue_lease (
    id            INTEGER PRIMARY KEY,
    until         INTEGER NOT NULL,
    dequeue_count INTEGER NOT NULL,
    receipt       BLOB    NOT NULL
) STRICT;

-- `id` is the queue (from bit 42 on), 1 if the message could be received as soon as it was put (bit 41), and its
-- number. So the messages of a queue are adjacent in the order of their puts, apart from delayed ones. `visible_at`
-- is null for a message that is received by its number, and for a leased one, whose lease has its newest receipt and
-- count.
CREATE TABLE jobqueue_message_v4 (
    id            INTEGER PRIMARY KEY,
    queue         INTEGER NOT NULL,
    inserted_at   INTEGER NOT NULL,
    visible_at    INTEGER,
    expires_at    INTEGER,
    dequeue_count INTEGER NOT NULL,
    leased        INTEGER NOT NULL,
    waiting       INTEGER NOT NULL,
    group_name    TEXT,
    turn          INTEGER,
    receipt       BLOB    NOT NULL,
    text          TEXT    NOT NULL
) STRICT;
INSERT INTO jobqueue_lease (id, until, dequeue_count, receipt)
    SELECT queue << 42 | id, visible_at, dequeue_count, receipt FROM jobqueue_message WHERE leased = 1 AND waiting = 0;
INSERT INTO jobqueue_message_v4
    (id, queue, inserted_at, visible_at, expires_at, dequeue_count, leased, waiting, group_name, turn, receipt, text)
    SELECT queue << 42 | id, queue, inserted_at, iif(leased = 1 AND waiting = 0, NULL, visible_at), expires_at, dequeue_count,
        leased, waiting, group_name, turn, receipt, text
    FROM jobqueue_message;
DROP TABLE jobqueue_message;
ALTER TABLE jobqueue_message_v4 RENAME TO jobqueue_message;
-- Ordered by number, not by row id, if two messages become visible in the same millisecond.
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at, id & 2199023255551)
    WHERE waiting = 0 AND visible_at IS NOT NULL;
CREATE INDEX jobqueue_message_expiry ON jobqueue_message (expires_at, queue) WHERE expires_at IS NOT NULL;
CREATE INDEX jobqueue_message_group ON jobqueue_message (queue, waiting, group_name, turn) WHERE group_name IS NOT NULL;
