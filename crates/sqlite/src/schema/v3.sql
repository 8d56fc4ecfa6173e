-- Version 3. It is not released yet, and neither is version 2. A file of either, made by a build in between, is migrated too.

-- `has_groups` is 1 once messages of groups have been put. Other queues need not look for the next message of a group
-- when a message is removed.
ALTER TABLE jobqueue_queue ADD COLUMN has_groups INTEGER NOT NULL DEFAULT 0;

-- A message of a group has a turn. The message with the lowest turn of its group is in the index of visible messages,
-- and all others are `waiting`. When the first one is removed, the next is no longer waiting. (SQLite cannot add a
-- column before `text`, and to read a column after a long text it reads all of the text.)
CREATE TABLE jobqueue_message_v3 (
    id            INTEGER PRIMARY KEY,
    queue         INTEGER NOT NULL,
    visible_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    inserted_at   INTEGER NOT NULL,
    dequeue_count INTEGER NOT NULL,
    leased        INTEGER NOT NULL,
    waiting       INTEGER NOT NULL,
    group_name    TEXT,
    turn          INTEGER,
    receipt       BLOB    NOT NULL,
    text          TEXT    NOT NULL
) STRICT;

-- The base64 texts, decoded by the program, because SQLite cannot decode them.
CREATE TEMP TABLE IF NOT EXISTS jobqueue_decoded (id INTEGER PRIMARY KEY, text TEXT NOT NULL);

-- Messages sent in order before this version had their order in a log outside the queue. It is the order of their ids.
INSERT INTO jobqueue_message_v3
    (id, queue, visible_at, expires_at, inserted_at, dequeue_count, leased, waiting, group_name, receipt, text)
    SELECT m.id, queue, visible_at, expires_at, inserted_at, dequeue_count, leased, 0,
        CASE WHEN q.name NOT LIKE '%-poison' AND json_valid(event) AND json_type(event, '$.inorder') = 'text'
            THEN json_extract(event, '$.key') END, receipt, text
    FROM (SELECT m.*, coalesce(d.text, m.text) AS event FROM jobqueue_message m LEFT JOIN temp.jobqueue_decoded d ON d.id = m.id) m
        LEFT JOIN jobqueue_queue q ON q.id = m.queue;
DROP TABLE temp.jobqueue_decoded;
DROP TABLE jobqueue_message;
ALTER TABLE jobqueue_message_v3 RENAME TO jobqueue_message;
UPDATE jobqueue_message SET turn = id WHERE group_name IS NOT NULL;
CREATE INDEX jobqueue_message_group ON jobqueue_message (queue, waiting, group_name, turn) WHERE group_name IS NOT NULL;
UPDATE jobqueue_message SET waiting = 1 WHERE group_name IS NOT NULL AND EXISTS (SELECT 1 FROM jobqueue_message b
    WHERE b.queue = jobqueue_message.queue AND b.waiting = 0 AND b.group_name = jobqueue_message.group_name
        AND b.turn < jobqueue_message.turn);
UPDATE jobqueue_queue SET has_groups = 1
    WHERE id IN (SELECT queue FROM jobqueue_message WHERE group_name IS NOT NULL);
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at) WHERE waiting = 0;
CREATE INDEX jobqueue_message_expiry ON jobqueue_message (expires_at, queue) WHERE expires_at IS NOT NULL;
INSERT INTO jobqueue_garbage (kind, owner) SELECT 'container', id FROM jobqueue_container WHERE name = 'jobqueue-fifo';
DELETE FROM jobqueue_container WHERE name = 'jobqueue-fifo';
