//! The leases of Ringfence by the protocol of Redis, for lock libraries that are written for Redis.

#[allow(dead_code, reason = "the session, which uses it, is to come")]
mod reply;
#[allow(dead_code, reason = "the session, which uses it, is to come")]
mod script;
