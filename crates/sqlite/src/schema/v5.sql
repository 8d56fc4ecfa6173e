-- Version 5. A message of the index of times that is leased is behind all times (2^47 - 1, which is as long as a time of today), and its
-- `visible_at` is not null, so that a lease changes no length. Those that were leased before are null until they are put back.

-- By number, not by row, where two become visible in the same millisecond. Pages and counts of one state need not read the others' rows.
DROP INDEX jobqueue_message_visible;
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at, id & 2199023255551, leased)
    WHERE waiting = 0 AND visible_at IS NOT NULL;
