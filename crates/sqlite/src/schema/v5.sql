-- Version 5. A leased message in the index of times sorts after all times (2^47 - 1, stored in as many bytes as a
-- current time), and its `visible_at` is not null, so that a lease changes no length. Messages leased before this
-- version have null until they are put back.

-- Ordered by number, not by row id, if two messages become visible in the same millisecond. Pages and counts of one
-- state need not read the rows of other states.
DROP INDEX jobqueue_message_visible;
CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at, id & 2199023255551, leased)
    WHERE waiting = 0 AND visible_at IS NOT NULL;
