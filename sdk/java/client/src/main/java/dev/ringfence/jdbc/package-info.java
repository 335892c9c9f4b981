/** The guard for PostgreSQL, with any JDBC driver for it. */
package dev.ringfence.jdbc;
