//! openraft's own tests of a log and a state machine, on ours.

use openraft::StorageError;
use openraft::errors::ErrorSource;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;

use crate::applied::Applied;
use crate::consensus::Consensus;
use crate::log_store::LogStore;
use crate::state_machine::StateMachine;

struct Builder;

impl StoreBuilder<Consensus, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<Consensus>> {
        let dir = TempDir::new().map_err(|error| StorageError::read(ErrorSource::from_error(&error)))?;
        let log = LogStore::open(&dir.path().join("log"), ringfence_wal::Options::default())
            .map_err(|error| StorageError::read(ErrorSource::from_error(&error)))?;
        let state_machine = StateMachine::new(Applied::new(), dir.path().to_owned());
        Ok((dir, log, state_machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_pass_openrafts_suite() {
    Suite::test_all(Builder).await.expect("openraft's suite");
}
