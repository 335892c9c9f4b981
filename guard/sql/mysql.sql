-- The guard rule of Ringfence for MySQL 5.7 and MariaDB 10.2, and later (tested with MariaDB 10.11). Run it once per database:
--
--     mysql --comments shop < mysql.sql
--
-- A holder shows the token of its lease and the fence that its grant or last renewal gave for the key (`keys[].fence`). A
-- fence of NULL means the token, which is right for exclusive leases. Every token below the stored number is dead. Keys are compared as
-- bytes of UTF-8. No number is ever removed: the table ringfence_guard has a row for each key that was ever touched, and moves with the data.
--
-- The triggers in guard/README.md, "MySQL and MariaDB", ask for the key of each row that is written. The writer touches its keys when its
-- connection begins, and needs no other change. Most drivers and programs have a setting for that, such as init_command:
--
--     SET @ringfence_may_claim = ringfence_touch('orders/42', 7, 7);
--     SET @ringfence_may_claim = CONCAT(ringfence_touch('orders/41', 7, 7), ringfence_touch('orders/42', 7, 7));
--
-- A stale token is an error, RF412: in a touch, and so the connection fails, and in each later write. RF428 is a write to a row whose key
-- the connection has not touched, or whose touch was rolled back. At 1205, 1213 and 1020, what starts the program tries again.
--
--    - A write locks the number, which others may share, until its transaction ends. The touch of a newer holder waits for that: every
--      write lands before the newer holder reads, or not at all. It waits for innodb_lock_wait_timeout (1205).
--    - Touch in autocommit. In a transaction, a touch that waits would fix what the SELECTs see from before its wait, and a ROLLBACK would make
--      void what was read. So it is an error (25001), but MySQL cannot tell a BEGIN.
--    - A new connection of a lease waits for no other one of it, unless the binary log is in the format MIXED or STATEMENT: there, its touch
--      waits for the transactions that the others have open.
--    - With innodb_snapshot_isolation (the default of MariaDB 11.6 and later), a late write is 1020 instead of RF412, and rolls back, if its
--      transaction had read before the newer touch. A live touch that waits for another one is 1020, too.
--    - A live touch can be the victim of a deadlock (1213), between stale connections that lock rows in different orders, or if somebody touches
--      several keys in another order: touch them in one.
--    - RF412 and RF428 end a statement, not its transaction. Until the caller rolls back, it keeps its locks, and live holders wait for the
--      rows (1205). A trigger BEFORE the write would change nothing, as the server locks the row before it.
--    - One lease, one process, its own connections. Where a pool resets a connection, the variable is gone, and writes are RF428.
--    - The table is of InnoDB: others keep the row of a refused write. An id is a whole number or a text, in any character set: how others read
--      depends on settings of the session.
--    - Not covered, as no trigger runs: what a foreign key's CASCADE or SET NULL does to this table; TRUNCATE, DROP and EXCHANGE of
--      partitions, so let no writer have the right DROP.
--    - MariaDB drops shared locks at XA PREPARE: use SERIALIZABLE in such transactions, or they can commit after a newer touch.
--    - Not covered: several writable nodes (Galera, Group Replication), unless all statements of a key go to one of them.
--    - The triggers guard against mistakes, not against attackers. A writer needs the right EXECUTE on the function ringfence_touch. Whenever
--      this file has run, grant EXECUTE again: it makes the routines anew.
--
-- After someone showed a number that was no token (a timestamp, say), everybody is rejected. An operator asks the cluster for the
-- fence of the key and sets it:
--
--     UPDATE ringfence_guard SET high = 8 WHERE `key` = 'orders/42';

CREATE TABLE IF NOT EXISTS ringfence_guard (
  `key` varbinary(512) PRIMARY KEY,
  high bigint NOT NULL CHECK (high BETWEEN 1 AND 9007199254740991)
) ENGINE = InnoDB;

DROP FUNCTION IF EXISTS ringfence_touch;
DROP PROCEDURE IF EXISTS ringfence_demand;

