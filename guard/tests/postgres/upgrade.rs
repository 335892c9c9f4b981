use ringfence_guard::postgres::{self, high, touch};
use ringfence_guard::{Admission, High};
use ringfence_harness::PostgresServer;
use ringfence_wire::Token;

use crate::database::{connect, exclusive, guarded, key, refused};

/// What an earlier file had made, as far as it is not replaced, and a trigger as it told its users to make.
const EARLIER: &str = "
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
    assert_eq!(touch(&client, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted);
    client.batch_execute(postgres::SQL).await.unwrap();
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::new(Token(7)).unwrap());
}

#[tokio::test]
async fn an_earlier_install_keeps_its_numbers_and_its_triggers_and_can_replace_them() {
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
