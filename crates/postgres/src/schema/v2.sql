-- Version 2. A send in SQL, for triggers, psql and other languages.

-- Sends a job in the calling transaction, and returns its id. The rules are those of a send by a program, and the message is an event of the wire
-- format. The names of the arguments are part of the interface, and their order is that of a call without names.
CREATE FUNCTION jobqueue.put(
    queue text, kind text, body jsonb, id text DEFAULT NULL, key text DEFAULT NULL, in_order boolean DEFAULT false,
    delay interval DEFAULT '0', ttl interval DEFAULT NULL, version integer DEFAULT NULL, source text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    longest_hidden CONSTANT bigint := 604800000;
    job text := coalesce(put.id, gen_random_uuid()::text);
    sender text := coalesce(put.source, 'postgres:/' || current_database());
    its_key text := nullif(put.key, '');
    -- None for 'infinity', which is an interval since PostgreSQL 17.
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
        -- XML, in which some storages carry texts, has no place for these two characters.
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
