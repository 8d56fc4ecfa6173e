//! Functions and operators of other roles in a schema of the session's path: none of them runs as the role of
//! a worker.

use jobqueue::Storage;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue_test_support::postgres::Postgres;

use crate::permissions::{statements, use_all_features};
use crate::{connect, connect_to, own_schema};

/// Creates functions and operators in `public` that fit each pair of types exactly, as those of PostgreSQL
/// with `anyarray`, `"any"` or wider types do not. A call of one fails, and advances a sequence also if its
/// transaction is rolled back.
const TRAPS: &str = "CREATE SEQUENCE public.calls;
    GRANT USAGE ON SEQUENCE public.calls TO PUBLIC;
    DO $do$ DECLARE
        types text[] := '{smallint,integer,bigint,numeric,double precision,text,bytea,boolean,timestamptz,oid,name,xid,smallint[],bigint[],text[],bytea[]}';
        names text[] := '{age,array_agg,array_position,count,floor,format,length,lower,max,min,nextval,pg_notify,starts_with,to_regclass,unnest}';
        operators text[] := '{=,<>,<,>,<=,>=,+,-,*,||,&&}';
        body text := 'BEGIN PERFORM pg_catalog.nextval(''public.calls''); RAISE EXCEPTION ''a function of another role ran''; END';
        one text; other text; name text; result text;
    BEGIN
        FOREACH one IN ARRAY types LOOP
            FOREACH name IN ARRAY names LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS bigint LANGUAGE plpgsql AS %L', name, one, body);
            END LOOP;
            FOREACH other IN ARRAY types LOOP
                FOREACH name IN ARRAY names LOOP
                    EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS bigint LANGUAGE plpgsql AS %L', name, one, other, body);
                END LOOP;
                FOREACH result IN ARRAY ARRAY['boolean', 'bigint'] LOOP
                    EXECUTE format('CREATE FUNCTION public.to_%s(%s, %s) RETURNS %1$s LANGUAGE plpgsql AS %4$L', result, one, other, body);
                END LOOP;
                FOREACH name IN ARRAY operators LOOP
                    result := CASE WHEN name IN ('+', '-', '*', '||') THEN 'bigint' ELSE 'boolean' END;
                    EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.to_%s)', name, one, other, result);
                END LOOP;
            END LOOP;
        END LOOP;
    END $do$";

async fn has_called_one(client: &Client) -> bool {
    client.query_one("SELECT is_called FROM public.calls", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn function_that_another_role_has_put_into_the_path_is_not_called() {
    let (_, schema) = own_schema();
    let (database, role) = (format!("db_{schema}"), format!("role_{schema}"));
    let server = Postgres::shared();
    connect(server).await.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let address = server.connection_string().replace("/postgres?", &format!("/{database}?"));
    let owner = connect_to(&address).await;
    owner.batch_execute(TRAPS).await.unwrap();
    let options = |address: &str| Options::from_connection_string(address).unwrap().schema(&schema);

    drop(Storage::open(options(&address)).await.unwrap());
    assert!(!has_called_one(&owner).await, "the migration has");
    owner.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    for grant in statements("GRANT", &schema) {
        owner.batch_execute(&format!("{grant} TO {role}")).await.unwrap();
    }
    let address = address.replace("//postgres@", &format!("//{role}@"));
    let storage = Storage::open(options(&address)).await.unwrap();
    use_all_features(&storage).await;
    storage.queues().storage_advice().await.unwrap();
    assert!(!has_called_one(&owner).await);

    // A call without a schema does.
    let caller = connect_to(&address).await;
    for call in
        ["array_position(ARRAY[1::bigint], 1::bigint)", "1::smallint * 1::numeric", "unnest(ARRAY['a'])"]
    {
        assert!(caller.query(&format!("SELECT {call}"), &[]).await.is_err(), "{call}");
    }
    assert!(has_called_one(&owner).await);
}

/// Returns the functions of a schema whose calls are looked up by the path of the session, with their texts.
async fn open_functions(client: &Client, schema: &str) -> Vec<(String, String)> {
    let sql = "SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = to_regnamespace($1)
        AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false) ORDER BY proname";
    client.query(sql, &[&schema]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Returns the names before a parenthesis that are neither of a schema nor a form of SQL.
fn unqualified(text: &str) -> Vec<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    let before = text.split('(').rev().skip(1);
    let names = before.map(|part| part.rsplit(|c| !is_of_name(c)).next().unwrap());
    names
        .filter(|name| !name.is_empty() && !name.contains('.') && !["extract", "OPERATOR"].contains(name))
        .collect()
}

#[tokio::test]
async fn each_function_of_the_schema_has_a_path_or_calls_by_schema() {
    let (options, schema) = own_schema();
    drop(Storage::open(options).await.unwrap());
    let client = connect(Postgres::shared()).await;
    let open = open_functions(&client, &schema).await;
    // The server writes the text of these into the statements that call them.
    assert_eq!(open.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["now", "writing"]);
    for (name, text) in &open {
        assert_eq!(unqualified(text), Vec::<&str>::new(), "{name}");
    }
}
