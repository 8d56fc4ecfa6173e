-- Version 5.

-- By number, not by row, where two become visible in the same millisecond. Pages and counts of one state need not read the others' rows.
DROP INDEX jobqueue_message_visible;
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at, id & 2199023255551, leased)
    WHERE waiting = 0 AND visible_at IS NOT NULL;
