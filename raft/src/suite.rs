//! openraft's own test suite for a log and a state machine, on ours.

use std::error::Error;
use std::sync::Arc;

use openraft::StorageError;
use openraft::errors::ErrorSource;
use openraft::testing::log::{StoreBuilder, Suite};
use ringfence_lease::SUPPORTED;
use tempfile::TempDir;

use crate::applied::state_machine::StateMachine;
use crate::applied::table::Applied;
use crate::consensus::Consensus;
use crate::storage::identity::DataDir;
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::Generations;

struct Builder;

impl StoreBuilder<Consensus, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<Consensus>> {
        let dir = TempDir::new().map_err(failed)?;
        let (data, _) = DataDir::open(&dir.path().join("data"), 1).map_err(failed)?;
        let log = LogStore::open(&data, ringfence_wal::Options::default()).map_err(failed)?;
        let generations = Arc::new(Generations::open(Arc::new(data), SUPPORTED).map_err(failed)?);
        let state_machine = StateMachine::new(Applied::new(), log.clone(), generations, SUPPORTED);
        Ok((dir, log, state_machine))
    }
}

fn failed(error: impl Error + Send + Sync + 'static) -> StorageError<Consensus> {
    StorageError::read(ErrorSource::from_error(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_pass_openrafts_suite() {
    Suite::test_all(Builder).await.expect("openraft's suite");
}
