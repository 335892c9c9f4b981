-- The guard rule of Ringfence for PostgreSQL 13 and later (tested with 15). Run it once per database, as the role that
-- will own it, and again after each update, which keeps all numbers:
--
--     psql -v ON_ERROR_STOP=1 --single-transaction -f postgres.sql
--     GRANT USAGE ON SCHEMA ringfence TO the_writers;
--
-- It fails if the schema or anything in it belongs to another role, or if the table has foreign triggers or rules. A writer
-- without USAGE gets 42501 (permission denied for schema ringfence) instead of RF428.
--
-- A holder shows the token of its lease and the fence that its grant or last renewal gave for the key (`keys[].fence`). A
-- fence of NULL means the token, which is right for exclusive leases. Every token below the stored number is dead. Keys are
-- compared as bytes, whatever the collation of the text that a caller passes. No number is ever removed: the table has a row for
-- each key that was ever shown.
--
-- 1. THE TRIGGER FORM. Use this one unless you know why not: nobody can forget it. A write to the table without a claim
--    of its key in the same transaction is an error, RF428. The owner of the table turns it on, once:
--
--     SELECT ringfence.protect('orders', 'orders/', 'id');   -- a key for each row: orders/<id>
--     SELECT ringfence.protect('settings', 'settings');      -- or one key for the whole table
--
--    A new holder touches before its first read, and every write claims in its own transaction. Both fail with RF412 if
--    the token is stale:
--
--     SELECT ringfence.touch('orders/42', 7, 7);             -- then read
--     BEGIN;
--     SELECT ringfence.claim('orders/42', 7, 7);
--     UPDATE orders SET total = 99 WHERE id = 42;            -- or INSERT, or DELETE
--     COMMIT;
--
--    - The triggers run AFTER each row was written, so no other trigger can change the id later. Their cost does not depend on
--      the row's size.
--    - They cover declarative partitions, inheriting tables, and writes that go to one of these directly. After you make a
--      new partition or an inheriting table, call `protect` again, with the same arguments: a new partition is open to TRUNCATE
--      until then, a new inheriting table to everything.
--    - TRUNCATE needs the claim of a table with one key. Where each row has its own key, it is always refused.
--    - An id that the INSERT would generate (serial, identity) is not known before it: take the number first, acquire and claim
--      its key, and insert it (with OVERRIDING SYSTEM VALUE if it is GENERATED ALWAYS):
--      SELECT nextval(pg_get_serial_sequence('orders', 'id'));
--    - A dump of the table alone (pg_dump -t) has no numbers, and where this schema is missing it makes a table without
--      triggers, after an error. These tables have them:
--      SELECT tgrelid::regclass FROM pg_trigger WHERE tgname = 'ringfence_new' AND tgenabled IN ('O', 'A');
--    - The id is smallint, int, bigint, numeric, text, varchar, char, name, uuid, or a domain over one of these: the text of
--      other types depends on the settings of the session. After renaming the column, call `protect` again.
--    - They guard against mistakes, not against attackers. A role that may disable triggers, drop the table, detach a partition
--      or set session_replication_role bypasses them.
--    - `protect` replaces the guard that an earlier call gave the table. It makes the triggers ringfence_new, _old, _moved,
--      _truncate and, by connection, _claim; drop them to end the protection.
--
--    WRITERS THAT NOBODY CHANGES. The owner of the table says so:
--
--     SELECT ringfence.protect('orders', 'orders/', 'id', by_connection => true);
--
--    Then a statement that writes to the table claims by itself, before it locks rows, what a setting of its connection names: the
--    keys of this table, in the order of their bytes. `ringfence lock KEY --postgres -- PROGRAM` touches the keys, and starts PROGRAM with
--    the setting in PGOPTIONS. It is a key, percent-encoded, and its token, with a comma before the next:
--
--     PGOPTIONS='-c ringfence.may_claim=orders%2F42=7' psql -c 'CALL ringfence.touch_all()'   # each key of the setting, then read
--     PGOPTIONS='-c ringfence.may_claim=orders%2F42=7' psql -c 'UPDATE orders SET total = 99 WHERE id = 42'
--
--    - A stale token is RF412, no claim RF428, as by hand; who claims by hand needs no setting.
--    - All that transactions claim stays theirs until they end: of connections with the same key in their setting, one at a time writes to
--      the table. A statement that waits for that sees what was committed before it began to wait.
--    - A stale writer waits for nobody, and is refused at once. But two connections of one lease, or under REPEATABLE READ, can deadlock if
--      one locks what the other claims before its own first write: rows by SELECT ... FOR UPDATE, another such table, or a claim by
--      hand. PostgreSQL ends one of the two, perhaps that of the live holder (40P01): try again.
--    - For exclusive leases: the fence of a shared one rises, and a setting does not.
--    - One lease, one process, its own connections. RESET and DISCARD ALL restore the setting of the connection's start. A `SET
--      ringfence.may_claim` is as good as a claim by hand: never send one through a pooler, where others inherit it.
--    - PgBouncer refuses connections with settings or, with ignore_startup_parameters = options, drops them: writes are RF428 then. Connect
--      to the server itself.
--    - A partition or an inheriting table that was made since `protect`, and is written to directly, claims nothing, and refuses.
--
-- 2. THE FUNCTION FORM: the same claim without the triggers, for any number of tables. YOU MUST OPEN A TRANSACTION: in
--    autocommit, the default of psql, Django, JDBC and Go's database/sql, the claim ends with its own statement, and the
--    writes after it are not guarded at all. `claim` fails with 25P01 if it can detect this: if the statement is nothing but
--    the call, and comments. Only the trigger form detects it every time.
--
--    `claim` raises the number and keeps its row locked until the transaction ends. A newer holder's claim waits for
--    that, and an older one's finds the number raised: every write lands before the newer holder reads, or not at all. `SELECT accepted, high FROM ringfence.admit('orders/42', 7, 7)` is the same without any error.
--    - The read must be a later statement than the claim or touch, on the primary: the statement of the claim itself
--      still sees the state from before it waited.
--    - Under REPEATABLE READ and SERIALIZABLE the claim must be the first statement. A concurrent change is then a
--      serialization failure (40001), as usual there: retry the transaction.
--    - One transaction at a time holds the claim of a key; shared holders, too, wait for one another. A client that
--      pauses inside a transaction blocks the next holder until the server ends it: set
--      idle_in_transaction_session_timeout.
--    - Send claims and writes as separate statements. Each claim copies the text of the message that contains it: thousands
--      of claims in one long string take quadratic time (16,000: about 2 s). One SELECT may make many.
--    - Claim several keys in sorted order, so that two transactions never wait for each other.
--
-- 3. THE COLUMN FORM: for a table with a row per key. The number is a column of the row, each statement contains the rule,
--    and nothing else in this file is needed. See "SQL, by a column" in guard/README.md for all statements. It cannot
--    protect the table from a statement that leaves the rule out, and it needs tombstones if rows are created or deleted.
--
-- Claims are stored in the table with the transaction that made them. Nothing remains on the connection, so transaction
-- pooling (PgBouncer) is fine.
--
-- After someone showed a number that was no token (a timestamp, say), everybody is rejected. An operator asks the cluster
-- for the fence of the key and sets it: SELECT ringfence.reset('orders/42', 8);
--
-- The number is as durable as the rows beside it: a server that loses acknowledged commits (synchronous_commit = off and
-- a crash, a failover to an asynchronous replica) loses numbers too, and may admit a stale token until the live holder
-- shows its own again. What moves the rows must move the table ringfence.guard with them: a dump of some tables, or a
-- publication FOR TABLES IN SCHEMA public, leaves the numbers behind.
--
-- UPGRADING from a file without `protect`: run this one. It waits for transactions that have claimed, and keeps all
-- numbers. Then:
--    - A `claim` in a transaction of its own was a touch, and is an error now: call `touch`.
--    - Triggers created by hand keep working. Replace them with `protect`, which closes their gaps (TRUNCATE,
--      partitions, triggers that run later), costs less, and reads the id as `id::text`:
--      BEGIN; DROP TRIGGER guarded ON orders; SELECT ringfence.protect('orders', 'orders/', 'id'); COMMIT;
--    - The function ringfence.claims and the setting ringfence.claims are gone.
-- UPGRADING from a file without `is_only_a_claim`, which compared keys by the caller's collation: run this one. It waits as
-- above, and makes the index of the keys anew. If it finds a key twice (new locales had broken the index), delete the row with
-- the lower number, and run it again. Then call `protect` again for each table whose id has a nondeterministic collation:
-- the old triggers miss a change of the id that this collation takes for none.

-- Hides notices about existing objects.
SET LOCAL client_min_messages = warning;

CREATE SCHEMA IF NOT EXISTS ringfence;

-- IF NOT EXISTS accepts objects of another role, and OR REPLACE keeps a function's owner. The functions below run with the
-- rights of this role: nothing that they use may belong to another.
DO $$
DECLARE
  me oid := (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user);
  foreign_object text;
BEGIN
  SELECT o.what INTO foreign_object FROM (
      SELECT 'schema ringfence', n.oid, n.nspowner FROM pg_catalog.pg_namespace n
      UNION ALL
      SELECT 'relation ringfence.' || c.relname::text, c.relnamespace, c.relowner FROM pg_catalog.pg_class c
      UNION ALL
      SELECT 'function ringfence.' || p.proname::text, p.pronamespace, p.proowner FROM pg_catalog.pg_proc p
    ) AS o(what, namespace, owner)
    WHERE o.namespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = 'ringfence') AND o.owner <> me
    LIMIT 1;
  IF FOUND THEN
    RAISE 'the % does not belong to %', foreign_object, current_user
      USING ERRCODE = 'insufficient_privilege',
            HINT = 'Run this file as the role that owns the guard. If you do not know who made it, look at it, and drop it.';
  END IF;
  SELECT o.what INTO foreign_object FROM (
      SELECT 'trigger ' || t.tgname::text, t.tgrelid FROM pg_catalog.pg_trigger t
        WHERE NOT t.tgisinternal AND t.tgname <> 'refuse_autocommit'
      UNION ALL
      SELECT 'rule ' || r.rulename::text, r.ev_class FROM pg_catalog.pg_rewrite r
    ) AS o(what, relation)
    WHERE o.relation = (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname = 'ringfence' AND c.relname = 'guard')
    LIMIT 1;
  IF FOUND THEN
    RAISE 'the % on ringfence.guard is not of this file', foreign_object
      USING ERRCODE = 'insufficient_privilege', HINT = 'It would run with the rights of the guard. Look at it, and drop it.';
  END IF;
END $$;

CREATE TABLE IF NOT EXISTS ringfence.guard (
  key  text   COLLATE pg_catalog."C" PRIMARY KEY,
  high bigint NOT NULL CONSTRAINT high_is_a_token CHECK (high BETWEEN 1 AND 9007199254740991)
);
-- The last transaction that claimed the key. Its start time distinguishes it from a transaction with the same number in a
-- server that the table was restored from. `alone_since` is the start of the claim's statement, if that was nothing but the claim.
--
-- A key is its bytes. In another collation, two keys could be one, and an update of the system's locales could break the index.
ALTER TABLE ringfence.guard
  ALTER COLUMN key TYPE text COLLATE pg_catalog."C",
  ADD COLUMN IF NOT EXISTS claimed_by xid8,
  ADD COLUMN IF NOT EXISTS claimed_at timestamptz,
  ADD COLUMN IF NOT EXISTS alone_since timestamptz;

-- Whether a statement is nothing but a claim, as drivers send it: SELECT ringfence.claim($1, $2, $3). Texts and comments, which
-- may contain anything, count as blanks. Of the parentheses within those of the call, as of CAST, it knows two levels.
CREATE OR REPLACE FUNCTION ringfence.is_only_a_claim(statement text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(statement, '''[^'']*''|--[^\n]*|/\*([^*]|\*+[^*/])*\*+/', ' ', 'g') COLLATE "C"
    ~* '^\s*select\s+(\*\s+from\s+)?"?ringfence"?\."?claim"?\s*\(([^;()]|\(([^;()]|\([^;()]*\))*\))*\)(\s+as\s+"?\w+"?)?[\s;]*$'
$$;

-- The rule. Returns whether the claim is accepted, and the resulting number.
--
-- If the row exists, or is being created by another transaction, ON CONFLICT waits until its last writer has ended,
-- locks it and checks its state at that time. It is written even if the number stays, so that a transaction with an older
-- snapshot fails instead of reading old rows; but only once per transaction.
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
  -- A stale one waits for nobody: the live holder, who has the number, may wait for rows that its transaction has locked.
  SELECT g.high INTO high FROM ringfence.guard AS g WHERE g.key = admit.key COLLATE "C" AND g.high > admit.token;
  IF FOUND THEN
    accepted := false;
    RETURN;
  END IF;
  INSERT INTO ringfence.guard AS g (key, high, claimed_by, claimed_at, alone_since)
    VALUES (admit.key, admit.fence, pg_current_xact_id(), now(),
            -- The pattern is slow, and fails beyond 256 MB: it must not see long texts, such as a claim and its writes in one
            -- string.
            CASE WHEN octet_length(current_query()) < 4000 THEN
              CASE WHEN ringfence.is_only_a_claim(current_query()) THEN statement_timestamp() END
            END)
    ON CONFLICT (key) DO UPDATE SET high = greatest(g.high, excluded.high), claimed_by = excluded.claimed_by,
                                    claimed_at = excluded.claimed_at, alone_since = excluded.alone_since
      WHERE g.high <= admit.token
        AND (g.high < admit.fence OR (g.claimed_by, g.claimed_at) IS DISTINCT FROM (pg_current_xact_id(), now()))
    RETURNING g.high INTO high;
  accepted := FOUND;
  IF NOT accepted THEN
    SELECT g.high, g.high <= admit.token INTO high, accepted FROM ringfence.guard AS g
      WHERE g.key = admit.key COLLATE "C";
    -- NULL if the row is gone.
    accepted := accepted IS TRUE;
  END IF;
END $$;

-- Raises the number in a transaction of its own, before the first read; a stale token is an error.
CREATE OR REPLACE FUNCTION ringfence.touch(key text, token bigint, fence bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  answer record;
BEGIN
  SELECT * INTO answer FROM ringfence.admit(touch.key, touch.token, touch.fence);
  IF answer.accepted IS NOT TRUE THEN
    RAISE 'stale token: of %, every token below % is dead', touch.key, answer.high USING ERRCODE = 'RF412';
  END IF;
END $$;

-- The same in the transaction that writes: if the token is stale, nothing that the transaction writes can land.
CREATE OR REPLACE FUNCTION ringfence.claim(key text, token bigint, fence bigint DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
  SELECT ringfence.touch(claim.key, claim.token, claim.fence)
$$;

-- Runs at the end of a transaction with a claim. statement_timestamp() is unchanged since the claim only if nothing was sent
-- after it, not even COMMIT: then the claim was the whole transaction.
CREATE OR REPLACE FUNCTION ringfence.refuse_autocommit() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
  context text;
BEGIN
  GET DIAGNOSTICS context = PG_CONTEXT;
  -- Called within `admit`, it is not the end: the client has SET CONSTRAINTS ALL IMMEDIATE.
  IF NEW.alone_since = statement_timestamp() AND context NOT LIKE '%admit(%' THEN
    RAISE 'the claim of % is alone in its transaction and guards no write', NEW.key
      USING ERRCODE = 'no_active_sql_transaction',
            HINT = 'BEGIN, claim, write, COMMIT (turn autocommit off). For a touch alone: ringfence.touch.';
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS refuse_autocommit ON ringfence.guard;
CREATE CONSTRAINT TRIGGER refuse_autocommit AFTER INSERT OR UPDATE ON ringfence.guard
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.alone_since IS NOT NULL)
  EXECUTE FUNCTION ringfence.refuse_autocommit();

-- The number of a key; NULL if nobody has claimed it yet.
CREATE OR REPLACE FUNCTION ringfence.high(key text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT g.high FROM ringfence.guard AS g WHERE g.key = high.key COLLATE "C"
$$;

-- Sets the number, down as well. For operators only.
CREATE OR REPLACE FUNCTION ringfence.reset(key text, fence bigint) RETURNS void
LANGUAGE sql AS $$
  INSERT INTO ringfence.guard (key, high) VALUES (reset.key, reset.fence)
    ON CONFLICT (key) DO UPDATE SET high = excluded.high
$$;
REVOKE EXECUTE ON FUNCTION ringfence.reset FROM PUBLIC;

-- Whether this transaction has claimed the key.
CREATE OR REPLACE FUNCTION ringfence.claimed(key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM ringfence.guard AS g WHERE g.key = claimed.key COLLATE "C"
    AND (g.claimed_by, g.claimed_at) = (pg_current_xact_id_if_assigned(), now()));
END $$;

-- The trigger function: demand_claim('key'), or by row demand_claim('prefix', 'column').
CREATE OR REPLACE FUNCTION ringfence.demand_claim() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  keys text[] := ARRAY[TG_ARGV[0]];
  key_of text;
  key text;
BEGIN
  IF TG_NARGS > 1 AND TG_OP = 'TRUNCATE' THEN
    RAISE 'token required: no claim covers all rows of %', TG_RELID::regclass
      USING ERRCODE = 'RF428', HINT = 'DELETE the rows whose keys you have claimed.';
  ELSIF TG_NARGS > 1 AND TG_LEVEL = 'ROW' THEN
    key_of := format('SELECT %L || ($1).%I::text', TG_ARGV[0], TG_ARGV[1]);
    keys := '{}';
    IF TG_OP <> 'INSERT' THEN
      EXECUTE key_of INTO key USING OLD;
      keys := ARRAY[key];
    END IF;
    IF TG_OP <> 'DELETE' THEN
      EXECUTE key_of INTO key USING NEW;
      keys := keys || key;
    END IF;
  END IF;
  FOREACH key IN ARRAY keys LOOP
    IF ringfence.claimed(key) IS NOT TRUE THEN
      RAISE 'token required: this transaction has not claimed %', coalesce(key, 'a row without a key')
        USING ERRCODE = 'RF428', HINT = 'BEGIN; SELECT ringfence.claim(key, token, fence); then write, and COMMIT. To a table that is protected '
                                        'by_connection: ringfence lock KEY --postgres -- PROGRAM.';
    END IF;
  END LOOP;
  -- The condition of a trigger created by `protect` has found the row unclaimed. It follows a renamed column; the
  -- name in the arguments does not. The condition decides.
  IF TG_LEVEL = 'ROW' AND TG_NAME IN ('ringfence_new', 'ringfence_old', 'ringfence_moved') THEN
    RAISE 'token required: this transaction had not claimed the key of a row of % when it wrote the row', TG_RELID::regclass
      USING ERRCODE = 'RF428', HINT = 'Claim before you write. After renaming the id column, call ringfence.protect again.';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;

-- What the setting of this connection lets it claim. A key is in UTF-8: of keys that are not its own, a database may lack the characters.
--
-- The longest first message of a connection, which carries settings, has 10,000 bytes.
DROP FUNCTION IF EXISTS ringfence.may_claim();
CREATE FUNCTION ringfence.may_claim(OUT key bytea, OUT token bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  list text := coalesce(current_setting('ringfence.may_claim', true), '');
  wrong text;
BEGIN
  IF octet_length(list) > 10000 THEN
    RAISE 'ringfence.may_claim: % bytes are more than 10,000', octet_length(list) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT item INTO wrong FROM unnest(string_to_array(list, ',')) AS item
    WHERE item COLLATE "C" !~ '^([^%=[:space:]]|%(?!00)[0-9A-Fa-f]{2})+=[0-9]{1,16}$' LIMIT 1;
  IF FOUND THEN
    RAISE 'ringfence.may_claim: % is no KEY=TOKEN, with the key percent-encoded', quote_literal(left(wrong, 100))
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN QUERY
    SELECT (SELECT string_agg(CASE place WHEN 1 THEN convert_to(part, 'UTF8')
                                         ELSE decode(left(part, 2), 'hex') || convert_to(substr(part, 3), 'UTF8') END, '' ORDER BY place)
              FROM unnest(string_to_array(split_part(item, '=', 1), '%')) WITH ORDINALITY AS parts(part, place)),
           split_part(item, '=', 2)::bigint
      FROM unnest(string_to_array(list, ',')) AS item;
END $$;

-- The text of a key; NULL if it has characters that this database lacks, so that nothing in it has this key.
CREATE OR REPLACE FUNCTION ringfence.text_of(key bytea) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN convert_from(text_of.key, 'UTF8');
EXCEPTION WHEN untranslatable_character THEN
  RETURN NULL;
END $$;

-- Touches each key of the setting, in a transaction of its own: while it waits for one, it keeps none from others.
CREATE OR REPLACE PROCEDURE ringfence.touch_all()
LANGUAGE plpgsql AS $$
DECLARE
  mine record;
BEGIN
  FOR mine IN SELECT ringfence.text_of(m.key) AS key, m.token FROM ringfence.may_claim() AS m LOOP
    CONTINUE WHEN mine.key IS NULL;
    PERFORM ringfence.touch(mine.key, mine.token);
    COMMIT;
  END LOOP;
  IF NOT FOUND THEN
    RAISE 'token required: this connection has no setting ringfence.may_claim'
      USING ERRCODE = 'RF428', HINT = 'A pooler such as PgBouncer drops it: connect to the server itself. Options in a connection string replace PGOPTIONS.';
  END IF;
END $$;

-- The trigger function of `by_connection`: claims those keys of the setting that are the table's.
--
-- Before the statement, and in one order: claims row by row, in the order of the rows, would deadlock.
CREATE OR REPLACE FUNCTION ringfence.claim_of_connection() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own bytea := convert_to(TG_ARGV[0], 'UTF8');
  mine record;
BEGIN
  FOR mine IN
    SELECT convert_from(m.key, 'UTF8') AS key, m.token FROM ringfence.may_claim() AS m
      WHERE CASE WHEN CASE TG_NARGS WHEN 1 THEN m.key ELSE substring(m.key FOR octet_length(own)) END = own
                 THEN ringfence.claimed(convert_from(m.key, 'UTF8')) IS NOT TRUE END
      ORDER BY m.key, m.token
  LOOP
    PERFORM ringfence.touch(mine.key, mine.token);
  END LOOP;
  RETURN NULL;
END $$;

-- With three arguments, that of earlier versions would be called.
DROP FUNCTION IF EXISTS ringfence.protect(regclass, text, name);

-- Guards a table, and the tables that inherit from it, by one key, or by a key for each row: key || id.
--
-- The triggers' conditions read the id only. A trigger function would receive the whole row.
CREATE OR REPLACE FUNCTION ringfence.protect(guarded regclass, key text, id name DEFAULT NULL, by_connection boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql SET client_min_messages = warning AS $$
DECLARE
  unclaimed text := format('ringfence.claimed(%L', key);
  old_unclaimed text := concat(unclaimed, ' || OLD.' || quote_ident(id) || '::text', ') IS NOT TRUE');
  new_unclaimed text := concat(unclaimed, ' || NEW.' || quote_ident(id) || '::text', ') IS NOT TRUE');
  arguments text := concat_ws(', ', quote_literal(key), quote_literal(id));
  demand text := format('EXECUTE FUNCTION ringfence.demand_claim(%s)', arguments);
  id_type regtype;
  part regclass;
  is_partition boolean;
BEGIN
  IF guarded IS NULL OR key IS NULL THEN
    RAISE 'protect: there is no such table, or the key is NULL' USING ERRCODE = 'null_value_not_allowed';
  END IF;
  WITH RECURSIVE types(oid) AS (
    SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = guarded AND a.attname = id
    UNION SELECT t.typbasetype FROM pg_catalog.pg_type t JOIN types USING (oid) WHERE t.typtype = 'd')
  SELECT t.oid INTO id_type FROM pg_catalog.pg_type t JOIN types USING (oid) WHERE t.typtype <> 'd';
  IF id_type <> ALL ('{smallint, int, bigint, numeric, text, varchar, bpchar, name, uuid}'::regtype[]) THEN
    RAISE 'id: column % is of type %, whose text depends on settings or may do so', quote_ident(id), id_type
      USING ERRCODE = 'datatype_mismatch',
            HINT = 'Two sessions could derive two keys for one row. An id is smallint, int, bigint, numeric, text, varchar, '
                   'char, name, uuid, or a domain over one of these.';
  END IF;
  FOR part, is_partition IN
    WITH RECURSIVE parts(oid) AS (
      SELECT guarded::oid UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN parts ON i.inhparent = parts.oid)
    SELECT c.oid, c.relispartition AND c.oid <> guarded FROM pg_catalog.pg_class c JOIN parts USING (oid)
  LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS ringfence_truncate ON %1$s; DROP TRIGGER IF EXISTS ringfence_claim ON %1$s', part);
    EXECUTE format('CREATE TRIGGER ringfence_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT %s', part, demand);
    IF by_connection THEN
      -- Of these two, PostgreSQL runs the one first whose name is first.
      EXECUTE format('CREATE TRIGGER ringfence_claim BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT '
                     'EXECUTE FUNCTION ringfence.claim_of_connection(%s)', part, arguments);
    END IF;
    -- A partition has its parent's row triggers.
    CONTINUE WHEN is_partition;
    EXECUTE format('DROP TRIGGER IF EXISTS ringfence_new ON %1$s; DROP TRIGGER IF EXISTS ringfence_old ON %1$s; '
                   'DROP TRIGGER IF EXISTS ringfence_moved ON %1$s', part);
    EXECUTE format('CREATE TRIGGER ringfence_new AFTER INSERT OR UPDATE ON %s FOR EACH ROW WHEN (%s) %s',
                   part, new_unclaimed, demand);
    EXECUTE format('CREATE TRIGGER ringfence_old AFTER DELETE ON %s FOR EACH ROW WHEN (%s) %s',
                   part, old_unclaimed, demand);
    IF id IS NOT NULL THEN
      EXECUTE format('CREATE TRIGGER ringfence_moved AFTER UPDATE ON %1$s FOR EACH ROW '
                     'WHEN (OLD.%2$I::text COLLATE pg_catalog."C" IS DISTINCT FROM NEW.%2$I::text AND %3$s) %4$s',
                     part, id, old_unclaimed, demand);
    END IF;
  END LOOP;
END $$;

DROP FUNCTION IF EXISTS ringfence.claims();
