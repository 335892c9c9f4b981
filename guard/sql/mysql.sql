-- The guard rule of Ringfence for MySQL 5.7 and MariaDB 10.2, and later (tested with MariaDB 10.11). Run it once per database:
--
--     mysql shop < mysql.sql
--
-- A holder shows the token of its lease and the fence that its grant or last renewal gave for the key (`keys[].fence`). A
-- fence of NULL means the token, which is right for exclusive leases. Every token below a row's `high` is dead.
--
-- The statements are in guard/README.md, "MySQL and MariaDB". An InnoDB table has a row per key, with these columns, and
-- triggers that call the procedure below:
--
--     high           the number. Only the triggers write it
--     token, fence   what a statement shows. The triggers check and clear them, so that a later statement shows its own
--
-- A write that shows no token is an error, RF428, and so is a DELETE, which would take the number along. A stale token is an
-- error, RF412. Neither depends on how many rows a driver counts: by CLIENT_FOUND_ROWS it counts those that a statement
-- matched, without it those whose values changed, and a write that is repeated changes none.
--
--    - An error ends its statement, not its transaction: the caller rolls back.
--    - The row of an accepted statement stays locked until its transaction ends: claims of one key wait for one another.
--    - The first SELECT of a transaction fixes what the later ones see (REPEATABLE READ, the default): touch before it.
--    - In ON DUPLICATE KEY UPDATE, show the numbers themselves: `token = VALUES(token)` is RF428, because the trigger of the INSERT
--      has cleared it.
--    - Not covered: TRUNCATE, also of a partition, and its DROP or EXCHANGE; a foreign key's CASCADE, a change of the row's id;
--      several writable nodes (Galera, Group Replication), unless all statements of a key go to one of them.
--    - The triggers guard against mistakes, not against attackers.
--
-- After someone showed a number that was no token (a timestamp, say), the row rejects everybody. An operator asks the cluster
-- for the fence of the key and sets it, for one row at a time, named twice:
--
--     SET @ringfence_reset = 8;
--     UPDATE orders SET high = 8 WHERE id = 42;

DROP PROCEDURE IF EXISTS ringfence_admit;

DELIMITER //

CREATE PROCEDURE ringfence_admit(known BIGINT, INOUT high BIGINT, INOUT token BIGINT, INOUT fence BIGINT)
BEGIN
  DECLARE why VARCHAR(128);
  IF @ringfence_reset = high AND token IS NULL AND high <> known AND high BETWEEN 1 AND 9007199254740991 THEN
    -- For this row only. If the operator's UPDATE met no row, a later one of a whole row, with another `high`, is no reset.
    SET @ringfence_reset = NULL;
  ELSE
    SET fence = COALESCE(fence, token), high = known;
    IF token IS NULL THEN
      SIGNAL SQLSTATE 'RF428' SET MESSAGE_TEXT = 'token required: set token and fence in every INSERT and UPDATE';
    ELSEIF token NOT BETWEEN 1 AND 9007199254740991 OR fence NOT BETWEEN 1 AND token THEN
      SET why = CONCAT('token ', token, ', fence ', fence, ': tokens are from 1 to 2^53 - 1, no fence is above its token');
      SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = why;
    ELSEIF token < known THEN
      SET why = CONCAT('stale token: every token below ', known, ' is dead');
      SIGNAL SQLSTATE 'RF412' SET MESSAGE_TEXT = why;
    END IF;
    SET high = GREATEST(known, fence);
  END IF;
  SET token = NULL, fence = NULL;
END //

DELIMITER ;
