//! The tokio runtime of every command: one thread, the main one.
//!
//! `serve` runs Raft, the table and the peers on it, so that commands batch by themselves; client connections have
//! threads of their own. `dev` and `demo` need the main thread: the kernel kills a child when the *thread* that started
//! it ends.

use std::io;

/// Runs `future` to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}
