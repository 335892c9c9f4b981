-- The guard rule of Ringfence for PostgreSQL 13 and later (tested with 15). To be run once per database, by the role that
-- is to own it; running it again changes nothing but the functions:
--
--     psql -v ON_ERROR_STOP=1 --single-transaction -f postgres.sql
--     GRANT USAGE ON SCHEMA ringfence TO the_writers;
--
-- A holder shows the token of its lease, and the fence that its grant or renewal gave for the key (of an exclusive
-- lease that is the token; NULL stands for it). Every token below the number kept here is dead.
--
-- 1. THE FUNCTION FORM: inside the transaction that writes, before its first read.
--
--     BEGIN;
--     SELECT ringfence.claim('orders/42', 7, 7);       -- an error, RF412, if the token is stale
--     SELECT … ; UPDATE … ; INSERT … ;                 -- any tables
--     COMMIT;
--
--    `claim` raises the number and keeps its row locked until the transaction ends. A newer holder's claim waits for
--    that, and an older one's finds the number raised: whatever is written lands before the newer holder reads, or not
--    at all. `SELECT accepted, high FROM ringfence.admit('orders/42', 7, 7)` is the same without the error.
--    - *Touch* is the same call, in a transaction of its own or in the one that reads. The read must be a later
--      statement, on the primary: the statement of the claim itself still sees what was there before it waited.
--    - Under REPEATABLE READ and SERIALIZABLE the claim comes first of all; a change under way meanwhile is then a
--      serialization failure (40001), as usual there, and the transaction is to be repeated.
--    - One transaction at a time gets past the claim of a key; shared holders, too, wait for one another. A client that
--      pauses inside a transaction holds up the next holder until the server ends it: set
--      idle_in_transaction_session_timeout.
--    - Whoever claims several keys claims them in one order (sorted), lest two wait for each other.
--
-- 2. THE COLUMN FORM: for a table with a row per key. The number is a column of the row; nothing else in this file is
--    needed.
--
--     ALTER TABLE orders ADD COLUMN high bigint NOT NULL DEFAULT 0;
--     UPDATE orders SET high = GREATEST(high, :fence)            WHERE id = :id AND high <= :token RETURNING *;  -- touch
--     UPDATE orders SET high = GREATEST(high, :fence), total = … WHERE id = :id AND high <= :token;              -- write
--     SELECT high FROM orders WHERE id = :id;
--     UPDATE orders SET high = :fence WHERE id = :id;                                                            -- reset
--
--    No row: stale, or there is no such row. An UPDATE that waited for another one looks at the row again as that left
--    it, so the comparison is made with the number that stands when the row is written. This holds for columns of this
--    very row only: a comparison with another table, in a subquery or in a SELECT before, is made with what stood there
--    when the statement began, and guards nothing. A row that is deleted takes its number with it: mark it instead.
--
-- 3. THE TRIGGER FORM: for tables that writers must not change unguarded. A write without a claim of its key in the same
--    transaction is an error, RF428.
--
--     CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON settings   -- one key for the table
--       FOR EACH STATEMENT EXECUTE FUNCTION ringfence.demand_claim('settings');
--     CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE ON orders                 -- a key per row: orders/<id>
--       FOR EACH ROW EXECUTE FUNCTION ringfence.demand_claim('orders/', 'id');
--
--    The trigger looks after mistakes, not after enemies: a writer can pretend to have claimed.
--
-- Nothing here lasts longer than the transaction, so transaction pooling (PgBouncer) is fine.
--
-- When someone has shown a number that was no token (a timestamp, say) nobody gets in any more. An operator asks the
-- cluster for the fence of the key and sets that: SELECT ringfence.reset('orders/42', 8);
--
-- The number is as durable as the rows beside it: a server that loses acknowledged commits (synchronous_commit = off and
-- a crash, a failover to an asynchronous replica) loses numbers too, and may let a stale token in until the live holder
-- shows its own again.

CREATE SCHEMA IF NOT EXISTS ringfence;

CREATE TABLE IF NOT EXISTS ringfence.guard (
  key  text   PRIMARY KEY,
  high bigint NOT NULL CONSTRAINT high_is_a_token CHECK (high BETWEEN 1 AND 9007199254740991)
);

