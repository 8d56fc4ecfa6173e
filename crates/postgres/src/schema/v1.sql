-- Version 1. Times are milliseconds since 1970, by the server's clock.
--
-- The functions call only functions and operators of PostgreSQL, whatever the `search_path` of the session.
-- In a schema of that path another role could have created a function or an operator that fits the types of a
-- call better, and it would run with the privileges of the calling role.

-- A single row. Programs of version `oldest_program` or newer can use the tables as they are.
CREATE TABLE jobqueue.schema_version (
    only_row       boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version        integer NOT NULL,
    oldest_program integer NOT NULL
);

CREATE TABLE jobqueue.queue (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text COLLATE "C" NOT NULL UNIQUE,
    metadata text COLLATE "C" NOT NULL
);

-- `lease` is 0 while the message has the receipt of its put, which does not expire, 1 while it is leased, and
-- 2 after its holder has put it back. `waiting` is true for a message behind the first message of its group,
-- and `turn` is its place there. A waiting row without a `turn` is a former first message, left by `pass_on`.
-- The place is not the `id`, because by its order the planner could search the whole table for the next
-- message of a group. `group_hash` is the first half of the SHA-256 of the group's name, which may have any
-- length and any characters.
CREATE TABLE jobqueue.message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    visible_at    bigint NOT NULL,
    expires_at    bigint,
    inserted_at   bigint NOT NULL,
    queue         integer NOT NULL,
    dequeue_count integer NOT NULL DEFAULT 0,
    lease         smallint NOT NULL DEFAULT 0,
    waiting       boolean NOT NULL DEFAULT false,
    receipt       bytea NOT NULL,
    group_hash    bytea,
    turn          bigint,
    text          text COLLATE "C" NOT NULL
) WITH (
    -- Rows live for seconds. Vacuum after some hundred dead rows, not after the default of a fifth of the
    -- table, which is nearly empty.
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 500, autovacuum_analyze_scale_factor = 0.02,
    -- Texts over 2 KB are stored in the TOAST table, which does not inherit these settings.
    toast.autovacuum_vacuum_threshold = 500, toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX message_due ON jobqueue.message (queue, visible_at, id) WHERE NOT waiting;
CREATE INDEX message_expiry ON jobqueue.message (expires_at) WHERE expires_at IS NOT NULL;
-- For messages in groups, few of which have a time to live, and for former first messages. The removal of
-- expired messages searches for them separately.
CREATE INDEX message_group_expiry ON jobqueue.message ((waiting::integer), expires_at)
    WHERE group_hash IS NOT NULL AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX message_head ON jobqueue.message (queue, group_hash) WHERE group_hash IS NOT NULL AND NOT waiting;
CREATE INDEX message_waiting ON jobqueue.message (queue, group_hash, turn) WHERE waiting;
CREATE SEQUENCE jobqueue.turn;

-- This function sets no `search_path`, because that would keep the planner from inlining it.
CREATE FUNCTION jobqueue.now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint $$;

-- Returns the time for a row that the calling transaction writes. The transaction gets its number before the
-- clock is read, so a scan that does not know the number began before this time.
CREATE FUNCTION jobqueue.writing() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.pg_current_xact_id();
    RETURN jobqueue.now();
END
$$;

-- Leases the first visible messages from `since` to `until`. Messages that another statement has locked are
-- skipped, and messages that were received since this statement began are checked again. The lock does not
-- conflict with a put into the group of the message.
--
-- `message_was` is the time of the message when the statement began. A message that was changed after that,
-- and passes the check, has a later time, before which there may be messages that this statement has not
-- reached.
--
-- Whatever the statistics say, the table is read in the order of the index until there are enough messages. A
-- bitmap of all waiting messages would be built again for each lease.
--
-- Rows are changed by their ids. A join could read all of an index, which has an entry for each completed
-- message that an open transaction may still see.
CREATE FUNCTION jobqueue.claim(
    of_queue integer, most bigint, visibility bigint, since bigint, until bigint, receipts bytea[]
) RETURNS TABLE (
    message_number bigint, message_was bigint, message_id bigint, message_receipt bytea, message_text text, message_deliveries integer,
    message_time bigint, message_end bigint, lease_end bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    due_ids bigint[];
    due_were bigint[];
    lease_until bigint;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT m.id FROM jobqueue.message m
        WHERE m.queue = of_queue AND NOT m.waiting AND m.visible_at >= since AND m.visible_at <= until
            AND (m.expires_at IS NULL OR m.expires_at > until)
        ORDER BY m.visible_at, m.id LIMIT most FOR NO KEY UPDATE SKIP LOCKED
    ) SELECT array_agg(d.id), array_agg((SELECT o.visible_at FROM jobqueue.message o WHERE o.id = d.id)) INTO due_ids, due_were FROM due d;
    IF due_ids IS NULL THEN
        RETURN;
    END IF;
    lease_until := jobqueue.writing() + visibility;
    RETURN QUERY WITH leased AS (
        UPDATE jobqueue.message m SET visible_at = lease_until, lease = 1, dequeue_count = least(m.dequeue_count, 2147483646) + 1,
            receipt = receipts[array_position(due_ids, m.id)]
        WHERE m.id = ANY (due_ids)
        RETURNING array_position(due_ids, m.id) AS number, m.id, m.receipt, m.text, m.dequeue_count, m.inserted_at, m.expires_at, m.visible_at
    ) SELECT l.number::bigint, due_were[l.number], l.id, l.receipt, l.text, l.dequeue_count, l.inserted_at, l.expires_at, l.visible_at
    FROM leased l ORDER BY l.number;
END
$$;

-- Returns the earliest time, between two times, at which a message becomes visible.
CREATE FUNCTION jobqueue.next_visible(of_queue integer, at bigint, until bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (SELECT m.visible_at FROM jobqueue.message m
        WHERE m.queue = of_queue AND NOT m.waiting AND m.visible_at > at AND m.visible_at <= until
            AND (m.expires_at IS NULL OR m.expires_at > m.visible_at)
        ORDER BY m.visible_at LIMIT 1);
END
$$;

-- Leases up to `most` messages for `visibility` milliseconds under `receipts`. The scan begins at `since`, or
-- earlier if a transaction of `running` has ended, whose messages have times from its `running_since` on, but
-- at most `back` milliseconds ago. The next message is searched for up to `ahead` milliseconds from now.
-- `lock_limit` limits the wait for a lock of a table, as does half of the session's `statement_timeout`. Both
-- are shorter than the time limit of the statement, so that such a wait is not taken for a long scan.
--
-- The time is read before the number in the last column: the number of this transaction or the next one that
-- the server will assign, from which `age` counts. A writer with a greater number has read the clock later.
CREATE FUNCTION jobqueue.get(
    of_queue text, most bigint, visibility bigint, since bigint, running bigint[], running_since bigint[], receipts bytea[],
    ahead bigint, back bigint, lock_limit text
) RETURNS TABLE (
    scan_time bigint, scan_running bigint[], has_queue boolean, next_time bigint,
    message_number bigint, message_was bigint, message_id bigint, message_receipt bytea, message_text text, message_deliveries integer,
    message_time bigint, message_end bigint, lease_end bigint, scan_limit bigint, scan_number bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY WITH at AS MATERIALIZED (
        SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS time, pg_current_snapshot() AS snapshot,
            (SELECT q.id FROM jobqueue.queue q WHERE q.name = of_queue) AS queue, set_config('lock_timeout', round(1000 * extract(
                epoch FROM least(lock_limit::interval, nullif(current_setting('statement_timeout')::interval, '0') / 2)))::text, true)
    ), start AS MATERIALIZED (
        SELECT greatest(at.time - back, least(get.since, (SELECT min(r.since) FROM unnest(running, running_since) AS r (number, since)
            WHERE pg_visible_in_snapshot(r.number::text::xid8, at.snapshot)))) AS since FROM at
    ), leased AS MATERIALIZED (
        SELECT c.* FROM at, start, LATERAL jobqueue.claim(at.queue, most, visibility, start.since, at.time, receipts) AS c
    ), next AS MATERIALIZED (
        SELECT CASE WHEN (SELECT count(*) FROM leased) < most
            THEN jobqueue.next_visible(at.queue, at.time, at.time + ahead) END AS time FROM at
    )
    SELECT at.time, ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(at.snapshot) AS x ORDER BY x), at.queue IS NOT NULL, next.time,
        leased.*, pg_snapshot_xmax(at.snapshot)::text::bigint,
        pg_snapshot_xmax(at.snapshot)::text::bigint + age(pg_snapshot_xmax(at.snapshot)::xid)
    FROM next, at LEFT JOIN leased ON true ORDER BY leased.message_number;
END
$$;

-- Counts the messages of a queue by the states of `MessageState`, and returns the times at which the oldest of
-- those that were put back, and the oldest of those that wait for another message of their group and are not delayed,
-- were inserted. A message that waits for another message of its group counts as waiting, whatever its time. Only
-- the messages of this queue are read, whatever share of the table they are.
CREATE FUNCTION jobqueue.count_states(of_queue integer, at bigint) RETURNS TABLE (
    waiting_messages bigint, delayed_messages bigint, messages_put_back bigint, leased_messages bigint,
    oldest_put_back bigint, oldest_held_up bigint
) LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY SELECT held_up.messages + first.visible, first.delayed, first.put_back, first.leased, first.oldest, held_up.oldest
    FROM (SELECT count(*) AS messages, min(b.inserted_at) FILTER (WHERE b.visible_at <= at OR b.lease <> 0) AS oldest FROM jobqueue.message b
        WHERE b.queue = of_queue AND b.waiting AND (b.expires_at IS NULL OR b.expires_at > at)) AS held_up,
    (SELECT count(*) FILTER (WHERE m.visible_at <= at) AS visible,
        count(*) FILTER (WHERE m.visible_at > at AND m.lease = 0) AS delayed,
        count(*) FILTER (WHERE m.visible_at > at AND m.lease = 2) AS put_back,
        count(*) FILTER (WHERE m.visible_at > at AND m.lease = 1) AS leased,
        min(m.inserted_at) FILTER (WHERE m.visible_at > at AND m.lease = 2) AS oldest
        FROM jobqueue.message m WHERE m.queue = of_queue AND NOT m.waiting AND (m.expires_at IS NULL OR m.expires_at > at)) AS first;
END
$$;

-- Puts a message. In a group it becomes the first message, or waits behind the others. The lock on the first
-- message prevents its deletion until this transaction ends, because the deletion must find the next message
-- of the group. The lock does not hinder claims and renewals.
--
-- A session caches the plans of a function. A plan that was made while the table was empty would later read
-- all of the table, so scans of whole tables are disabled.
CREATE FUNCTION jobqueue.put_row(
    to_queue integer, to_group bytea, with_receipt bytea, delay bigint, ttl bigint, new_text text
) RETURNS TABLE (message_id bigint, message_time bigint) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    at bigint := jobqueue.writing();
BEGIN
    IF to_group IS NULL THEN
        RETURN QUERY INSERT INTO jobqueue.message (queue, visible_at, expires_at, inserted_at, receipt, text)
            VALUES (to_queue, at + delay, at + ttl, at, with_receipt, new_text) RETURNING id, inserted_at;
        RETURN;
    END IF;
    LOOP
        PERFORM FROM jobqueue.message
            WHERE queue = to_queue AND group_hash = to_group AND NOT waiting FOR KEY SHARE;
        IF FOUND THEN
            RETURN QUERY INSERT INTO jobqueue.message
                    (queue, visible_at, expires_at, inserted_at, waiting, receipt, group_hash, turn, text)
                VALUES (to_queue, at + delay, at + ttl, at, true, with_receipt, to_group, nextval('jobqueue.turn'), new_text)
                RETURNING id, inserted_at;
            RETURN;
        END IF;
        RETURN QUERY INSERT INTO jobqueue.message
                (queue, visible_at, expires_at, inserted_at, receipt, group_hash, text)
            VALUES (to_queue, at + delay, at + ttl, at, with_receipt, to_group, new_text)
            ON CONFLICT (queue, group_hash) WHERE group_hash IS NOT NULL AND NOT waiting DO NOTHING
            RETURNING id, inserted_at;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END
$$;

-- Puts messages without groups, in their order.
CREATE FUNCTION jobqueue.put_rows(to_queue text, receipts bytea[], delays bigint[], ttls bigint[], texts text[])
RETURNS TABLE (message_id bigint, message_time bigint) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY WITH at AS MATERIALIZED (SELECT jobqueue.writing() AS time)
        INSERT INTO jobqueue.message (queue, visible_at, expires_at, inserted_at, receipt, text)
        SELECT q.id, at.time + m.delay, at.time + m.ttl, at.time, m.receipt, m.text
        FROM jobqueue.queue q, at, unnest(receipts, delays, ttls, texts) WITH ORDINALITY AS m (receipt, delay, ttl, text, number)
        WHERE q.name = to_queue ORDER BY m.number RETURNING id, inserted_at;
END
$$;

-- Ends the first message of a group and makes the next message the first, while open transactions are adding
-- messages to the group. The caller has locked the first message against changes. Returns false, and changes
-- nothing, unless there is a next message that is committed and not locked.
--
-- A deletion would wait until no such transaction is open. Overlapping sends with the same key could delay
-- that without end, because row locks are not fair. So the row stays, expired, as long as one of these
-- transactions may have added a message behind it. Until then the last message of the group is not deleted.
CREATE FUNCTION jobqueue.pass_on(first_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    of_queue integer;
    of_group bytea;
    next_id bigint;
BEGIN
    -- Separate from the next statement, because a join there could read the waiting messages of all groups.
    SELECT queue, group_hash INTO of_queue, of_group FROM jobqueue.message WHERE id = first_id;
    SELECT m.id INTO next_id FROM jobqueue.message m WHERE m.waiting::integer = 1 AND m.id = (
        SELECT id FROM jobqueue.message
        WHERE queue = of_queue AND group_hash = of_group AND waiting AND turn IS NOT NULL ORDER BY turn LIMIT 1) FOR NO KEY UPDATE SKIP LOCKED;
    IF next_id IS NULL THEN
        RETURN false;
    END IF;
    UPDATE jobqueue.message SET waiting = true, turn = NULL, expires_at = 0, text = '' WHERE id = first_id;
    UPDATE jobqueue.message SET waiting = false, visible_at = greatest(visible_at, jobqueue.writing()) WHERE id = next_id;
    RETURN true;
END
$$;

-- Makes the next message of a group the first, whichever statement deleted the former first message.
--
-- A row whose id is known must not be searched for in the index of waiting messages: where `ANALYZE` saw none
-- of them, the planner takes that index for empty, and reads all of it. `waiting::integer = 1` does not match
-- the index.
CREATE FUNCTION jobqueue.advance_group() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    -- A snapshot from the beginning of the transaction lacks the next message if its sender has committed
    -- since.
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'jobqueue needs transactions that are read committed' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    LOOP
        UPDATE jobqueue.message SET waiting = false, visible_at = greatest(visible_at, jobqueue.writing())
            WHERE waiting::integer = 1 AND id = (SELECT id FROM jobqueue.message
                WHERE queue = OLD.queue AND group_hash = OLD.group_hash AND waiting AND turn IS NOT NULL ORDER BY turn LIMIT 1);
        EXIT WHEN FOUND;
        -- This waits for the transactions that have locked a former first message. The messages that they
        -- have added come next.
        DELETE FROM jobqueue.message WHERE queue = OLD.queue AND group_hash = OLD.group_hash AND waiting AND turn IS NULL;
        -- There may be a next message now, or another transaction has just removed it, or there is none.
        PERFORM FROM jobqueue.message WHERE queue = OLD.queue AND group_hash = OLD.group_hash AND waiting;
        EXIT WHEN NOT FOUND;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE TRIGGER advance_group AFTER DELETE ON jobqueue.message FOR EACH ROW
    WHEN (OLD.group_hash IS NOT NULL AND NOT OLD.waiting) EXECUTE FUNCTION jobqueue.advance_group();

-- Deletes messages whose receipts are valid. `late` says which expired receipts are accepted. Messages that
-- another transaction has locked are skipped, and `lock_limit` limits each wait for the lock of the next
-- message of a group. Refused messages are not locked, because a get would skip them. The clock is read again
-- once the locks are held. The first message of a group with the row of a former first message is skipped:
-- the trigger would wait for the transactions that have locked that row, and the whole list would wait with
-- it.
--
-- Rows are found one by one, for the same reason as in a claim. For this reason, too, the queue is compared
-- without its index.
CREATE FUNCTION jobqueue.delete_rows(of_queue text, ids bigint[], receipts bytea[], late boolean[], lock_limit text)
RETURNS TABLE (message_id bigint, message_receipt bytea, advances boolean) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    held_ids bigint[];
    held_receipts bytea[];
    held_late boolean[];
BEGIN
    WITH at AS MATERIALIZED (
        SELECT id, set_config('lock_timeout', lock_limit, true) FROM jobqueue.queue WHERE name = of_queue
    ) SELECT array_agg(w.id), array_agg(w.receipt), array_agg(w.late) INTO held_ids, held_receipts, held_late
    FROM at, unnest(ids, receipts, delete_rows.late) AS w (id, receipt, late), LATERAL (
        SELECT FROM jobqueue.message m WHERE m.id = w.id AND m.receipt = w.receipt AND m.queue + 0 = at.id
            AND (m.expires_at IS NULL OR m.expires_at > jobqueue.now()) AND (w.late OR m.lease = 0 OR m.visible_at > jobqueue.now())
            AND (m.waiting OR m.group_hash IS NULL OR NOT EXISTS (SELECT FROM jobqueue.message l
                WHERE l.queue = m.queue AND l.group_hash = m.group_hash AND l.waiting AND l.turn IS NULL OFFSET 0))
        OFFSET 0 FOR UPDATE SKIP LOCKED
    ) AS held;
    RETURN QUERY DELETE FROM jobqueue.message m
        WHERE m.id = ANY (held_ids) AND m.receipt = held_receipts[array_position(held_ids, m.id)]
            AND (m.expires_at IS NULL OR m.expires_at > jobqueue.now())
            AND (held_late[array_position(held_ids, m.id)] OR m.lease = 0 OR m.visible_at > jobqueue.now())
        RETURNING m.id, m.receipt, m.group_hash IS NOT NULL;
END
$$;

-- Ends messages that are the first of groups to which open transactions are adding messages, by the rules of
-- `delete_rows`.
CREATE FUNCTION jobqueue.pass_on_rows(of_queue text, ids bigint[], receipts bytea[], late boolean[], lock_limit text)
RETURNS TABLE (message_id bigint, message_receipt bytea, advances boolean) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY WITH at AS MATERIALIZED (
        SELECT id, set_config('lock_timeout', lock_limit, true) FROM jobqueue.queue WHERE name = of_queue
    ), held AS MATERIALIZED (
        SELECT w.id, w.receipt FROM at, unnest(ids, receipts, pass_on_rows.late) AS w (id, receipt, late), LATERAL (
            SELECT FROM jobqueue.message m WHERE m.id = w.id AND m.receipt = w.receipt AND m.queue + 0 = at.id
                AND (m.expires_at IS NULL OR m.expires_at > jobqueue.now()) AND (w.late OR m.lease = 0 OR m.visible_at > jobqueue.now())
                AND m.group_hash IS NOT NULL AND m.waiting::integer = 0
            OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED
        ) AS locked
    ) SELECT h.id, h.receipt, true FROM held h WHERE jobqueue.pass_on(h.id);
END
$$;

CREATE TABLE jobqueue.container (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- `revision` changes with every change of the row, and `etag` with every write of the content. A blob without
-- a `lease_id` is available.
CREATE SEQUENCE jobqueue.revision;
CREATE TABLE jobqueue.blob (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    container    integer NOT NULL,
    name         text COLLATE "C" NOT NULL,
    revision     bigint NOT NULL,
    etag         bigint NOT NULL,
    modified_at  bigint NOT NULL,
    length       bigint NOT NULL,
    lease_millis bigint,
    lease_until  bigint,
    lease_id     text COLLATE "C",
    metadata     text COLLATE "C" NOT NULL,
    content      bytea NOT NULL,
    UNIQUE (container, name)
) WITH (
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_threshold = 500, toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0
);
-- Payloads are often compressed already.
ALTER TABLE jobqueue.blob ALTER COLUMN content SET STORAGE EXTERNAL;

-- Deleted queues and containers, whose rows are removed step by step. Those that were not `checked` for the
-- longest time come first.
CREATE TABLE jobqueue.garbage (
    kind     text COLLATE "C" NOT NULL CHECK (kind IN ('queue', 'container')),
    owner    integer NOT NULL,
    since    bigint NOT NULL,
    checked  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, owner)
);
CREATE INDEX garbage_checked ON jobqueue.garbage (checked);

-- Ended jobs. Times are microseconds since 1970. `number` is a random number of the entry, so that an entry
-- that is written twice is one row.
CREATE TABLE jobqueue.journal (
    ended    bigint NOT NULL,
    number   bigint NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    source   text COLLATE "C" NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C",
    outcome  text COLLATE "C" NOT NULL,
    reason   text COLLATE "C",
    attempt  bigint NOT NULL,
    inserted bigint NOT NULL,
    ran      bigint NOT NULL,
    error    text COLLATE "C",
    worker   text COLLATE "C" NOT NULL,
    trace    text COLLATE "C",
    PRIMARY KEY (ended, number)
) WITH (
    -- Each expiry begins at the oldest rows, and has to pass dead rows.
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02
);
CREATE INDEX journal_id ON jobqueue.journal (id, ended);
CREATE INDEX journal_key ON jobqueue.journal (key, ended) WHERE key IS NOT NULL;
CREATE INDEX journal_failure ON jobqueue.journal (ended) WHERE outcome <> 'completed';

-- Sends a job in the calling transaction, and returns its id. The rules are the same as for a send by a
-- program, and the message is an event in the wire format. The names and the order of the arguments are part
-- of the interface.
CREATE FUNCTION jobqueue.put(
    queue text, kind text, body jsonb, id text DEFAULT NULL, key text DEFAULT NULL, in_order boolean DEFAULT false,
    delay interval DEFAULT '0', ttl interval DEFAULT NULL, version integer DEFAULT NULL, source text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest_hidden CONSTANT bigint := 604800000;
    job text := coalesce(put.id, gen_random_uuid()::text);
    sender text := coalesce(put.source, 'postgres:/' || current_database());
    its_key text := nullif(put.key, '');
    -- `NULL` for 'infinity', which is an interval since PostgreSQL 17.
    wait bigint := CASE WHEN isfinite(put.delay) THEN ceil(extract(epoch FROM put.delay) * 1000) END;
    life bigint := CASE WHEN isfinite(put.ttl) THEN ceil(extract(epoch FROM put.ttl) * 1000) END;
    now timestamp := clock_timestamp() AT TIME ZONE 'UTC';
    form CONSTANT text := 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"';
    queue_number integer;
    attributes text;
    event text;
    wrong text;
BEGIN
    SELECT q.id INTO queue_number FROM jobqueue.queue q WHERE q.name = put.queue;
    wrong := CASE
        WHEN queue_number IS NULL THEN format('there is no queue %L; a program that opens it creates it', put.queue)
        WHEN coalesce(put.kind, '') = '' THEN 'a job needs a kind, the declared name of its message type'
        WHEN octet_length(job) NOT BETWEEN 1 AND 1024 THEN 'an id has 1 to 1,024 bytes'
        WHEN octet_length(sender) NOT BETWEEN 1 AND 1024 THEN 'a source has 1 to 1,024 bytes'
        WHEN put.version < 1 THEN 'a version is 1 or greater'
        WHEN put.in_order AND its_key IS NULL THEN 'a job in order needs a key'
        WHEN put.in_order AND life IS NOT NULL THEN
            'a job that is sent in order cannot have a time to live: the jobs behind it would wait for it'
        WHEN wait IS NULL OR wait < 0 OR wait > 316224000000 THEN 'a delay is 0 to 10 years'
        WHEN NOT isfinite(put.ttl) THEN 'a time to live is finite; without one a job does not expire'
        WHEN life < 1000 OR life <= wait THEN 'the time to live must be at least 1 second and longer than the delay'
    END;
    IF wrong IS NULL THEN
        attributes := json_strip_nulls(json_build_object(
            'specversion', '1.0', 'id', job, 'source', sender, 'type', put.kind, 'datacontenttype', 'application/json',
            'schemaversion', put.version, 'time', to_char(now, form), 'key', its_key,
            'inorder', CASE WHEN put.in_order THEN 'true' END,
            'notbefore', CASE WHEN wait > longest_hidden THEN to_char(now + make_interval(secs => wait / 1000.0), form) END
        ))::text;
        -- Some storages carry texts in XML, which does not allow these two characters.
        event := replace(replace(left(attributes, -1) || ',"data":' || coalesce(put.body, 'null')::text || '}',
            chr(65534), '\ufffe'), chr(65535), '\uffff');
        wrong := CASE
            WHEN octet_length(attributes) > 16000 THEN 'the id, source, kind and key are too large'
            WHEN octet_length(event) > 65536 OR octet_length(event) + 4 * (length(event) - length(replace(event, '&', '')))
                + 3 * (length(event) - length(translate(event, '<>', ''))) > 131000 THEN
                'the body is too large: an event has at most 65,536 bytes; refer to larger data'
        END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'jobqueue: %', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM FROM jobqueue.put_row(queue_number, CASE WHEN put.in_order THEN substr(sha256(convert_to(its_key, 'UTF8')), 1, 16) END,
        uuid_send(gen_random_uuid()), least(wait, longest_hidden), life, event);
    PERFORM pg_notify('jobqueue_' || n.nspname, '- ' || put.queue)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'jobqueue.message'::regclass;
    RETURN job;
END
$$;
