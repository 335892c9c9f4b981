use ringfence_guard::postgres::{self, high, touch};
use ringfence_guard::{Admission, High};
use ringfence_harness::PostgresServer;
use ringfence_wire::Token;

use crate::database::{code, connect, exclusive, guarded, key, refused};

/// What an earlier version of the file created and this one does not replace, and a trigger as it told users to create.
pub(crate) const EARLIER: &str = "
    CREATE SCHEMA ringfence;
    CREATE TABLE ringfence.guard (
      key  text   PRIMARY KEY,
      high bigint NOT NULL CONSTRAINT high_is_a_token CHECK (high BETWEEN 1 AND 9007199254740991)
    );
    INSERT INTO ringfence.guard VALUES ('orders/42', 7);
    CREATE FUNCTION ringfence.claims() RETURNS jsonb LANGUAGE sql STABLE AS $$
      SELECT coalesce(nullif(current_setting('ringfence.claims', true), ''), '{}')::jsonb
    $$;
    CREATE FUNCTION ringfence.claim(key text, token bigint, fence bigint DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql AS $$ BEGIN END $$;
    CREATE FUNCTION ringfence.demand_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
    CREATE TABLE orders (id int, total int);
    INSERT INTO orders VALUES (42, 0);
    CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE ON orders
      FOR EACH ROW EXECUTE FUNCTION ringfence.demand_claim('orders/', 'id');";

#[tokio::test]
async fn installing_it_again_keeps_the_numbers() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    assert_eq!(touch(&client, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted(()));
    client.batch_execute(postgres::SQL).await.unwrap();
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::new(Token(7)).unwrap());
}

#[tokio::test]
async fn an_earlier_version_keeps_its_numbers_and_triggers_and_can_replace_them() {
    let server = PostgresServer::start().await.unwrap();
    let client = connect(&server.url()).await;
    client.batch_execute(EARLIER).await.unwrap();
    client.batch_execute(postgres::SQL).await.unwrap();
    let replace = "BEGIN; DROP TRIGGER guarded ON orders;
                   SELECT ringfence.protect('orders', 'orders/', 'id'); COMMIT";
    for then in ["", replace] {
        client.batch_execute(then).await.unwrap();
        let (late, live) =
            ("SELECT ringfence.claim('orders/42', 5)", "SELECT ringfence.claim('orders/42', 7)");
        let write = "UPDATE orders SET total = total + 1";
        assert_eq!(refused(&client, write).await, "RF428");
        assert_eq!(refused(&client, &format!("{late}; {write}")).await, "RF412");
        client.batch_execute(&format!("BEGIN; {live}; {write}; COMMIT")).await.unwrap();
    }
}

/// Objects created in advance by another role would run with the rights of the guard's owner.
#[tokio::test]
async fn a_schema_with_objects_of_another_role_is_refused() {
    let server = PostgresServer::start().await.unwrap();
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE ROLE other").await.unwrap();
    let table = "CREATE TABLE ringfence.guard (key text PRIMARY KEY, high bigint NOT NULL)";
    let function = "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'";
    for (made, why) in [
        (
            "CREATE SCHEMA ringfence AUTHORIZATION other".to_owned(),
            "the schema ringfence does not belong to postgres",
        ),
        (
            format!("CREATE SCHEMA ringfence; {table}; ALTER TABLE ringfence.guard OWNER TO other"),
            "the relation ringfence.",
        ),
        (
            "CREATE SCHEMA ringfence; CREATE FUNCTION ringfence.high(key text) RETURNS bigint LANGUAGE sql
             AS 'SELECT 1::bigint'; ALTER FUNCTION ringfence.high OWNER TO other"
                .to_owned(),
            "the function ringfence.high does not belong",
        ),
        (
            format!(
                "CREATE SCHEMA ringfence; {table}; {function};
                 CREATE TRIGGER more BEFORE INSERT ON ringfence.guard FOR EACH ROW EXECUTE FUNCTION public.f()"
            ),
            "the trigger more on ringfence.guard is not of this file",
        ),
        (
            format!("CREATE SCHEMA ringfence; {table}; CREATE RULE more AS ON INSERT TO ringfence.guard DO NOTHING"),
            "the rule more on ringfence.guard is not of this file",
        ),
    ] {
        client.batch_execute(&made).await.unwrap();
        let error = client.batch_execute(postgres::SQL).await.expect_err(why);
        assert_eq!(code(&error), "42501", "{why}");
        let message = error.as_db_error().unwrap().message();
        assert!(message.starts_with(why), "{message}");
        client.batch_execute("DROP SCHEMA ringfence CASCADE").await.unwrap();
    }
    client.batch_execute(postgres::SQL).await.unwrap();
}