-- The rule. Whether the claim is accepted, and the number that then stands.
--
-- If the row is there, or is just being made by another transaction, ON CONFLICT waits until its last writer has ended,
-- locks it and judges it as it is then. It is written even if the number stays, so that a transaction with an older
-- snapshot fails rather than reads what was there before.
CREATE OR REPLACE FUNCTION ringfence.admit(key text, token bigint, fence bigint DEFAULT NULL,
                                           OUT accepted boolean, OUT high bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  fence := coalesce(admit.fence, admit.token);
  IF admit.token IS NULL OR admit.token NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE 'token: % is no token: those are from 1 to 2^53 - 1', admit.token USING ERRCODE = 'invalid_parameter_value';
  ELSIF admit.fence NOT BETWEEN 1 AND admit.token THEN
    RAISE 'fence: % is no fence of the live token %', admit.fence, admit.token USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO ringfence.guard AS g (key, high) VALUES (admit.key, admit.fence)
    ON CONFLICT (key) DO UPDATE SET high = greatest(g.high, excluded.high) WHERE g.high <= admit.token
    RETURNING g.high INTO high;
  accepted := FOUND;
  IF accepted THEN
    -- What demand_claim looks for. The id tells a claim of this transaction from a setting that was left behind.
    PERFORM set_config('ringfence.claims', (ringfence.claims() || jsonb_build_object(
      admit.key, pg_current_xact_id()::text))::text, true);
  ELSE
    SELECT g.high INTO high FROM ringfence.guard AS g WHERE g.key = admit.key;
  END IF;
END $$;

-- The same, but a stale token is an error: nothing that the transaction writes can land then.
CREATE OR REPLACE FUNCTION ringfence.claim(key text, token bigint, fence bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  answer record;
BEGIN
  SELECT * INTO answer FROM ringfence.admit(claim.key, claim.token, claim.fence);
  IF NOT answer.accepted THEN
    RAISE 'stale token: of %, every token below % is dead', claim.key, answer.high USING ERRCODE = 'RF412';
  END IF;
END $$;

-- The number of a key; NULL if nobody has claimed it yet.
CREATE OR REPLACE FUNCTION ringfence.high(key text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT g.high FROM ringfence.guard AS g WHERE g.key = high.key
$$;

-- Sets the number, down as well. For operators only.
CREATE OR REPLACE FUNCTION ringfence.reset(key text, fence bigint) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO ringfence.guard (key, high) VALUES (reset.key, reset.fence)
    ON CONFLICT (key) DO UPDATE SET high = excluded.high
$$;
REVOKE EXECUTE ON FUNCTION ringfence.reset FROM PUBLIC;

-- The keys that this transaction has claimed.
CREATE OR REPLACE FUNCTION ringfence.claims() RETURNS jsonb
LANGUAGE sql STABLE AS $$
  SELECT coalesce(nullif(current_setting('ringfence.claims', true), ''), '{}')::jsonb
$$;

-- The trigger: by statement demand_claim('key'), by row demand_claim('prefix', 'column').
CREATE OR REPLACE FUNCTION ringfence.demand_claim() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
  claims jsonb := ringfence.claims();
  keys text[] := ARRAY[TG_ARGV[0]];
  key text;
BEGIN
  IF TG_LEVEL = 'ROW' THEN
    keys := ARRAY[TG_ARGV[0] || (to_jsonb(OLD) ->> TG_ARGV[1]), TG_ARGV[0] || (to_jsonb(NEW) ->> TG_ARGV[1])];
    keys := keys[CASE TG_OP WHEN 'INSERT' THEN 2 ELSE 1 END : CASE TG_OP WHEN 'DELETE' THEN 1 ELSE 2 END];
  END IF;
  FOREACH key IN ARRAY keys LOOP
    IF claims ->> key IS DISTINCT FROM pg_current_xact_id()::text THEN
      RAISE 'token required: this transaction has not claimed %', coalesce(key, 'a row without a key')
        USING ERRCODE = 'RF428', HINT = 'SELECT ringfence.claim(key, token, fence) before its first read.';
    END IF;
  END LOOP;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