DELIMITER //

-- Raises the number. Returns what the connection may claim by it: ,KEY=FENCE:TOKEN, with the key in hexadecimal digits.
--
-- Without the first look, each new connection of a lease would wait for the transactions of the others. DETERMINISTIC is for the binary log.
-- Only MariaDB has, and runs, what is in the comment. Without --comments, the client of MySQL may leave it out.
CREATE FUNCTION ringfence_touch(name longtext CHARACTER SET utf8mb4, token bigint, fence bigint) RETURNS varbinary(1100)
DETERMINISTIC MODIFIES SQL DATA
BEGIN
  DECLARE bytes longblob DEFAULT CAST(name AS BINARY);
  DECLARE known bigint;
  DECLARE why varchar(128) CHARACTER SET utf8mb4;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  IF @@autocommit = 0 /*M! OR @@in_transaction */ THEN
    SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'touch in autocommit: a transaction could read what was there before its touch';
  END IF;
  SET fence = COALESCE(fence, token);
  IF COALESCE(token NOT BETWEEN 1 AND 9007199254740991 OR fence NOT BETWEEN 1 AND token, true) THEN
    SET why = CONCAT('token ', COALESCE(token, 'NULL'), ', fence ', COALESCE(fence, 'NULL'),
                     ': tokens are from 1 to 2^53 - 1, no fence is above its token');
    SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = why;
  END IF;
  SELECT g.high INTO known FROM ringfence_guard g WHERE g.`key` = bytes;
  IF COALESCE(known < fence, true) THEN
    INSERT INTO ringfence_guard VALUES (bytes, fence) ON DUPLICATE KEY UPDATE high = GREATEST(high, fence);
    SELECT g.high INTO known FROM ringfence_guard g WHERE g.`key` = bytes FOR UPDATE;
  END IF;
  IF token < known THEN
    SET why = LEFT(CONCAT('stale token: every token below ', known, ' is dead, of ', name), 128);
    SIGNAL SQLSTATE 'RF412' SET MESSAGE_TEXT = why;
  END IF;
  RETURN CONCAT(',', HEX(bytes), '=', fence, ':', token);
END //

-- What the triggers call.
--
-- A locking read sees the newest number, whatever the transaction has seen. The locks are shared, and follow that of the row: by any
-- other, statements of one lease would wait for one another in the order of their rows, and deadlock. A number below the fence is that of
-- a touch that was rolled back.
CREATE PROCEDURE ringfence_demand(name longtext CHARACTER SET utf8mb4)
BEGIN
  DECLARE bytes longblob DEFAULT CAST(name AS BINARY);
  DECLARE label longblob DEFAULT CONCAT(',', HEX(bytes), '=');
  DECLARE place int DEFAULT LOCATE(label, @ringfence_may_claim);
  DECLARE known, fence, token bigint;
  DECLARE why varchar(128) CHARACTER SET utf8mb4;
  IF place > 0 THEN
    SET why = SUBSTRING_INDEX(SUBSTRING(@ringfence_may_claim, place + LENGTH(label), 40), ',', 1);
    SET fence = SUBSTRING_INDEX(why, ':', 1), token = SUBSTRING_INDEX(why, ':', -1);
    SET known = (SELECT g.high FROM ringfence_guard g WHERE g.`key` = bytes LOCK IN SHARE MODE);
  END IF;
  IF COALESCE(known < fence, true) THEN
    SET why = LEFT(CONCAT('token required: this connection has not touched ', COALESCE(name, 'a row without a key')), 128);
    SIGNAL SQLSTATE 'RF428' SET MESSAGE_TEXT = why;
  ELSEIF COALESCE(token < known, true) THEN
    SET why = LEFT(CONCAT('stale token: every token below ', known, ' is dead, of ', name), 128);
    SIGNAL SQLSTATE 'RF412' SET MESSAGE_TEXT = why;
  END IF;
END //

DELIMITER ;
