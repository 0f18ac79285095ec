-- Tables III and IV of IISWC'15 from a table `t` of requests, as docs/trace.md defines their columns ("Analysis"), for
-- SQLite and DuckDB. Columns of `t`: n (order of arrival), device, op, first, bytes, arrival, start, finish (ns) and
-- waited.
WITH every AS (
    SELECT *, MAX(finish) OVER (
        PARTITION BY device ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS busy_until
    FROM t
), requests AS (
    SELECT *,
        LAG(first + bytes) OVER (PARTITION BY device ORDER BY n) AS last_end,
        arrival - LAG(arrival) OVER (PARTITION BY device ORDER BY n) AS gap,
        ROW_NUMBER() OVER (PARTITION BY device, first ORDER BY n) AS touch,
        CASE WHEN op = 'write' THEN 1 ELSE 0 END AS is_write,
        CASE
            WHEN finish IS NOT NULL THEN CASE WHEN busy_until > arrival THEN 0 ELSE 1 END
            ELSE 1 - waited
        END AS no_wait
    FROM every WHERE op IN ('read', 'write')
), span AS (
    SELECT (MAX(COALESCE(finish, arrival)) - MIN(arrival)) / 1e9 AS seconds FROM t
)
SELECT
    SUM(bytes) / 1024.0,
    COUNT(*),
    MAX(bytes) / 1024.0,
    AVG(bytes) / 1024.0,
    AVG(CASE WHEN is_write = 0 THEN bytes END) / 1024.0,
    AVG(CASE WHEN is_write = 1 THEN bytes END) / 1024.0,
    100.0 * SUM(is_write) / COUNT(*),
    100.0 * SUM(bytes * is_write) / SUM(bytes),
    MAX(seconds),
    COUNT(*) / NULLIF(MAX(seconds), 0),
    SUM(bytes) / 1024.0 / NULLIF(MAX(seconds), 0),
    100.0 * SUM(no_wait) / NULLIF(COUNT(no_wait), 0),
    AVG(finish - start) / 1e6,
    AVG(finish - arrival) / 1e6,
    100.0 * SUM(CASE WHEN first = last_end THEN 1 ELSE 0 END) / COUNT(*),
    100.0 * SUM(CASE WHEN touch > 1 THEN 1 ELSE 0 END) / COUNT(*),
    100.0 * SUM(CASE WHEN bytes <= 4096 THEN 1 ELSE 0 END) / COUNT(*),
    100.0 * SUM(CASE WHEN gap > 16000000 THEN 1 ELSE 0 END) / NULLIF(COUNT(gap), 0)
FROM requests, span;
