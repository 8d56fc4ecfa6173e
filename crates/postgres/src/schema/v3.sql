-- Version 3. What the functions call is PostgreSQL's own, whatever the path of the session has: there another role could have put a function or an
-- operator that fits the types of a call better, and it would run as the role that calls.

ALTER FUNCTION jobqueue.claim(integer, bigint, bigint, bigint, bigint, bytea[]) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.next_visible(integer, bigint, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.get(text, bigint, bigint, bigint, bigint[], bigint[], bytea[], bigint, bigint, text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.count_states(integer, bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.put_row(integer, bytea, bytea, bigint, bigint, text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.put_rows(text, bytea[], bigint[], bigint[], text[]) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.pass_on(bigint) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.advance_group() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.delete_rows(text, bigint[], bytea[], boolean[], text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION jobqueue.pass_on_rows(text, bigint[], bytea[], boolean[], text) SET search_path = pg_catalog, pg_temp;

-- Without the setting, which would keep the planner from inlining it. `writing` calls nothing but this one that is not qualified.
CREATE OR REPLACE FUNCTION jobqueue.now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint $$;
